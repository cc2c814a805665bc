"""The HTML report: whole, self-contained, escaped, and with the figures of results.json in it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from es_ttc.lab.evaluation import report
from es_ttc.lab.evaluation.bootstrap import Comparison, Interval
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.methods import EvaluatedMethod, resolve
from es_ttc.lab.evaluation.metrics import headline_metrics
from es_ttc.lab.evaluation.plan import evaluate
from es_ttc.lab.evaluation.rankings import ReportStage, Run, silent
from es_ttc.lab.evaluation.results import CollectionResult, Evaluation

NASTY = '</title><script>alert(1)</script> & "quotes"'
VOID = {"meta", "link", "br", "path", "use", "rect", "img"}


class Shuffled:
    """A searcher whose methods differ in how well they rank, drawn once and for all."""

    vectors = None

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.documents = len(collection.documents)

    def rank(self, method: EvaluatedMethod, progress: ReportStage = silent) -> Run:
        skill = {"bm25": 0.2, "dense": 0.4, "hybrid": 0.4, "maxsim": 0.6, "spectral": 0.9}[method.name]
        generator = np.random.default_rng(len(method.name))
        rankings = {}
        for query, judged in self._collection.qrels.items():
            documents = [document.id for document in self._collection.documents]
            generator.shuffle(documents)
            rankings[query] = sorted(documents, key=lambda one: -(one in judged) * (generator.random() < skill))
        return Run(rankings, {}, generator.random(len(rankings)) / 100)


def made(name: str, *, queries: int = 40, methods: tuple[str, ...] = ("bm25", "dense", "spectral")) -> CollectionResult:
    documents = tuple(Document(f"d{i}", "", "") for i in range(30))
    texts = {f"q{i}": f"{NASTY} {i}" for i in range(queries)}
    qrels = {query: {f"d{i % 30}": 1, f"d{(i * 7 + 3) % 30}": 1} for i, query in enumerate(texts)}
    collection = Collection(name, "test", documents, texts, qrels, ("3 queries are <odd>",))
    return evaluate(collection, resolve(methods), Shuffled(collection), k=10, resamples=200)


def evaluation(*collections: CollectionResult) -> Evaluation:
    return Evaluation(
        collections=collections or (made("small"),),
        k=10,
        encoder="all-MiniLM-L6-v2@abc/384x256",
        encoder_backend="torch, float32",
        engine="memory",
        settings={"window": 100, "first_pass": "dense"},
        machine="a <machine>",
        versions={"numpy": "2.4.6"},
        command="es-ttc evaluate 'data/my set'",
        date="2026-11-21T00:00:00+00:00",
    )


@pytest.mark.parametrize("pooled", [True, False])
def test_methods_with_many_unjudged_documents_are_named_where_judgements_are_pooled(pooled: bool) -> None:
    documents = tuple(Document(f"d{i}", "", "") for i in range(30))
    texts = {f"q{i}": "a question" for i in range(20)}
    judged = {f"d{i}": int(i < 5 or not pooled) for i in range(10)}
    collection = Collection("pool", "test", documents, texts, dict.fromkeys(texts, judged))
    # Shuffled puts more of the judged documents first, the better the method.
    methods = resolve(("spectral", "bm25"))
    result = evaluate(collection, methods, Shuffled(collection), k=10, baseline="spectral", resamples=50)
    named = [warning for warning in result.warnings if "of bm25 have no judgement" in warning]
    assert len(named) == pooled


class Page(HTMLParser):
    """Collects text and tags, and checks that every element is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return evaluation(made("small"), made("other", queries=25))


@pytest.fixture(scope="module")
def html(found: Evaluation) -> str:
    return report.render(found)


