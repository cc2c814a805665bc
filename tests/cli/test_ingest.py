import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from es_ttc.cli.app import run
from tests.serving.client import call

NDJSON = {"content-type": "application/x-ndjson"}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_url: str) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENGINE", engine_url)
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    return tmp_path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opensearch_url: str) -> Path:
    """Like work, for what does not differ between the products."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENGINE", opensearch_url)
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    return tmp_path


def test_make_fill_show_and_delete_an_index(work: Path, index_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    create = ["index", "create", index_name, "--text-fields", "body", "--codec", "float16", "--scales", "1,3,mean"]
    create += ["--spans", "scale=10,stride=4", "--spans", "scale=3"]
    assert run([*create, "--max-tokens", "32", "--shards", "2", "--analyzer", "standard", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["spec"]["scales"] == [1, 3, "mean"]
    assert made["spec"]["spans"] == [{"scale": 10, "stride": 4}, {"scale": 3, "stride": 2}]
    (work / "docs.csv").write_text("sku,body\na,first\nb,second\nc\n")
    assert run(["ingest", index_name, "docs.csv", "--id-field", "sku", "--json"]) == 1
    captured = capsys.readouterr()
    outcome = json.loads(captured.out)
    assert (outcome["read"], outcome["written"], outcome["rejected"]) == (3, 2, 1)
    assert "1 document was rejected" in captured.err
    assert "docs.csv, record 4: " in captured.err
    [letter] = (work / f"{index_name}.rejected.jsonl").read_text().splitlines()
    assert json.loads(letter)["line"] == 4
    assert run(["index", "show", index_name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["documents"], shown["states"], shown["lacking"]) == (2, {"ready": 2}, 0)
    assert shown["spec"] == made["spec"]
    (work / "more.csv").write_text("sku,body\na,first again\nb,second again\nd,third\n")
    assert run(["ingest", index_name, "more.csv", "--id-field", "sku", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] > 1000
    assert run(["index", "show", index_name]) == 0
    report = capsys.readouterr().out
    assert "float16, up to 32 a document" in report
    assert "scale 10, every 4 tokens; scale 3, every 2 tokens" in report
    assert run(["index", "pipeline", index_name]) == 1
    assert "has no ingest processor [ttc]: install the es-ttc plugin" in capsys.readouterr().err
    assert run(["index", "pipeline", index_name, "--remove"]) == 0
    assert "has no ingest processor" in capsys.readouterr().out
    assert run(["index", "delete", index_name]) == 2
    assert "--yes" in capsys.readouterr().err
    assert run(["index", "delete", index_name, "--yes"]) == 0
    assert run(["index", "show", index_name]) == 1


def test_texts_that_are_not_in_the_usual_field(here: Path, index_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shoes = [f"A-{n};Red shoe {n};{n},50;A light shoe for summer number {n};0{n}\n" for n in range(10, 30)]
    (here / "shop.csv").write_text("sku;title;price;description;zip\n" + "".join(shoes))
    assert run(["ingest", index_name, "shop.csv", "--text-fields", "title,price"]) == 1
    assert "[price] is a number in the first 20 documents" in capsys.readouterr().err
    assert run(["ingest", index_name, "shop.csv"]) == 1
    command = f"es-ttc ingest {index_name} shop.csv --text-fields title,description --id-field sku"
    assert f": {command} (--yes takes it)" in capsys.readouterr().err
    assert run(["ingest", index_name, "shop.csv", "--yes"]) == 0
    told = capsys.readouterr().err
    assert command in told
    assert "price decimal-comma; other columns are text" in told
    # What is counted is what the search finds, by its vectors too.
    search = ["search", index_name, "footwear for June", "--filter", "price<15", "--facets", "price,zip", "--json"]
    assert run(search) == 0
    facets = json.loads(capsys.readouterr().out)["facets"]
    assert facets["price"] == {"count": 5, "min": 10.5, "max": 14.5}
    assert facets["zip"] == {f"0{n}": 1 for n in range(10, 15)}
    assert run([*search, "--method", "bm25"]) == 0
    assert json.loads(capsys.readouterr().out)["facets"]["price"] == {"count": 0}


def test_fields_of_an_existing_index_are_proposed(
    here: Path, index_name: str, capsys: pytest.CaptureFixture[str], opensearch_url: str
) -> None:
    assert here.exists()
    for number in range(3):
        shoe = {
            "name": f"Red shoe {number}",
            "price": number,
            "about": f"<p>A light shoe for summer number {number}</p>",
        }
        call(opensearch_url, "PUT", f"/{index_name}/_doc/{number}?refresh=true", shoe)
    assert run(["attach", index_name, "--text-fields", "name,price"]) == 1
    assert f"[price] of index [{index_name}] is a number (long)" in capsys.readouterr().err
    assert run(["attach", index_name, "--max-tokens", "6", "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "of 3 sampled documents 3 are longer than the 6 tokens that are read (--max-tokens)" in told
    assert run(["attach", index_name, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "longer than" not in told
    assert re.search(r"about +English +\d+ +HTML", told)
    assert told.index("--tokens none") < told.index("--storage small") < told.index("--storage default *")
    assert run(["attach", index_name]) == 1
    told = capsys.readouterr().err
    assert "proposed: --text-fields name,about: name (" in told
    assert run(["attach", index_name, "--max-tokens", "6", "--yes"]) == 0
    captured = capsys.readouterr()
    assert "about has HTML, which is left out of what is encoded (--strip-html no keeps it)" in captured.err
    assert "3 are longer than the 6 tokens that are read (--max-tokens)" in captured.out
    assert run(["attach", index_name, "--max-tokens", "1024", "--yes", "--json"]) == 0
    [filled] = json.loads(capsys.readouterr().out)["indices"]
    assert (filled["written"], filled["truncated"]) == (3, 0)
    assert run(["index", "show", index_name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["strip_html"]
    assert run(["attach", index_name]) == 0  # the fields are those of the features now

    reindexed = f"{index_name}-2"
    body = {"source": {"index": index_name}, "dest": {"index": reindexed}}
    call(opensearch_url, "POST", "/_reindex?refresh=true", body)
    capsys.readouterr()
    assert run(["attach", reindexed, "--like", index_name, "--json"]) == 0
    [filled] = json.loads(capsys.readouterr().out)["indices"]
    assert (filled["carried"], filled["written"]) == (3, 0)
    assert run(["detach", index_name, "--yes"]) == 0
    assert run(["attach", reindexed, "--like", index_name]) == 1
    assert f"index [{index_name}] has no features" in capsys.readouterr().err


def test_features_take_what_was_estimated(here: Path, index_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"text": f"{number} " * 30 + "has a few words of its own"}) for number in range(60)]
    (here / "first.jsonl").write_text("\n".join(lines[:30]))
    (here / "all.jsonl").write_text("\n".join(lines))
    assert run(["ingest", index_name, "first.jsonl", "--json"]) == 0
    captured = capsys.readouterr()
    at_once = json.loads(captured.out)["bytes"]
    assert "for all 30; a million such documents take " in captured.err
    assert ", with --storage small " in captured.err
    assert ", with --tokens none " in captured.err
    assert "; before segments are merged " in captured.err
    assert run(["ingest", index_name, "all.jsonl", "--merge", "--json"]) == 0  # waits for the engine's leases
    captured = capsys.readouterr()
    assert "for all 60; a million" in captured.err
    merged = json.loads(captured.out)["bytes"]
    found = call(os.environ["ES_TTC_ENGINE"], "GET", f"/{index_name}/_stats/segments").json()
    assert found["_all"]["primaries"]["segments"]["count"] == 1
    assert merged < 1.2 * at_once  # of twice as many documents
    documents = {"mappings": {"properties": {"text": {"type": "text"}}}}
    plain = f"{index_name}-plain"
    assert call(os.environ["ES_TTC_ENGINE"], "PUT", f"/{plain}", documents).status == 200
    bulk = "".join(f'{{"index": {{}}}}\n{line}\n' for line in lines).encode()
    written = call(os.environ["ES_TTC_ENGINE"], "POST", f"/{plain}/_bulk?refresh=true", bulk, NDJSON)
    assert written.json()["errors"] is False
    assert run(["attach", plain, "--text-fields", "text", "--dry-run", "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["indices"]
    assert one["estimate"]["documents"] == 60
    assert one["estimate"]["bytes"] == pytest.approx(merged, rel=0.25)
    assert call(os.environ["ES_TTC_ENGINE"], "GET", f"/ttc-*{plain}*").json() == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--tokens nested --max-tokens 20000", "20,000 nested vectors, and engines take up to 10,000"),
        ("--tokens rank_vectors", "rank_vectors field, which Elasticsearch has"),
    ],
)
def test_a_storage_that_cannot_be_had_is_refused_in_one_sentence(
    here: Path, index_name: str, capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    (here / "docs.jsonl").write_text('{"text": "first"}\n')
    assert run(["index", "create", index_name, *arguments.split()]) > 0
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error


def test_commands_take_the_encoder_of_the_features_unless_another_is_chosen(
    here: Path, index_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ES_TTC_ENCODER")
    engine = os.environ["ES_TTC_ENGINE"]
    call(engine, "PUT", f"/{index_name}/_doc/1?refresh=true", {"text": "first words"})
    chosen = ["--encoder", "multilingual-e5-small", "--codec", "int8"]
    assert run(["attach", index_name, "--text-fields", "text", *chosen, "--yes"]) == 0
    call(engine, "PUT", f"/{index_name}/_doc/2?refresh=true", {"text": "second words"})
    assert run(["fill", index_name]) == 0
    assert "1 documents got features" in capsys.readouterr().out
    assert run(["index", "requantise", index_name, "--storage", "default"]) == 0
    assert "2 documents are now stored as --storage default, 0 were already" in capsys.readouterr().out
    assert run(["index", "requantise", index_name, "--skip-tokens", "stop_words", "--codec", "int2", "--json"]) == 0
    [moved] = json.loads(capsys.readouterr().out)["indices"]
    assert (moved["stored"], moved["written"], moved["unchanged"]) == ("--storage small", 2, 0)
    assert run(["index", "requantise", index_name, "--codec", "int4"]) == 1
    assert "which is coarser than [int4]" in capsys.readouterr().err
    assert run(["index", "requantise", index_name, "--skip-tokens", "none"]) == 1
    assert f"`es-ttc attach {index_name} --skip-tokens none`" in capsys.readouterr().err
    assert run(["index", "show", index_name]) == 0
    assert "int2 without stop words, up to 1024 a document" in capsys.readouterr().out
    assert run(["fill", index_name, "--encoder", "minilm"]) == 1
    assert "fill with the same encoder" in capsys.readouterr().err
    assert run(["detach", index_name, "--yes"]) == 0


def test_an_absent_index_is_made_with_defaults_and_that_is_said(
    here: Path, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "docs.jsonl").write_text('{"_id": "1", "title": "a", "text": "b"}\n')
    assert run(["ingest", index_name, "docs.jsonl"]) == 0
    captured = capsys.readouterr()
    assert f"made index [{index_name}] with defaults: fields title,text" in captured.err
    assert "1 documents written" in captured.out
    (here / "notes").mkdir()
    (here / "notes" / "bees.md").write_text("# Bees\n\nmake honey")
    assert run(["ingest", index_name, "notes"]) == 0
    stored = call(os.environ["ES_TTC_ENGINE"], "GET", f"/{index_name}/_doc/bees.md?_source_excludes=ttc").json()
    assert stored["_source"] == {"title": "Bees", "text": "make honey"}
    capsys.readouterr()
    assert run(["index", "create", index_name]) == 1
    assert "exists already" in capsys.readouterr().err
    assert run(["index", "show", index_name]) == 0
    assert "int4, up to 1024 a document" in capsys.readouterr().out
    assert run(["index", "requantise", index_name]) == 1
    assert "make it anew, with `es-ttc index create NAME`" in capsys.readouterr().err


def test_documents_without_the_text_fields_make_no_index(
    here: Path, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "docs.jsonl").write_text('{"_id": "1", "headline": "a", "body": "b"}\n')
    assert run(["ingest", index_name, "docs.jsonl"]) == 1
    assert "they have _id,body,headline" in capsys.readouterr().err
    (here / "empty.jsonl").write_text("")
    assert run(["ingest", index_name, "empty.jsonl"]) == 1
    assert f"no document in empty.jsonl, so index [{index_name}] is not made" in capsys.readouterr().err
    for line, said in (
        ('[{"text": "bees"}]', "(the line is JSON, but not an object), so index"),
        ('{"index": {"_id": "1"}}', f"POST /{index_name}/_bulk`, and then `es-ttc attach {index_name}`"),
        ('{"_id": "1", "_source": {"text": "bees"}}', "jq -c '{_id} + ._source'"),
    ):
        (here / "other.jsonl").write_text(f"{line}\n")
        assert run(["ingest", index_name, "other.jsonl"]) == 1
        assert said in capsys.readouterr().err
    assert run(["index", "show", index_name]) == 1
    assert run(["ingest", index_name, "docs.jsonl", "--text-fields", "headline,body"]) == 0
    assert run(["ingest", index_name, "docs.jsonl", "--text-fields", "body"]) == 1
    assert "encodes the fields headline,body" in capsys.readouterr().err


def test_an_absent_engine_is_one_sentence(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ES_TTC_ENGINE", "http://127.0.0.1:9")
    (here / "docs.jsonl").write_text('{"text": "a"}\n')
    for arguments in (["ingest", "x", "docs.jsonl"], ["fill", "x"]):
        assert run(arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "cannot be reached: nothing listens on port 9 (connection refused)" in captured.err
        assert "`es-ttc engine up`" in captured.err
        assert captured.err.count("\n") == 1


def test_stopping_says_how_to_go_on_and_resuming_goes_on(
    here: Path, opensearch_url: str, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = here / "docs.jsonl"
    documents = [{"_id": str(n), "text": f"text {n} " + "word " * 80} for n in range(300)]
    file.write_text("\n".join(map(json.dumps, documents)))
    command = [sys.executable, "-m", "es_ttc", "ingest", index_name, file.name, "--batch-mb", "0.1"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    )
    while process.poll() is None and not documents_in(opensearch_url, index_name):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command with --resume to go on" in err
    assert "Traceback" not in err
    assert run(["ingest", index_name, file.name, "--resume", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["resumed_at"] + outcome["skipped"] > 0
    assert outcome["resumed_at"] + outcome["written"] + outcome["skipped"] == 300
    assert [each.name for each in here.iterdir()] == [file.name]


def documents_in(url: str, index: str) -> int:
    """Return how many documents there are by now; 0 without an index."""
    try:
        with urllib.request.urlopen(f"{url}/{index}/_search?size=0&filter_path=hits.total.value") as answer:
            return int(json.load(answer)["hits"]["total"]["value"])
    except urllib.error.HTTPError:
        return 0
