"""BEIR folders: what is read, what is refused, what is warned about."""

import json
from pathlib import Path

import numpy as np
import pytest

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation.datasets import Document, field_values, load_collection, load_queries, sample, splits

CORPUS = '{"_id": "Ada Lovelace", "title": "Ada", "text": "engine"}\n\n{"_id": 7, "text": "seven", "metadata": {}}\n'
QUERIES = '{"_id": "q 1", "text": "who"}\n{"_id": "q2", "text": "what"}\n{"_id": "q3", "text": "unjudged"}\n'
QRELS = "query-id\tcorpus-id\tscore\nq2\tAda Lovelace\t2\nq 1\t7\t1\nq 1\tAda Lovelace\t0\n"


def write(folder: Path, **changes: str | None) -> Path:
    files: dict[str, str | None] = {"corpus": CORPUS, "queries": QUERIES, "test": QRELS, **changes}
    (folder / "qrels").mkdir(parents=True)
    for name, text in files.items():
        path = folder / (f"{name}.jsonl" if name in ("corpus", "queries") else f"qrels/{name}.tsv")
        if text is not None:
            path.write_bytes(text.encode("utf-8"))
    return folder


def test_a_folder_is_read_in_its_own_order(tmp_path: Path) -> None:
    collection = load_collection(write(tmp_path / "small set"))
    assert collection.name == "small set"
    assert collection.documents == (Document("Ada Lovelace", "Ada", "engine"), Document("7", "", "seven"))
    assert [document.source for document in collection.documents] == [
        {"title": "Ada", "text": "engine"},
        {"text": "seven"},
    ]
    assert dict(collection.queries) == {"q 1": "who", "q2": "what"}
    assert list(collection.queries) == ["q 1", "q2"]
    assert dict(collection.qrels) == {"q 1": {"7": 1, "Ada Lovelace": 0}, "q2": {"Ada Lovelace": 2}}
    assert collection.warnings == ()
    assert (collection.judgements, collection.relevant) == (3, 2)


def test_numbers_of_a_document_are_its_numeric_fields(tmp_path: Path) -> None:
    records = [
        {"_id": "a", "text": "x", "year": 1999, "stars": [4.5, 3], "metadata": {"views": 7, "shop": {"price": 0.5}}},
        {"_id": "b", "text": "x", "year": None, "new": True, "url": "http://", "mixed": [1, "two"], "none": []},
    ]
    corpus = "\n".join(json.dumps(record) for record in records)
    collection = load_collection(write(tmp_path / "c", corpus=corpus))
    first, second = collection.documents
    assert first.numbers == {"year": 1999.0, "stars": 3.0, "metadata.views": 7.0, "metadata.shop.price": 0.5}
    assert second.numbers == {}
    assert {first, second} == set(collection.documents)
    np.testing.assert_array_equal(field_values(collection, "year"), [1999.0, np.nan])
    with pytest.raises(InvalidRequest, match=r"\[yeer\].*\[year\]"):
        field_values(collection, "yeer")
    plain = load_collection(write(tmp_path / "plain"))
    with pytest.raises(InvalidRequest, match=r"\[year\]"):
        field_values(plain, "year")


def test_queries_are_read_without_a_corpus(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", corpus=None)
    judged = load_queries(folder, "test")
    assert (judged.name, judged.documents) == ("c", ())
    assert dict(judged.queries) == {"q 1": "who", "q2": "what"}
    with pytest.raises(ConfigurationError, match=r"has no split \[train\]"):
        load_queries(folder, "train")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(ConfigurationError, match=r"queries\.jsonl"):
        load_queries(folder, "test")


def test_only_queries_of_the_split_are_kept(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", dev="query-id\tcorpus-id\tscore\nq3\t7\t1\n")
    assert splits(folder) == ["dev", "test"]
    assert list(load_collection(folder, "dev").queries) == ["q3"]


def test_byte_order_marks_windows_lines_and_a_missing_header_do_not_lose_a_line(tmp_path: Path) -> None:
    qrels = "q2\tAda Lovelace\t2\r\nq 1\t7\t1\r\n"
    folder = write(tmp_path / "c", corpus="\ufeff" + CORPUS, test="\ufeff" + qrels)
    assert load_collection(folder).judgements == 2


ASPECTS = "query-id\taspect\tcorpus-id\tscore\nq 1\tbirth\tAda Lovelace\t1\nq 1\tthe engine\t7\t0\nghost\tx\t7\t1\n"


def test_judgements_by_aspect_stand_beside_a_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    assert load_collection(folder).aspects == {}
    (folder / "qrels" / "test.aspects.tsv").write_text(ASPECTS)
    collection = load_collection(folder)
    assert collection.aspects == {"q 1": {"birth": {"Ada Lovelace": 1}, "the engine": {"7": 0}}}
    assert splits(folder) == ["test"]
    assert any("have no judgement by aspect and count as zero for alpha-ndcg" in one for one in collection.warnings)
    for line, message in (
        ("q 1\tbirth\t7", "line 5 must be query-id TAB aspect TAB"),
        ("q 1\tbirth\tAda Lovelace\t2", r"line 5 grades \[q 1\], \[birth\] and \[Ada"),
    ):
        (folder / "qrels" / "test.aspects.tsv").write_text(ASPECTS + line)
        with pytest.raises(ConfigurationError, match=message):
            load_collection(folder)


def test_a_sample_is_the_same_each_time_and_keeps_the_order(tmp_path: Path) -> None:
    collection = load_collection(write(tmp_path / "c"))
    assert sample(collection, 99, seed=1) is collection
    drawn = sample(collection, 1, seed=1)
    assert list(drawn.queries) == list(drawn.qrels) == list(sample(collection, 1, seed=1).queries)
    assert drawn.documents == collection.documents
    assert {tuple(sample(collection, 1, seed=seed).queries) for seed in range(20)} == {(q,) for q in collection.queries}


def test_warnings_count_what_changes_the_figures(tmp_path: Path) -> None:
    qrels = "query-id\tcorpus-id\tscore\nq 1\tnowhere\t1\nq2\t7\t0\nghost\t7\t1\n"
    collection = load_collection(write(tmp_path / "c", test=qrels))
    assert list(collection.queries) == ["q 1", "q2"]
    assert collection.qrels["q 1"] == {"nowhere": 1}
    found = "\n".join(collection.warnings)
    assert "1 judged queries are not in queries.jsonl" in found
    assert "1 judged documents are not in corpus.jsonl" in found
    assert "1 queries have no relevant document" in found


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[.*nowhere\]"):
        load_collection(tmp_path / "nowhere")
