"""Queries whose document is known: part numbers, rare words, names, codes. How often is the first hit right?

    python -m benchmarks.known_items --engine http://127.0.0.1:9200 http://127.0.0.1:9201

600 abstracts, each with a part number, a contact and an error code, in an index to which es-ttc is attached; their
fields `title` and `text` are encoded. German compounds and Japanese names stand in 60 short texts more. A row has up to
80 queries. `engine` is the engine alone, `RRF` reciprocal rank fusion of its ranks with those by vector. Then what a
query says besides its words: documents that are demoted to a tenth, and a decay by age.
"""

import argparse
import asyncio
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.blend import DATA
from benchmarks.common import heading, table
from benchmarks.served import ENCODER, Client, bulk, delete, gateway, opened
from es_ttc.encoders import load_encoder
from es_ttc.index.attach.detach import detach, traces_of
from es_ttc.index.attach.side_index import attach_beside
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.demo import stdlib
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.rescorers.blend.normalise import RRF_K

INDEX = "bench-known-items"
DOCUMENTS = 600
QUERIES = 80
WINDOW = 100
METHODS: Mapping[str, Mapping[str, Any] | None] = {
    "engine": None, "RRF": {"method": "hybrid", "detail": True}, "hybrid": {"method": "hybrid"}, "blend": {},
}  # fmt: skip
_LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ"
_FIRST = ("Anna", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jakob", "Karin", "Luca")
_LAST = ("Abel", "Brandt", "Castro", "Dvorak", "Eriksen", "Fontaine", "Gallo", "Horvat", "Ivanov", "Jansen", "Kowalski")
_GERMAN = (
    ("Winter", "Sommer", "Fahrrad", "Garten", "Küchen", "Akku"),
    ("reifen", "schlauch", "messer", "lampen", "schrauben", "pumpen"),
    ("halter", "koffer", "wechsel", "schutz", "adapter"),
)
_JAPANESE = (("東京", "大阪", "京都", "札幌", "横浜", "神戸"), ("製作所", "電機", "商店", "工業", "印刷"))
_MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            **{name: {"type": "text"} for name in ("title", "text", "code", "contact")},
            **{name: {"type": "keyword"} for name in ("sku", "number", "email")},
            "demoted": {"type": "boolean"},
            "date": {"type": "date"},
        }
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """Queries of one kind: for each its body's query, its text, and the ids of the documents that are right."""

    name: str
    queries: Sequence[tuple[Mapping[str, Any], str, frozenset[str]]]


def main() -> None:
    """Print the tables of each engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=["http://127.0.0.1:9200"])
    parser.add_argument("--data", type=Path, default=DATA / "cranfield", help="BEIR folder; Python's library without")
    arguments = parser.parse_args()
    documents, source = _documents(arguments.data)
    rows = [*_rows(documents)]
    print(
        heading(
            "Known items", data=f"{source}, {len(documents)} documents", packages=("numpy", "onnxruntime", "openvino")
        )
    )
    for url in arguments.engine:
        product = asyncio.run(_fill(url, documents))
        try:
            with gateway(url) as served, Client(url) as plain, Client(served.url) as through:
                clients = {name: plain if section is None else through for name, section in METHODS.items()}
                print(f"### {product}\n")
                print(table(["first hit is right", "queries", *METHODS], (_shares(row, clients) for row in rows)))
                print(table(["besides the words", *METHODS], _besides(documents, clients)))
        finally:
            asyncio.run(_clear(url))


def _documents(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the documents with their codes, and where their texts come from."""
    draw = random.Random(0)
    collection = load_collection(folder, split="test") if folder.exists() else stdlib.generate()
    documents: list[dict[str, Any]] = []
    for one in collection.documents:
        if len(one.text) < 200 or len(documents) == DOCUMENTS:
            continue
        letters = "".join(draw.choices(_LETTERS, k=3))
        first, last = draw.choice(_FIRST), draw.choice(_LAST) + draw.choice(("", "-Meyer", "-Rossi", "-Silva"))
        documents.append(
            {
                "title": one.title,
                "text": one.text,
                "sku": f"{letters}-{draw.randrange(10_000, 99_999)}",
                "number": str(draw.randrange(10**7, 10**8)),
                "code": f"{letters[::-1]}/{draw.randrange(100, 999)}-{draw.randrange(10, 99)} E{draw.randrange(10**6)}",
                "contact": f"{first} {last} {len(documents):03}",
                "email": f"{first}.{last}{len(documents)}@example.org".lower(),
            }
        )
    for words in (_GERMAN, _JAPANESE):
        for number in range(30):
            name = "".join(draw.choice(part) for part in words)
            text = f"{name} {number}: " + ("Im Lager, sofort lieferbar" if words is _GERMAN else "在庫あり、すぐに発送")
            documents.append({"title": name, "text": text})
    for document in documents:
        document["date"] = f"2026-{draw.randrange(1, 12):02}-{draw.randrange(1, 29):02}"
        document["demoted"] = draw.random() < 0.2
    return documents, collection.name


