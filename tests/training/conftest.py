"""A small collection to learn from, whose labels say something that the encoder does not know."""

import json
from pathlib import Path

import pytest

NAME = "minilm@onnx"
TOOLS = {
    "calendar": "Keeps appointments and reminds of them.",
    "weather": "Tells temperature and rain for a place.",
    "currency": "Turns an amount of money into another currency.",
    "flights": "Finds flights between two airports.",
    "hotels": "Finds rooms for some nights in a city.",
    "translation": "Turns a text into another language.",
    "music": "Plays songs by artist or mood.",
    "recipes": "Finds dishes by their ingredients.",
}
ASKED = {
    "plan a trip to Rome": ("flights", "hotels"),
    "book my holiday": ("flights", "hotels"),
    "a weekend abroad": ("flights", "currency"),
    "dinner for friends": ("recipes", "music"),
    "a party at home": ("music", "recipes"),
    "invite my French colleagues": ("translation", "calendar"),
    "a picnic on Sunday": ("weather", "recipes"),
    "hike in the mountains": ("weather", "calendar"),
    "write to a landlord in Spain": ("translation", "hotels"),
    "pay the invoice from Tokyo": ("currency", "calendar"),
}


def write(folder: Path, *splits: str) -> Path:
    """Write a BEIR folder; each split has the queries whose number it shares (all where there is one)."""
    (folder / "qrels").mkdir(parents=True)
    corpus = (json.dumps({"_id": tool, "text": f"{tool}: {text}"}) for tool, text in TOOLS.items())
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    queries = (json.dumps({"_id": f"q{number}", "text": text}) for number, text in enumerate(ASKED))
    (folder / "queries.jsonl").write_text("\n".join(queries))
    for place, split in enumerate(splits):
        rows = ["query-id\tcorpus-id\tscore"]
        for number, tools in enumerate(ASKED.values()):
            if number % len(splits) == place:
                rows += [f"q{number}\t{tool}\t1" for tool in tools]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows))
    return folder


def write_seen(folder: Path) -> Path:
    """Write one whose validation queries are its train queries, so that learning shows in a few epochs."""
    write(folder, "train", "test")
    (folder / "qrels" / "valid.tsv").write_text((folder / "qrels" / "train.tsv").read_text())
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "tools", "train", "test")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ES_TTC_ENCODER", NAME)
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "training-cache"))
