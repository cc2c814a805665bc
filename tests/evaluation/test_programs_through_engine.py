"""A program's score for one query on an engine is the score that it gets in a batch over the same documents."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm_for_torch
from es_ttc.engine.connect import connected
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.calibration import calibrate
from es_ttc.lab.evaluation.datasets import Collection, Document, load_collection
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import GROUPS, resolve, resolve_one, retrieval
from es_ttc.lab.evaluation.plan import EvaluationPlan
from es_ttc.lab.evaluation.through_engine import engine_searcher, temporary_index
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.rescorers.programs.rescorers import ProgramParams, ProgramRescorer
from es_ttc.settings import EngineSettings
from es_ttc.vectors.moments import Moments
from tests.support.adapters import make_adapter

pytestmark = pytest.mark.engine

NAMES = (*(name for name in GROUPS["programs"] if name != "bidirzscore"), "softcentroid", "rocchio")


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Collection:
    """Three queries and twelve documents of LIMIT-small, one without text and one of several paragraphs among them."""
    shared: Path = request.getfixturevalue("shared_data")
    whole = load_collection(shared / "limit-small")
    kept = list(whole.queries)[::400]
    sentences = ". ".join(whole.documents[20].text.split(", "))
    return replace(
        whole,
        documents=(
            *whole.documents[:10],
            Document("long", "Likes", f"{sentences[:300]}.\n\n{sentences[300:]}."),
            Document("no text", "", ""),
        ),
        queries={query: whole.queries[query] for query in kept},
        qrels={query: whole.qrels[query] for query in kept},
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The real MiniLM with an adapter of one of the programs' names, encoding each text once."""
    cache = tmp_path_factory.mktemp("cache")
    folder = shutil.copytree(minilm_for_torch(FileHashes(cache)).folder, cache / "model")
    make_adapter(folder / "adapters" / "text-matching", 1, cache=cache)
    return CachedEncoder(load_encoder(f"{folder}@torch:float32"), cache / "encodings")


def test_alone_on_an_engine_as_in_a_batch(small: Collection, engine_url: str, encoder: Encoder) -> None:
    methods = tuple(
        resolve_one(name, {"lexical": "paper"} if "lexical" in resolve([name])[0].params.model_dump() else {})
        for name in NAMES
    )
    plan = EvaluationPlan(methods, window=None)
    spec = plan.spec(small, encoder)
    assert spec.chunks
    matching, plain = (encode_fn(encoder)(["rain"], adapter) for adapter in ("text-matching", "classification"))
    assert not np.allclose(matching, plain, atol=1e-2)  # so scores agree only where both paths have the adapter
    queries = encode_queries(list(small.queries.values()), encoder, tokens=False)
    texts = [compose(document.source, spec.text_fields)[0] for document in small.documents]
    features = encode_corpus(small.documents, spec, encoder)
    memory = MemorySearcher(small, texts, retrieval(methods), features, queries, window=None)
    settings = EngineSettings(engine=engine_url)
    with (
        temporary_index(settings, small, spec, encoder) as index,
        engine_searcher(settings, index, small, encoder, queries, first_pass="dense", window=None) as engine,
    ):
        for method in methods:
            assert isinstance(method.rescorer, ProgramRescorer)
            own, reference = memory.rank(method), engine.rank(method)
            for query in small.queries:
                expected = dict(zip(own.rankings[query], own.scores[query].tolist(), strict=False))
                found = dict(zip(reference.rankings[query], reference.scores[query].tolist(), strict=False))
                assert expected.keys() == {document.id for document in small.documents} - {"no text"}
                assert found.keys() >= expected.keys()
                scores = np.array([expected[document] for document in expected])
                shown = (1 + scores) / 2 if method.rescorer.similarity else scores - min(0, scores.min())
                np.testing.assert_allclose([found[document] for document in expected], shown, atol=1e-4)


def test_bidirzscore_alone_on_a_calibrated_engine_as_in_a_batch(
    small: Collection, engine_url: str, encoder: Encoder
) -> None:
    [method] = resolve(["bidirzscore"])
    assert isinstance(method.rescorer, ProgramRescorer)
    plan = EvaluationPlan((method,), window=None)
    spec = plan.spec(small, encoder)
    questions = list(small.queries.values())
    queries = encode_queries(questions, encoder, tokens=False)
    features = encode_corpus(small.documents, spec, encoder)
    present = np.flatnonzero(features.present)
    settings = EngineSettings(engine=engine_url)

    async def calibrated(name: str) -> Moments:
        async with connected(settings) as engine:
            return await calibrate(engine, name, [*questions, "Who likes rain?", " "], encoder)

    with temporary_index(settings, small, spec, encoder) as index:
        moments = asyncio.run(calibrated(index.name))
        assert moments.size == len(questions) + 1
        window = features.window(present, np.zeros(len(present), np.float32), method.needs)
        batch = method.rescorer.batch(queries, replace(window, calibration=moments), ProgramParams())
        own = method.rescorer.batch(queries, replace(window, calibration=None), ProgramParams())
        assert not np.allclose(batch, own, atol=1e-2)
        with engine_searcher(settings, index, small, encoder, queries, first_pass="dense", window=None) as engine:
            found = engine.rank(method)
        for query, row in zip(small.queries, batch, strict=True):
            shown = dict(zip(found.rankings[query], found.scores[query].tolist(), strict=False))
            expected = row - min(0, row.min())
            np.testing.assert_allclose([shown[features.ids[place]] for place in present.tolist()], expected, atol=1e-4)


def test_programs_say_what_they_need() -> None:
    for method in resolve(["programs"]):
        assert isinstance(method.params, ProgramParams)
        assert (Feature.CHUNKS in method.needs) == (method.name != "bidirzscore")
    assert Feature.ENCODER in resolve_one("diversedualctx").needs
    assert Feature.FIRST_PASS in resolve_one("lexhybridrrf").needs
    assert Feature.FIRST_PASS not in resolve_one("lexhybridrrf", {"lexical": "paper"}).needs