def _rows(documents: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    draw = random.Random(1)
    abstracts = [place for place, document in enumerate(documents) if "sku" in document]
    chosen = draw.sample(abstracts, min(QUERIES, len(abstracts)))
    by_word: defaultdict[str, set[int]] = defaultdict(set)
    for place in abstracts:
        for word in _words(documents[place]):
            by_word[word].add(place)

    def in_fields(*fields: str, **options: Any) -> Callable[[str], Mapping[str, Any]]:
        return lambda text: {"multi_match": {"query": text, "fields": ["title", "text", *fields], **options}}

    def of_field(field: str, query: Callable[[str], Mapping[str, Any]], word: int | None = None) -> Any:
        for place in chosen:
            text = documents[place][field]
            yield query, text if word is None else text.split()[word], {place}

    def of_words(least: int, most: int, query: Callable[[str], Mapping[str, Any]], wrong: bool = False) -> Any:
        words = sorted(word for word, places in by_word.items() if least <= len(places) <= most and len(word) > 5)
        for word in draw.sample(words, min(QUERIES, len(words))):
            text = word[:3] + ("q" if word[3] != "q" else "x") + word[4:] if wrong else word
            yield query, text, by_word[word]

    def beside(words: int, code: Callable[[int], str], query: Callable[[str], Mapping[str, Any]]) -> Any:
        for place in chosen:
            own = sorted(_words(documents[place]))
            yield query, " ".join([*draw.sample(own, words), code(place)]), {place}

    text = in_fields()
    yield _row("part number, a keyword field", of_field("sku", in_fields("sku")))
    yield _row("digits alone, a keyword field", of_field("number", in_fields("number")))
    yield _row("part number with a slash, analysed", of_field("code", in_fields("code"), 0))
    yield _row("error code, analysed", of_field("code", in_fields("code"), 1))
    yield _row("two words and a part number", beside(2, lambda place: documents[place]["code"].split()[0],
                                                     in_fields("code")))  # fmt: skip
    yield _row("a name", of_field("contact", in_fields("contact")))
    yield _row("an e-mail address", of_field("email", in_fields("email")))
    yield _row("a word of one document", of_words(1, 1, text))
    yield _row("a word of two to four", of_words(2, 4, text))
    yield _row("a word of five to twelve", of_words(5, 12, text))
    rare = {place: word for word, (place, *others) in sorted(by_word.items()) if not others and len(word) > 5}
    common = sorted(word for word, places in by_word.items() if len(places) > len(abstracts) / 20)
    pairs = [(text, f"{draw.choice(common)} {rare[place]}", {place}) for place in chosen if place in rare]
    yield _row("a rare word beside a common one", pairs)
    yield _row("a word with one wrong letter, fuzziness AUTO", of_words(1, 1, in_fields(fuzziness="AUTO"), wrong=True))
    yield _row("a quoted phrase", _phrases(documents, chosen))
    for name, start in (("a German compound", DOCUMENTS), ("a Japanese name", DOCUMENTS + 30)):
        titles = defaultdict(set)
        for place, document in enumerate(documents):
            if "sku" not in document and (document["text"].isascii() or "Lager" in document["text"]) == (
                start == DOCUMENTS
            ):
                titles[document["title"]].add(place)
        yield _row(name, [(text, title, places) for title, places in titles.items()])


def _row(name: str, queries: Iterable[tuple[Callable[[str], Mapping[str, Any]], str, set[int]]]) -> Row:
    return Row(name, [(query(text), text, frozenset(map(str, places))) for query, text, places in queries])


def _phrases(documents: Sequence[Mapping[str, Any]], chosen: Sequence[int]) -> Any:
    def query(text: str) -> Mapping[str, Any]:
        return {"query_string": {"query": f'"{text}"', "fields": ["title", "text"]}}

    for place in chosen:
        words = re.findall(r"\w+", documents[place]["text"].lower())
        phrase = " ".join(words[10:14])
        places = {number for number, one in enumerate(documents) if phrase in _plain(one)}
        if places:
            yield query, phrase, places


def _plain(document: Mapping[str, Any]) -> str:
    return " ".join(re.findall(r"\w+", f"{document['title']} {document['text']}".lower()))


def _words(document: Mapping[str, Any]) -> set[str]:
    return {word for word in _plain(document).split() if word.isalpha() and len(word) > 3}


def _shares(row: Row, clients: Mapping[str, Client]) -> list[str]:
    right = dict.fromkeys(METHODS, 0)
    for query, text, ids in row.queries:
        for name, client in clients.items():
            hits = _hits(client, name, query, text, 1)
            right[name] += bool(hits) and hits[0]["_id"] in ids
    return [row.name, str(len(row.queries)), *(f"{count / len(row.queries):.2f}" for count in right.values())]


def _besides(documents: Sequence[Mapping[str, Any]], clients: Mapping[str, Client]) -> Iterator[list[str]]:
    """Yield a row of the demoted documents among the first 20 of 40 queries, and one of the median age of ten hits."""
    draw = random.Random(2)
    texts = [" ".join(draw.sample(sorted(_words(one)), 3)) for one in draw.sample(documents[:DOCUMENTS], 40)]

    def words(text: str) -> dict[str, Any]:
        return {"multi_match": {"query": text, "fields": ["title", "text"]}}

    def demoted(text: str) -> Mapping[str, Any]:
        return {"boosting": {"positive": words(text), "negative": {"term": {"demoted": True}}, "negative_boost": 0.1}}

    def recent(text: str) -> Mapping[str, Any]:
        decay = {"gauss": {"date": {"origin": "2026-11-28", "scale": "10d"}}}
        return {"function_score": {"query": words(text), "functions": [decay]}}

    counts, ages = [], []
    for name, client in clients.items():
        found = [hit for text in texts for hit in _hits(client, name, demoted(text), text, 20)]
        counts.append(str(sum(documents[int(hit["_id"])]["demoted"] for hit in found)))
        found = [hit for text in texts for hit in _hits(client, name, recent(text), text, 10)]
        ages.append(f"{statistics.median(_age(documents[int(hit['_id'])]['date']) for hit in found):.0f}")
    yield ["documents demoted to a tenth among the first 20 of 40 queries", *counts]
    yield ["median age of the first ten under a decay of ten days, days", *ages]


def _age(date: str) -> int:
    month, day = int(date[5:7]), int(date[8:])
    return (11 - month) * 30 + 28 - day


def _hits(client: Client, name: str, query: Mapping[str, Any], text: str, size: int) -> list[dict[str, Any]]:
    section = METHODS[name]
    ours = {} if section is None else {"rescore": {"window_size": WINDOW, "ttc": {"query_text": text, **section}}}
    asked = 2 * WINDOW if name == "RRF" else size
    answer = client.search(orjson.dumps({"query": query, "size": asked, "_source": False, **ours}), INDEX)
    assert answer.get("ttc", {"applied": True})["applied"], answer["ttc"]
    hits: list[dict[str, Any]] = answer["hits"]["hits"]
    return _fused(hits)[:size] if name == "RRF" else hits


def _fused(hits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return hits in the order of reciprocal rank fusion alone, of the first pass and the cosines of vectors."""
    hits = [hit for hit in hits if "signals" in hit["_ttc"]]  # without those after the window
    cosines = sorted((hit["_ttc"]["signals"]["dense"]["score"] for hit in hits), reverse=True)

    def fused(hit: Mapping[str, Any]) -> float:
        detail = hit["_ttc"]
        by_words = 0 if detail["first_pass_rank"] is None else 1 / (RRF_K + detail["first_pass_rank"])
        return by_words + 1 / (RRF_K + 1 + cosines.index(detail["signals"]["dense"]["score"]))

    return sorted(hits, key=fused, reverse=True)


async def _fill(url: str, documents: Sequence[Mapping[str, Any]]) -> str:
    async with opened(url) as engine:
        await _cleared(engine)
        await engine.create_index(INDEX, _MAPPING)
        lines = [
            line
            for place, document in enumerate(documents)
            for line in (orjson.dumps({"index": {"_id": str(place)}}), orjson.dumps(document))
        ]
        await bulk(engine, INDEX, lines)
        await engine.refresh(INDEX)
        encoder = load_encoder(ENCODER)
        [source] = await Index.behind(engine, INDEX)
        await attach_beside(engine, source, IndexSpec(encoder.identity, text_fields=("title", "text")), encoder)
        capabilities = await engine.capabilities()
        return f"{capabilities.product} {capabilities.version}"


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await _cleared(engine)


async def _cleared(engine: Any) -> None:
    if await engine.exists(INDEX):
        for traces in await traces_of(engine, INDEX):
            await detach(engine, traces)
    await delete(engine, INDEX)


if __name__ == "__main__":
    main()
