"""Relevance from end to end: fitted to judgements by the command, shown and used by searches."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import ANIMALS, CATS, DEEDS
from tests.serving.test_agents import agent_of, ask
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

GIBBERISH = "qwjx zzkv pflom"
LEAST = 0.3


@dataclass(frozen=True)
class Fitted:
    """A gateway with a calibration of its index, and the file."""

    gateway: str
    index: str
    file: Path


def judged(folder: Path) -> Path:
    """Write a query for each animal and deed, with the two texts that say so."""
    (folder / "qrels").mkdir(parents=True)
    pairs = [(animal, deed) for animal in ANIMALS for deed in DEEDS]
    queries = [{"_id": f"q{place}", "text": f"which {animal} {deed}?"} for place, (animal, deed) in enumerate(pairs)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    rows = [f"q{place}\td{2 * place + other}\t1" for place in range(len(pairs)) for other in (0, 1)]
    (folder / "qrels" / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


@pytest.fixture(scope="module")
def fitted(stack: SearchStack, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fitted]:
    folder = tmp_path_factory.mktemp("relevance")
    file, report, data = folder / "relevance.json", folder / "report", str(judged(folder / "data"))
    arguments = ["calibrate", "relevance", stack.index, data, "--engine", stack.engine, "--encoder", "minilm@onnx"]
    assert run([*arguments, "--sample", "20", "--out", str(file)]) == 1  # too few
    assert not file.exists()
    assert run([*arguments, "--out", str(file), "--report", str(report)]) == 0
    assert "<svg" in (report / "index.html").read_text()
    with gateway_to(stack.engine, encoder, tuned=(file,)) as gateway:
        yield Fitted(gateway, stack.index, file)


def asked(
    fitted: Fitted, text: str = CATS, size: int = 10, body: dict[str, Any] | None = None, **section: Any
) -> Reply:
    query = {"query": {"match": {"text": text}}, "size": size, "rescore": {"ttc": section}}
    return search(fitted.gateway, fitted.index, {**query, **(body or {})})


def relevances(reply: Reply) -> list[float]:
    return [hit["_ttc"]["relevance"] for hit in reply.json()["hits"]["hits"]]


def test_relevance_is_that_of_the_file_and_tells_hits_from_others(fitted: Fitted) -> None:
    model = json.loads(fitted.file.read_bytes())["params"]["model"]
    reply = asked(fitted, detail=True)
    for hit in reply.json()["hits"]["hits"]:
        signals, detail = hit["_ttc"]["signals"], hit["_ttc"]
        values = {name: signal["score"] for name, signal in signals.items()}
        values["blend"] = sum(signal["share"] for signal in signals.values())
        odds = model["intercept"] + sum(weight * values[name] for name, weight in model["weights"].items())
        assert detail["relevance"] == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-3)
    only = asked(fitted, relevance=True)
    assert {*only.json()["hits"]["hits"][0]["_ttc"]} == {"relevance"}
    assert relevances(only) == relevances(reply)
    told = only.json()["ttc"]["relevance"]
    assert (told["greatest"], told["calibration"]["queries"]) == (max(relevances(only)), 30)
    assert max(relevances(asked(fitted, GIBBERISH, relevance=True))) < LEAST < relevances(only)[0]
    other: dict[str, Any] = {"params": {"signals": {"dense": 1, "spectral": 1, "late_interaction": 1}}}
    assert asked(fitted, relevance=True, **other).json()["ttc"]["applied"] is False
    assert "relevance" not in asked(fitted, detail=True, **other).json()["hits"]["hits"][0]["_ttc"]


def test_a_file_of_relevance_is_refused_as_one_of_a_method(fitted: Fitted, capsys: pytest.CaptureFixture[str]) -> None:
    data, file = str(fitted.file.parent / "data"), str(fitted.file)
    for arguments in (["evaluate", data], ["calibrate", "relevance", fitted.index, data]):
        assert run([*arguments, "--tuned", file]) == 1
        assert f"[{file}]" in capsys.readouterr().err


@pytest.mark.parametrize("collapse", [False, True])
def test_a_least_relevance_bounds_pages_and_totals(fitted: Fitted, collapse: bool) -> None:
    every = asked(fitted, size=100, relevance=True).json()["hits"]["hits"]
    kept = [hit for hit in every if (hit["_ttc"]["relevance"] or 0) >= LEAST]
    assert 0 < len(kept) < len(every)
    extra = {"collapse": {"field": "group.keyword"}} if collapse else {}
    wanted = [hit["_id"] for place, hit in enumerate(kept)
              if not collapse or group(hit) not in map(group, kept[:place])]  # fmt: skip
    found = []
    for start in range(0, len(kept) + 2, 2):
        reply = asked(fitted, size=2, body={"from": start, **extra}, min_relevance=LEAST)
        hits, told = reply.json()["hits"], reply.json()["ttc"]["relevance"]
        assert hits["total"] == {"value": len(kept), "relation": "eq"}
        assert (told["hits"], told["cut"]) == (len(kept), len(every) - len(kept))
        found += reply.ids
    assert found == wanted
    search = {"query": {"match": {"text": CATS}}, "size": 2, "rescore": {"ttc": {"min_relevance": LEAST}}}
    for hit, left_out in ((kept[-1], False), (next(hit for hit in every if hit not in kept), True)):
        body = {"index": fitted.index, "id": hit["_id"], "search": search}
        why = call(fitted.gateway, "POST", "/_ttc/explain", body).json()
        assert (why["left_out"], why["relevance"]) == (left_out, hit["_ttc"]["relevance"])
        hits = every if left_out else kept
        assert (why["rank"], why["found"]) == (hits.index(hit) + 1, len(hits))


def group(hit: dict[str, Any]) -> str:
    return str(hit["_source"]["group"])


def test_parts_of_a_question_without_a_relevant_hit_are_open(fitted: Fitted) -> None:
    parts: dict[str, Any] = {"query_texts": [CATS, GIBBERISH], "parts": "each"}
    reply = asked(fitted, **parts).json()
    answered, without = reply["ttc"]["parts"]
    assert (answered["open"], without["open"]) == (False, True), reply["ttc"]
    assert without["relevance"] < LEAST < answered["relevance"] == reply["ttc"]["relevance"]["greatest"]
    assert {*reply["hits"]["hits"][0]["_ttc"]} == {"parts"}
    assert min(relevances(asked(fitted, min_relevance=LEAST, relevance=True, size=100, **parts))) >= LEAST


def test_min_relevance_above_all_hits_is_an_empty_page(fitted: Fitted) -> None:
    hits = asked(fitted, GIBBERISH, min_relevance=LEAST).json()["hits"]
    assert (hits["total"]["value"], hits["max_score"], hits["hits"]) == (0, None, [])
    filtered = {"query": {"bool": {"must": [{"match": {"text": CATS}}], "filter": [{"term": {"_id": "d4"}}]}}}
    alone = asked(fitted, body=filtered, relevance=True, query_text=CATS)
    assert relevances(alone)[0] > 2 * max(relevances(asked(fitted, GIBBERISH, relevance=True)))
    two = [{"ttc": {"min_relevance": LEAST}}, {"window_size": 5, "ttc": {"method": "maxsim"}}]
    several = asked(fitted, body={"rescore": two})
    assert several.json()["hits"]["total"]["value"] == len(several.ids) > 0


async def test_an_agent_is_told_that_there_is_nothing(fitted: Fitted) -> None:
    async with agent_of(fitted.gateway) as client:
        found = await ask(client, "search", index=fitted.index, query=CATS, min_relevance=LEAST)
        assert all(hit["relevance"] >= LEAST for hit in found["hits"])
        assert (found["total"], found["nothing_here"]) == (len(found["hits"]), None)
        nothing = await ask(client, "search", index=fitted.index, query=GIBBERISH, min_relevance=LEAST)
        assert (nothing["total"], nothing["hits"]) == (0, [])
        assert str(LEAST) in nothing["nothing_here"]


@pytest.mark.parametrize(
    ("target", "section", "words"),
    [
        ("{index}", {"min_relevance": 2}, "min_relevance"),
        ("{index}", {"min_relevance": LEAST, "method": "spectral"}, "spectral"),
        ("{index},no-such", {"min_relevance": LEAST, "on_error": "fail"}, "es-ttc calibrate relevance {index},no-such"),
        ("", {"relevance": True}, "in the URL"),
    ],
)
def test_without_a_calibration_there_is_no_relevance(
    fitted: Fitted, target: str, section: dict[str, Any], words: str
) -> None:
    path = f"/{target.format(index=fitted.index)}/_search".replace("//", "/")
    body = {"query": {"match": {"text": CATS}}, "rescore": {"ttc": section}}
    reply = call(fitted.gateway, "POST", path, body)
    assert reply.status == 400
    assert words.format(index=fitted.index) in reply.reason
    assert asked(fitted, size=0, min_relevance=LEAST).status == 400


def test_a_gateway_without_the_calibration_answers_with_the_first_pass(fitted: Fitted) -> None:
    query = {"query": {"match": {"text": CATS}}}
    path = f"/{fitted.index},no-such/_search?ignore_unavailable=true"
    reply = call(fitted.gateway, "POST", path, query | {"rescore": {"ttc": {"min_relevance": LEAST}}})
    assert (reply.status, reply.json()["ttc"]["applied"]) == (200, False)
    assert f"es-ttc calibrate relevance {fitted.index},no-such" in reply.json()["ttc"]["reason"]
    assert reply.ids == call(fitted.gateway, "POST", path, query).ids


@pytest.mark.parametrize("target", ["{index}-alias", "%3C{index}-alias%3E", "{index}*"])
def test_another_name_of_one_index_has_its_calibration(fitted: Fitted, stack: SearchStack, target: str) -> None:
    alias = {"index": fitted.index, "alias": f"{fitted.index}-alias"}
    assert call(stack.engine, "POST", "/_aliases", {"actions": [{"add": alias}]}).status == 200
    body = {"query": {"match": {"text": CATS}}, "rescore": {"ttc": {"relevance": True}}}
    reply = call(fitted.gateway, "POST", f"/{target.format(index=fitted.index)}/_search", body)
    assert relevances(reply) == relevances(asked(fitted, relevance=True))
