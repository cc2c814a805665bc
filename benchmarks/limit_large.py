"""LIMIT with distractors: the 46 profiles and 1,000 queries of LIMIT-small among up to 50,000 profiles.

    python -m benchmarks.limit_large
    python -m benchmarks.limit_large --sizes 50000 --queries 1000

The recipe is that of LIMIT (Weller et al., arXiv 2508.21038, whose own 50,000 documents are not used): a distractor is
a person who likes 45 things, drawn at random from those that no query asks for. The things are those of LIMIT-small
that no query asks for, and the lists of `es-ttc demo`; LIMIT has some 850. Names are made. The largest corpus is
encoded once, without the disk cache, whose limit it may exceed; smaller ones hold the 46 and its first distractors.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase

import numpy as np
import Stemmer

from benchmarks.blend import DATA, METHODS, compared, first_queries, prepared
from benchmarks.common import heading, table
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.demo.files import read_lines, read_rows
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.datasets import Collection, Document, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.rescorers.base import Query

LIKES = 45
SEED = 2508_21038
METRICS = ("recall@2", "recall@10", "recall@100", "ndcg@10")
SHOWN = ("bm25", "dense", "spectral", "late", "RRF(b,d)", "blend")
QUESTION = re.compile(r"Who likes (.+)\?")
_STEMMER = Stemmer.Stemmer("english")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA / "limit-small", help="the BEIR folder of LIMIT-small")
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--sizes", type=int, nargs="+", default=[46, 1000, 7000], help="documents of each corpus")
    parser.add_argument("--queries", type=int, default=300, help="queries, drawn at random")
    parser.add_argument("--window", type=int, default=100, help="BM25's first documents, and as many nearest ones")
    arguments = parser.parse_args()
    small = load_collection(arguments.data)
    things = unasked(small)
    large = first_queries(enlarged(small, things, max(arguments.sizes)), arguments.queries)
    encoder = prepared(arguments.encoder)
    sizes = ", ".join(f"{size:,}" for size in arguments.sizes)
    described = f"{sizes} documents, {len(large.queries):,} queries, {len(things)} things of distractors"
    print(
        heading(f"LIMIT with distractors, {encoder.identity.model}", data=described, packages=("numpy", "onnxruntime"))
    )
    began = time.perf_counter()
    spec = IndexSpec(encoder.identity, text_fields=("text",), codec="int8")
    features = encode_corpus(large.documents, spec, encoder.uncached, _progress)
    print(f"{time.perf_counter() - began:.0f} s; cut: {features.truncated}", file=sys.stderr)
    queries = encode_queries(list(large.queries.values()), encoder, tokens=True)
    rows, differences = [], []
    for size in arguments.sizes:
        values = measured(large, features, queries, size, arguments.window)
        rows += [(f"{size:,}", name, *(f"{one.mean():.3f}" for one in found)) for name, found in values.items()]
        versus = (compared(values["blend"][-1], values[rival][-1]) for rival in SHOWN[:-1])
        differences.append((f"{size:,}", *(shown(one) for one in versus)))
        print(f"{size:,} documents ranked", file=sys.stderr, flush=True)
    print(table(("documents", "", *METRICS), rows))
    print("nDCG@10 of blend minus that of each other method:\n")
    print(table(("documents", *SHOWN[:-1]), differences))


def measured(
    large: Collection, features: CorpusFeatures, queries: Sequence[Query], size: int, window: int
) -> dict[str, Float64]:
    """Return each method's metrics of every query, ``(4, q)``, in the corpus of so many documents."""
    judged = {document for relevant in large.qrels.values() for document in relevant}
    distractors = [document for document in large.documents if document.id not in judged]
    kept = judged | {document.id for document in distractors[: size - len(judged)]}
    places = [place for place, document in enumerate(large.documents) if document.id in kept]
    collection = replace(large, documents=tuple(large.documents[place] for place in places))
    own = replace(
        features,
        ids=[features.ids[place] for place in places],
        present=features.present[places],
        pooled=features.pooled[places],
        tokens=[features.tokens[place] for place in places],
        norms=[features.norms[place] for place in places],
    )
    texts = [document.text for document in collection.documents]
    searcher = MemorySearcher(collection, texts, retrieval(()), own, queries, window=window)
    methods = {name: resolve_one(*METHODS[name]) for name in SHOWN}
    return {name: _values(collection, searcher.rank(method).rankings) for name, method in methods.items()}


def shown(one: Comparison) -> str:
    """Return a difference with its 95 % interval."""
    return f"{one.delta:+.3f} ({one.interval.low:+.3f} to {one.interval.high:+.3f})"


def unasked(small: Collection) -> list[str]:
    """Return what distractors may like: nothing that answers a query, its stems being among the thing's."""
    asked = [_stems(text) for text in map(_asked, small.queries.values())]
    listed = [thing for document in small.documents for thing in _likes(document)]
    own = [*read_lines("fillers.txt"), *(phrase for phrase, _ in read_rows("concepts.tsv"))]
    things = dict.fromkeys([*listed, *(thing.title() for thing in own)])
    return sorted(thing for thing in things if not any(words <= _stems(thing) for words in asked))


def enlarged(small: Collection, things: Sequence[str], documents: int) -> Collection:
    """Return the collection with distractors among its documents, in a random order."""
    choices = random.Random(SEED)
    taken = {document.id for document in small.documents}
    given, family = zip(*read_rows("names.tsv"), strict=True)
    made: list[Document] = []
    while len(small.documents) + len(made) < documents:
        first, last = choices.choice(given), choices.choice(family)
        name = f"{first} {choices.choice(ascii_uppercase)}. {choices.choice(ascii_uppercase)}. {last}"
        if name not in taken:
            taken.add(name)
            likes = choices.sample(things, LIKES)
            made.append(Document(name, "", f"{name} likes {', '.join(likes[:-1])} and {likes[-1]}."))
    every = [*small.documents, *made]
    choices.shuffle(every)
    return replace(small, name="limit-large", documents=tuple(every))


def _asked(query: str) -> str:
    found = QUESTION.fullmatch(query)
    assert found is not None
    return found[1]


def _likes(document: Document) -> list[str]:
    listed = document.text.partition(" likes ")[2].removesuffix(".").split(", ")
    return [*listed[:-1], *listed[-1].rsplit(" and ", 1)]


def _stems(text: str) -> frozenset[str]:
    return frozenset(_STEMMER.stemWords(re.findall(r"\w+", text.lower())))


def _values(collection: Collection, rankings: Mapping[str, Sequence[str]]) -> Float64:
    judged = {query: collection.qrels[query] for query in collection.queries}
    return np.stack([score_by(metric, judged, rankings) for metric in METRICS])


def _progress(what: str, done: int, total: int) -> None:
    if done % 2048 < 64:
        print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
