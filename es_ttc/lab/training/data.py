"""A collection for training: vectors, and the relevant documents of each query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from es_ttc.encoders.base import Encoder, Role
from es_ttc.encoders.heads import Head
from es_ttc.errors import ConfigurationError
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, sample, splits
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.vectors.tokens import Float32

TRAIN, VALID, TEST = "train", ("valid", "dev", "validation"), "test"
HELD_OUT = 0.2  # share of the train queries that replaces a missing validation split, as in the paper for ToolLens

Places = NDArray[np.intp]


@dataclass(frozen=True)
class TrainingQueries:
    """Queries, ``(q, d)`` float32 unit rows, each with the positions of its relevant documents, one or more."""

    texts: Sequence[str]
    vectors: Float32
    relevant: Sequence[Places]

    def __len__(self) -> int:
        return len(self.relevant)

    def part(self, places: Places) -> "TrainingQueries":
        """Return some of them."""
        return TrainingQueries(
            [self.texts[place] for place in places],
            self.vectors[places],
            [self.relevant[place] for place in places],
        )

    def mask(self, documents: int, places: Places | None = None) -> Tensor:
        """Return the relevant documents, ``(b, documents)`` bool, of some queries or all."""
        requested = range(len(self)) if places is None else places
        mask = torch.zeros(len(requested), documents, dtype=torch.bool)
        for row, place in enumerate(requested):
            mask[row, self.relevant[place]] = True
        return mask


@dataclass(frozen=True)
class TrainingTask:
    """A collection for training: documents ``(n, d)`` float32 unit rows, train queries, test queries if any.

    `valid` are the queries that select the epoch, never test queries. `texts` are the encoded ones; empty if only
    vectors are available.
    """

    name: str
    documents: Float32
    train: TrainingQueries
    valid: TrainingQueries
    test: TrainingQueries | None = None
    held_out: bool = False
    texts: Sequence[str] = ()

    @property
    def dims(self) -> int:
        """Components of a vector."""
        return int(self.documents.shape[1])

    def mapped(self, heads: Mapping[Role, Head]) -> "TrainingTask":
        """Return the same collection with vectors mapped by heads, for further training."""

        def through(questions: TrainingQueries) -> TrainingQueries:
            return replace(questions, vectors=heads["query"](questions.vectors))

        return replace(
            self,
            documents=heads["document"](self.documents),
            train=through(self.train),
            valid=through(self.valid),
            test=None if self.test is None else through(self.test),
        )


def load_task(
    folder: Path,
    encoder: Encoder,
    *,
    seed: int,
    train_split: str = TRAIN,
    most_queries: int | None = None,
    progress: ReportStage = silent,
) -> TrainingTask:
    """Read a BEIR folder and encode it."""
    train, valid, own = judged_parts(folder, seed=seed, train_split=train_split, most_queries=most_queries)
    documents = _vectors(train, encoder, progress)
    to_learn, to_select = (_questions(collection, encoder, progress) for collection in (train, valid))
    test = None
    if TEST in splits(folder) and train_split != TEST:
        test = _questions(load_collection(folder, TEST), encoder, progress)
    if not len(to_learn) or not len(to_select):
        raise ConfigurationError(f"[{folder}] has too few judged train queries: {len(train.queries)}")
    return TrainingTask(train.name, documents, to_learn, to_select, test, own, collection_texts(train))


def judged_parts(
    folder: Path, *, seed: int, train_split: str = TRAIN, most_queries: int | None = None
) -> tuple[Collection, Collection, bool]:
    """Return the collection with its train queries, with its validation queries, and whether these are held out."""
    found = splits(folder) if folder.is_dir() else []
    if folder.is_dir() and found and train_split not in found:
        raise ConfigurationError(
            f"[{folder}] has no split [{train_split}] to learn from: it has {', '.join(found)} (qrels/{TRAIN}.tsv)"
        )
    train = load_collection(folder, train_split)
    if most_queries is not None:
        train = sample(train, most_queries, seed)
    named = next((name for name in VALID if name in found), None)
    if named is None:
        return *held_out_questions(train, seed), True
    return train, load_collection(folder, named), False


def held_out_questions(collection: Collection, seed: int, share: float = HELD_OUT) -> tuple[Collection, Collection]:
    """Return a collection split at random into a training and a validation part."""
    queries = sorted(collection.queries)
    _, places = held_out_places(len(queries), seed, share)
    chosen = {queries[place] for place in places}
    return only(collection, set(queries) - chosen), only(collection, chosen)


def held_out_places(count: int, seed: int, share: float = HELD_OUT) -> tuple[Places, Places]:
    """Return the positions of the training and of the validation part, drawn at random."""
    order: Places = np.random.default_rng(seed).permutation(count)
    first = max(1, round(share * count))
    return np.sort(order[first:]), np.sort(order[:first])


def questions_of(
    collection: Collection, encoder: Encoder, progress: ReportStage = silent
) -> tuple[TrainingQueries, Float32]:
    """Return a collection's queries, and its documents' vectors, ``(n, d)``."""
    return _questions(collection, encoder, progress), _vectors(collection, encoder, progress)


def _vectors(collection: Collection, encoder: Encoder, progress: ReportStage) -> Float32:
    spec = IndexSpec(encoder.identity, text_fields=collection.text_fields, tokens="none")
    return encode_corpus(collection.documents, spec, encoder, progress).pooled


def collection_texts(collection: Collection) -> list[str]:
    """Return the documents' texts as they are encoded."""
    return [compose(document.source, collection.text_fields)[0] for document in collection.documents]


def relevant_places(collection: Collection) -> dict[str, Places]:
    """Return by query the positions of its relevant documents in the corpus; queries without one are left out."""
    place = {document.id: number for number, document in enumerate(collection.documents)}
    found = {
        query: sorted(place[one] for one, grade in collection.qrels[query].items() if grade > 0 and one in place)
        for query in collection.queries
    }
    return {query: np.array(places, np.intp) for query, places in found.items() if places}


def _questions(collection: Collection, encoder: Encoder, progress: ReportStage) -> TrainingQueries:
    """Return the queries with a relevant document in the corpus."""
    relevant = relevant_places(collection)
    texts = [collection.queries[query] for query in relevant]
    encoded = encode_queries(texts, encoder, tokens=False, progress=progress)
    vectors = np.concatenate([query.vectors for query in encoded]) if encoded else np.zeros((0, 0), np.float32)
    return TrainingQueries(texts, vectors, list(relevant.values()))
