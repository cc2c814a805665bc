"""Searching from the command line: what is asked, what is read back, what is shown."""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import pytest

from es_ttc.cli.options import FilterType
from es_ttc.cli.searching import (
    CliQuery,
    SearchTarget,
    body_of,
    compare_methods,
    curl,
    hits_of,
    require_compared_fields,
    search_by_method,
)
from es_ttc.cli.views import ShownHit, ShownSpan
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect, connected
from es_ttc.engine.protocol import delete_if_there
from es_ttc.errors import InvalidRequest
from es_ttc.lab.demo import exhibit
from es_ttc.settings import EngineSettings
from tests.cli.conftest import Filled
from tests.conftest import Outcome

Command = Callable[..., Outcome]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colours, and the encoder of the indices."""
    for name, value in {"ES_TTC_ENCODER": "minilm@onnx", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def test_hits_are_read_with_the_texts_that_offsets_refer_to() -> None:
    hit = {
        "_id": "7",
        "_score": 0.75,
        "_source": {"title": "t", "body": {"text": ["two", "values"]}, "other": "not asked for", "empty": None},
        "_ttc": {"first_pass_rank": 3, "scale": 5, "field": "body.text", "start": 0, "end": 3},
    }
    assert hits_of({"hits": {"hits": [hit]}}, ["title", "body.text", "empty"]) == [
        ShownHit("7", 0.75, {"title": "t", "body.text": "two values"}, ShownSpan("body.text", 0, 3))
    ]
    assert hits_of({"hits": {"hits": [{"_id": "8", "_score": None}]}}, ["title"]) == [ShownHit("8", None, {})]


def test_the_curl_line_sends_what_the_search_sends() -> None:
    asked = CliQuery('it\'s "quoted" $HOME', "spectral", 3, {"scales": [1, 5]})
    words = shlex.split(curl("http://127.0.0.1:9280", "books", ["title"], asked))
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:9280/books/_search?pretty"]
    body = json.loads(words[words.index("-d") + 1])
    assert body == body_of(["title"], asked)
    assert body["query"] == {"match": {"title": asked.text}}
    assert body["rescore"]["ttc"]["params"] == {"scales": [1, 5]}


@pytest.mark.engine
class TestThroughTheGateway:
    def run(self, filled: Filled, question: Any) -> Any:
        async def ask() -> Any:
            async with connected(EngineSettings(engine=filled.gateway)) as client:
                shown = filled.exhibit
                return await question(SearchTarget(client, shown.index, shown.spec, shown.spec.text_fields))

        return asyncio.run(ask())

    def test_every_method_ranks_and_spectral_says_where_it_matched(self, filled: Filled) -> None:
        collection = filled.exhibit.collection
        found = 0
        for query, text in collection.queries.items():
            rankings = self.run(
                filled, lambda target, text=text: compare_methods(target, CliQuery(text, "spectral", 5))
            )
            assert [ranking.heading for ranking in rankings] == ["bm25", "hybrid", "spectral"]
            assert all(set(ranking.ranks()) == {one.id for one in collection.documents} for ranking in rankings)
            best = rankings[-1].hits[0]
            assert best.span is not None
            assert 0 <= best.span.start < best.span.end <= len(best.fields[best.span.field])
            found += best.id in collection.qrels[query]
        assert found > len(collection.queries) / 3  # 1 in 15 by chance

    def test_a_dense_first_pass_finds_what_shares_no_word_with_the_text(self, filled: Filled) -> None:
        asked = CliQuery("insects that make honey", "spectral", 5)
        by_bm25 = self.run(filled, lambda target: search_by_method(target, asked))
        by_dense = self.run(filled, lambda target: search_by_method(target, replace(asked, first_pass="dense")))
        assert by_bm25.hits == []
        assert len(by_dense.hits) == 5
        assert all(hit.span is not None for hit in by_dense.hits)

    def test_hybrid_fuses_the_engines_own_two(self, filled: Filled) -> None:
        text = next(iter(filled.exhibit.collection.queries.values()))
        bm25, hybrid = self.run(filled, lambda target: compare_methods(target, CliQuery(text, "hybrid", 5)))
        dense = self.run(filled, lambda target: search_by_method(target, CliQuery(text, "dense", 100)))
        ranks = [bm25.ranks(), dense.ranks()]
        for hit in hybrid.hits:
            fused = sum(1 / (60 + rank[hit.id]) for rank in ranks if hit.id in rank)
            assert hit.score == pytest.approx(fused, abs=1e-6)
        scores = [hit.score for hit in hybrid.hits]
        assert scores == sorted(scores, reverse=True)

    @pytest.mark.usefixtures("narrow")
    def test_an_alias_of_several_indices_of_one_form_is_searched(
        self, filled: Filled, encoder: Encoder, es_ttc: Command
    ) -> None:
        first, collection = filled.exhibit.index, filled.exhibit.collection
        second, alias = f"{first}-second", f"{first}-all"
        more = replace(collection, documents=tuple(replace(one, id=f"2-{one.id}") for one in collection.documents[:5]))
        with asyncio.Runner() as runner:
            engine = runner.run(connect(EngineSettings(engine=filled.engine)))
            try:
                runner.run(exhibit.fill_index(engine, second, more, encoder))
                actions = [{"add": {"index": index, "alias": alias}} for index in (first, second)]
                runner.run(engine.request("POST", "/_aliases", body={"actions": actions}))
                found = es_ttc("search", alias, collection.documents[0].text, "--gateway", filled.gateway, "--json")
            finally:
                runner.run(delete_if_there(engine, second))
                runner.run(
                    engine.request(
                        "POST", "/_aliases", body={"actions": [{"remove": {"index": first, "alias": alias}}]}
                    )
                )
                runner.run(engine.close())
        assert found.status == 0, found.err
        [hits] = json.loads(found.out)["rankings"].values()
        assert {hit["id"] for hit in hits[:2]} == {collection.documents[0].id, f"2-{collection.documents[0].id}"}

    @pytest.mark.parametrize("method", ["blend", "hybrid", "bm25", "dense", "spectral", "knn:nnn", "knn:dense", "rm3"])
    def test_every_hit_matches_the_filter(self, filled: Filled, method: str) -> None:
        collection = filled.exhibit.collection
        text = next(iter(collection.queries.values()))
        wanted = [one.id for one in collection.documents[3:9]]
        among = {"ids": {"values": wanted}}
        for first_pass in ("bm25", "dense") if method == "spectral" else ("bm25",):
            asked = CliQuery(text, method, 5, first_pass=first_pass, among=among)
            ranking = self.run(filled, lambda target, asked=asked: search_by_method(target, asked))
            assert ranking.hits
            assert set(ranking.ranks()) <= set(wanted)

    def test_a_filter_that_can_match_nothing_is_refused(self, filled: Filled) -> None:
        price = {"properties": {"price": {"type": "float"}}}
        self.run(filled, lambda target: target.client.request("PUT", f"/{target.index}/_mapping", body=price))
        for text, fix in (
            ("txet=a", "did you mean \\[text\\]"),
            ("year>1 and text=a", "no field \\[year\\]"),
            ("price<=cheap", "compares it with \"cheap\": give a number, as in 'price<=100'"),
        ):
            asked = CliQuery("paper", "bm25", among=FilterType("").convert(text, None, None))
            with pytest.raises(InvalidRequest, match=fix):
                self.run(filled, lambda target, asked=asked: require_compared_fields(target, asked))

    def test_a_method_compared_with_itself_stands_there_once(self, filled: Filled) -> None:
        rankings = self.run(filled, lambda target: compare_methods(target, CliQuery("paper", "bm25", 5)))
        assert sorted(ranking.heading for ranking in rankings) == ["bm25", "hybrid"]


@pytest.mark.engine
@pytest.mark.usefixtures("narrow")
def test_the_command_compares_in_the_terminal_and_in_json(filled: Filled, es_ttc: Command) -> None:
    collection = filled.exhibit.collection
    text = next(iter(collection.queries.values()))
    arguments = ("search", filled.exhibit.index, text, "--compare", "--size", "3", "--gateway", filled.gateway)

    shown = es_ttc(*arguments)
    assert shown.status == 0, shown.err
    assert shown.out.splitlines()[0].split() == ["bm25", "hybrid", "blend"]
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert "«" in shown.out
    assert shown.err == ""

    answer = json.loads(es_ttc(*arguments, "--json").out)
    assert list(answer["rankings"]) == ["bm25", "hybrid", "blend"]
    first = answer["rankings"]["blend"][0]
    assert first["rank"] == 1
    assert first["match"]["field"] == "text"
    assert first["rank_before"] >= 1


@pytest.mark.engine
@pytest.mark.usefixtures("narrow")
def test_the_command_brings_its_own_gateway(filled: Filled) -> None:
    """In a process of its own: nothing else is printed until it has ended."""
    asked = ["search", filled.exhibit.index, "Who likes paper?", "--engine", filled.engine, "--size", "2"]
    answer = subprocess.run([sys.executable, "-m", "es_ttc", *asked], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.lstrip().startswith("1  ")
    assert answer.stderr == ""


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("price<=100", {"range": {"price": {"lte": 100}}}),
        ("brand=Acme Inc", {"match": {"brand": "Acme Inc"}}),
        (
            "year > 2020 and open=true",
            {"bool": {"filter": [{"range": {"year": {"gt": 2020}}}, {"match": {"open": True}}]}},
        ),
        ("title=war and peace", {"match": {"title": "war and peace"}}),
        (
            'title="x and y=z" AND year>=2020-01-01',
            {"bool": {"filter": [{"match": {"title": "x and y=z"}}, {"range": {"year": {"gte": "2020-01-01"}}}]}},
        ),
        ('{"term": {"a": 1}}', {"term": {"a": 1}}),
    ],
)
def test_filters_are_comparisons_or_queries(text: str, query: dict[str, Any]) -> None:
    assert FilterType("").convert(text, None, None) == query


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("price", "neither a comparison"),
        ("price =< 10", r"unknown operator \[=<\]: did you mean \[<=\]"),
        ("price<9 and size=>10", r"'size=>10' .* did you mean \[>=\]"),
        ("price!=10", r"unknown operator \[!=\]: take one of"),
    ],
)
def test_a_malformed_filter_is_refused(text: str, problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem):
        FilterType("").convert(text, None, None)
