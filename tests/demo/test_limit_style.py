"""The LIMIT-style generator: repeatable, judged as it says, and without a shared word."""

import hashlib
import re
from pathlib import Path

import pytest
import Stemmer

from es_ttc.lab.demo.files import read_lines, read_rows
from es_ttc.lab.demo.limit_style import generate
from es_ttc.lab.evaluation.datasets import load_collection
from tests.support.beir import write_collection

FRAME = frozenset({"who", "likes", "the", "and"})


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def attributes(text: str) -> list[str]:
    return re.split(r", | and ", text.partition(" likes ")[2].removesuffix("."))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_collection(tmp_path: Path) -> None:
    folder = write_collection(generate(), tmp_path)
    digest = hashlib.sha256()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        digest.update((folder / name).read_bytes())
    assert digest.hexdigest() == "ec17a9b77540e3a9d1112bc9233d89180ab83b17b0f80122693426b34323ae21"
    assert generate(seed=1).qrels != generate(seed=2).qrels


@pytest.mark.parametrize(("documents", "queries"), [(100, 100), (46, 80), (625, 7)])
def test_a_query_is_answered_by_exactly_the_two_profiles_that_list_its_attribute(documents: int, queries: int) -> None:
    collection = generate(documents=documents, queries=queries, seed=7)
    phrase = {f"Who likes {query}?": document for document, query in read_rows("concepts.tsv")}
    assert len(collection.documents) == documents
    assert len(collection.queries) == queries
    for query, text in collection.queries.items():
        holders = {item.id for item in collection.documents if phrase[text] in attributes(item.text)}
        assert holders == set(collection.qrels[query])
        assert len(holders) == 2


@pytest.mark.parametrize("size", [(30, 50), (5, 5)])
def test_profiles_list_as_many_different_attributes_as_asked(size: tuple[int, int]) -> None:
    for document in generate(attributes=size).documents:
        listed = attributes(document.text)
        assert size[0] <= len(listed) <= size[1]
        assert len(set(listed)) == len(listed)


def test_no_query_shares_a_stem_with_anything_that_a_profile_can_hold() -> None:
    stem = Stemmer.Stemmer("english").stemWord
    concepts = read_rows("concepts.tsv")
    names = [name for row in read_rows("names.tsv") for name in row]
    held = {
        stem(word)
        for text in [phrase for phrase, _ in concepts] + read_lines("fillers.txt") + names
        for word in words(text)
        if word not in FRAME
    }
    for phrase, query in concepts:
        asked = {stem(word) for word in words(query) if word not in FRAME}
        assert asked, phrase
        assert not asked & held, phrase


def test_the_lists_hold_nothing_twice() -> None:
    concepts = read_rows("concepts.tsv")
    phrases = [phrase for phrase, _ in concepts] + read_lines("fillers.txt")
    assert len(set(phrases)) == len(phrases)
    assert len({query for _, query in concepts}) == len(concepts) == 100


def test_limit_style_collection_is_read_back_from_its_folder(tmp_path: Path) -> None:
    collection = generate(documents=20, queries=10)
    folder = write_collection(collection, tmp_path)
    assert write_collection(collection, tmp_path) == folder
    assert load_collection(folder) == collection