def test_the_page_holds_every_figure(found: Evaluation, html: str) -> None:
    page = Page(html)
    assert page.open == []
    for collection in found.collections:
        for method in collection.methods.values():
            for metric in method.scores.values:
                assert report.shown_score(method.scores.mean(metric)) in page.text
            for metric in headline_metrics(10):
                interval = method.intervals[metric]
                assert f"{report.shown_score(interval.low)} – {report.shown_score(interval.high)}" in page.text  # noqa: RUF001
            if method.versus:
                versus = method.versus["ndcg@10"]
                assert report.signed(versus.delta) in page.text
                assert f"{versus.wins} / {versus.ties} / {versus.losses}" in page.text
    for fact in ("es-ttc evaluate 'data/my set'", "a <machine>", "2.4.6", "torch, float32", "3 queries are <odd>"):
        assert fact in page.text


def test_the_page_shows_the_first_documents_of_moved_queries(found: Evaluation) -> None:
    [result, *_] = found.collections
    leading = report.leader(result, "ndcg@10")
    gains, _ = report.moved(result, leading, "ndcg@10")
    methods = {
        name: replace(method, firsts={gains[0].id: [f"{name}-1", f"{name}-2"]})
        for name, method in result.methods.items()
    }
    labels = {f"{leading.name}-1": "A <right> answer"}
    right = {gains[0].id: frozenset({f"{leading.name}-1"})}
    shown = Page(report.render(evaluation(replace(result, methods=methods, labels=labels, right=right))))
    assert shown.open == []
    assert "A <right> answer ● relevant" in shown.text
    assert f"{result.baseline}-2" in shown.text


def test_the_page_asks_for_nothing_and_runs_nothing(html: str) -> None:
    page = Page(html)
    assert "script" not in {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith("#"), (tag, name, value)
            assert not name.startswith("on")
    assert not re.findall(r"url\((?!#)", html)
    assert NASTY in page.text


def test_the_page_serves_light_dark_and_those_who_do_not_see_it(html: str) -> None:
    page = Page(html)
    assert "prefers-color-scheme: dark" in html
    assert ("html", {"lang": "en"}) in page.tags
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == 4
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    for drawing in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        ElementTree.fromstring(drawing)  # well-formed
        assert not re.search(r"#[0-9a-f]{6}", drawing), "a colour that does not follow the theme"


def test_one_method_alone_is_reported_without_comparison() -> None:
    page = Page(report.render(evaluation(made("alone", methods=("bm25",)))))
    assert "ndcg@10 of bm25" in page.text
    assert "won / tied / lost" in page.text


def test_all_losing_is_said() -> None:
    result = made("small", methods=("spectral", "bm25"))
    lost = replace(result.methods["bm25"].versus["ndcg@10"], delta=-0.25, p=0.0002, interval=Interval(-0.3, -0.2))
    loser = replace(result.methods["bm25"], versus={"ndcg@10": lost})
    sentence = report.comparison_sentence(replace(result, methods={**result.methods, "bm25": loser}), "ndcg@10")
    assert "bm25 (\N{MINUS SIGN}0.250) worse than spectral" in sentence
    assert report.significance(lost) == "worse"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.1234, "+0.123"), (-0.1234, "\N{MINUS SIGN}0.123"), (0.0, "0.000"), (-0.0001, "0.000")]
)
def test_differences_are_printed_with_their_sign(value: float, shown: str) -> None:
    assert report.signed(value) == shown


def test_a_verdict_needs_significance() -> None:
    unclear = Comparison(0.1, Interval(-0.1, 0.3), 0.3, 5, 5, 4)
    assert report.significance(unclear) == "no clear difference"
    assert report.significance(replace(unclear, p=0.01)) == "better"


def test_writing_leaves_all_files_and_no_other(tmp_path: Path) -> None:
    found = evaluation(made("alone", methods=("bm25",)))
    page = report.write_report(found, tmp_path / "deep" / "report")
    assert sorted(path.name for path in page.parent.iterdir()) == ["index.html", "results.json"]
    assert json.loads((page.parent / "results.json").read_text()) == found.as_json()
