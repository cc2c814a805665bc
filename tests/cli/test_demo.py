"""The demonstration, end to end as a newcomer runs it, and the parts that choose what is shown."""

import io
import json
import re
import sys
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from es_ttc.cli.app import run
from es_ttc.cli.demo import demo_examples
from es_ttc.cli.views import method_table
from es_ttc.encoders.base import EncoderIdentity
from es_ttc.index.ingest import IngestResult
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.demo import limit_style, stdlib
from es_ttc.lab.demo.exhibit import DEMO_PREFIX, METHODS, Exhibit, added_ms, gains
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.metrics import NDCG_10, QueryScores
from es_ttc.lab.evaluation.results import CollectionResult, MethodResult

WIDTH = 100


def measured(name: str, **ndcg: list[float]) -> tuple[Exhibit, CollectionResult]:
    """Make a collection whose methods reached these values of nDCG, each 1 ms slower than the one before."""
    queries = tuple(f"q{number}" for number in range(len(ndcg["bm25"])))
    texts = {query: query for query in queries}
    collection = Collection(name, "test", (Document("d", "", "text"),), texts, {query: {"d": 1} for query in queries})
    methods = {
        method: MethodResult(
            name=method,
            params={},
            scores=QueryScores(queries, {NDCG_10: np.array(values)}),
            intervals={},
            versus={},
            seconds=np.full(len(queries), place / 1000),
        )
        for place, (method, values) in enumerate(ndcg.items(), 5)
    }
    result = CollectionResult(name, "test", 1, len(queries), len(queries), (), "bm25", methods, texts)
    spec = IndexSpec(EncoderIdentity("m", "r", 2, 3), text_fields=("text",))
    return Exhibit(collection, DEMO_PREFIX + name, spec, IngestResult()), result


def test_a_gain_is_over_the_better_of_the_engines_own_rankings() -> None:
    _, result = measured("a", bm25=[0.0, 0.5, 1.0], dense=[0.4, 0.2, 0.0], blend=[1.0, 0.6, 0.3])
    assert gains(result) == pytest.approx({"q0": 0.6, "q1": 0.1, "q2": -0.7})
    assert added_ms(result) == pytest.approx({"bm25": 0, "dense": 1, "blend": 2})


def test_examples_are_the_greatest_gains_and_the_greatest_loss() -> None:
    first = measured("a", bm25=[0.0, 0.5, 1.0], dense=[0.4, 0.2, 0.0], blend=[1.0, 0.6, 0.3])
    last = measured("b", bm25=[0.0, 0.5], dense=[0.0, 0.0], blend=[0.1, 1.0])
    chosen = demo_examples([first[0], last[0]], [first[1], last[1]])
    shown = [(index.removeprefix(DEMO_PREFIX), query) for index, query, _ in chosen]
    assert shown == [
        ("a", "q0"),
        ("a", "q2"),
        ("b", "q1"),
    ]

    assert len(demo_examples([last[0]], [last[1]])) == 1


def test_the_table_of_methods_shows_quality_as_figures_and_bars() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(method_table({"bm25": (0.0, 0.1, None), "dense": (0, 0, -0.4), "spectral": (1.0, 0.05, 12.4)}))
    assert isinstance(console.file, io.StringIO)
    bm25, dense, spectral = console.file.getvalue().splitlines()[-3:]
    assert bm25.split() == ["bm25", "0.000", "0.100"]
    assert dense.split()[-1] == "<1"
    assert spectral.split() == ["spectral", "1.000", "█" * 24, "0.050", "12"]


def test_a_missing_package_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("es_ttc.cli.common.find_spec", lambda name: None if name == "ir_measures" else object())
    assert run(["demo"]) == 1
    said = capsys.readouterr()
    assert said.err == "es-ttc: the demonstration needs ir-measures: pip install 'es-ttc[demo]'\n"
    assert said.out == ""


def tables(output: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Read back the tables: collection -> method -> (nDCG@10, recall@10)."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for line in output.splitlines():
        if heading := re.match(r"(limit-style|python-3\.\d+)  ", line):
            found[heading[1]] = {}
        elif row := re.match(rf"\s+({'|'.join(METHODS)})\s+([01]\.\d{{3}})\s+\S*\s+([01]\.\d{{3}})", line):
            found[list(found)[-1]][row[1]] = float(row[2]), float(row[3])
    return found


def fewer(collection: Collection) -> Collection:
    """Leave every other query out: what is shown is the same, sooner."""
    kept = list(collection.queries)[::2]
    queries = {query: collection.queries[query] for query in kept}
    return replace(collection, queries=queries, qrels={query: collection.qrels[query] for query in kept})


@pytest.mark.engine
def test_the_demonstration_runs_to_its_end_and_leaves_nothing_behind(
    opensearch_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (stdlib, limit_style):
        collection = fewer(module.generate())
        monkeypatch.setattr(module, "generate", lambda collection=collection: collection)
    monkeypatch.setattr("es_ttc.cli.demo.stdout", Console(width=WIDTH))
    assert run(["demo", "--engine", opensearch_url]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    assert max(len(line) for line in output.splitlines() if not line.startswith("curl")) <= WIDTH

    shown = tables(output)
    python = f"python-{sys.version_info.major}.{sys.version_info.minor}"
    assert list(shown) == [python, "limit-style"]
    assert all(list(rows) == list(METHODS) for rows in shown.values())
    # Sure things: paraphrases give BM25 nothing to match, and rescoring multiplies what the single vector finds.
    limit = {method: ndcg for method, (ndcg, _) in shown["limit-style"].items()}
    assert limit["bm25"] < 0.15
    assert limit["spectral"] > 2 * max(limit["bm25"], limit["dense"])
    assert limit["blend"] > 2 * max(limit["bm25"], limit["dense"], limit["hybrid"])
    assert shown[python]["blend"][0] > max(shown[python][method][0] for method in ("bm25", "dense", "hybrid"))

    examples_shown = output.partition("Before and after")[2].partition("The same from anywhere")[0]
    assert examples_shown.count("what blend matched") >= 2
    assert "«" in examples_shown
    assert "●" in examples_shown
    body = re.search(r"curl -s .*/_search\?pretty' .* -d '(.*)'$", output, re.MULTILINE)
    assert body is not None
    assert json.loads(body[1])["rescore"]["ttc"]["method"] == "blend"

    with urllib.request.urlopen(f"{opensearch_url}/_cat/indices?format=json&h=index", timeout=60) as response:
        assert not [index for index in json.load(response) if index["index"].startswith(DEMO_PREFIX)]
