"""The compiled loops against numpy, on everything that a window may hold."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Params, Query, Rescorer, Window
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer, greatest, scale_norms
from es_ttc.vectors.tokens import CODECS, Codec, Float32, ScaleNorms, TokenVectors
from tests.rescorers.windows import query_of, random_documents, unit_rows, window_of

SPECTRAL, MAXSIM = SpectralRescorer(), MaxSimRescorer()
GRIDS: Sequence[tuple[float, ...]] = (
    DEFAULT_SCALES,
    (*DEFAULT_SCALES, math.inf),
    (1.0,),
    (math.inf,),
    (4.0,),
    (2.5, 7.0),
    (1.0, 3.0, math.inf),
)


def both(rescorer: Rescorer[Any], query: Query, window: Window, params: Params) -> tuple[Float32, Float32]:
    compiled.enable(False)
    by_numpy = rescorer.score(query, window, params)
    assert compiled.enable()
    return by_numpy, rescorer.score(query, window, params)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are split as large ones are."""
    monkeypatch.setattr(greatest, "_LEAST_PART", 1)
    monkeypatch.setattr(greatest, "processor_count", lambda: 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 400)), max_size=9),
    codec=st.sampled_from(CODECS),
    scales=st.sampled_from(GRIDS),
    roles=st.integers(1, 3),
    stored=st.booleans(),
)
def test_scores_are_the_same(
    seed: int, lengths: list[int], codec: Codec, scales: tuple[float, ...], roles: int, stored: bool, small_parts: None
) -> None:
    random = np.random.default_rng(seed)
    window = window_of(random_documents(random, lengths, 48, codec), scales if stored else None)
    query = query_of(unit_rows(random, roles, 48))
    found = both(SPECTRAL, query, window, SpectralParams(scales=scales))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)
    for params in (MaxSimParams(), MaxSimParams(query="tokens")):
        late = query_of(query.vectors, unit_rows(random, 3, 48))
        np.testing.assert_allclose(*both(MAXSIM, late, window, params), rtol=0, atol=1e-6)


def test_one_window_may_hold_every_codec_and_arrays_of_any_layout() -> None:
    random = np.random.default_rng(1)
    documents = [document for codec in CODECS for document in random_documents(random, [70], 64, codec)]
    wide = unit_rows(random, 60, 128)
    shifted = np.frombuffer(b"\0" + wide[:50, :64].tobytes(), np.uint8)[1:].view(np.float32).reshape(50, 64)
    assert not shifted.flags.aligned
    assert not shifted.flags.writeable
    documents += [TokenVectors(wide[:, ::2]), TokenVectors(wide[::3, 64:]), TokenVectors(shifted)]
    window = window_of(documents, DEFAULT_SCALES)
    assert window.norms is not None
    transposed = [
        ScaleNorms(norms.scales, np.asfortranarray(norms.values), norms.ranges)  # type: ignore[arg-type]
        for norms in window.norms
    ]
    query = query_of(unit_rows(random, 1, 64))
    for norms in (window.norms, transposed):
        asked = Window(window.ids, window.first_pass, tokens=documents, norms=norms)
        np.testing.assert_allclose(*both(SPECTRAL, query, asked, SpectralParams()), rtol=0, atol=1e-6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 400)), max_size=9),
    codec=st.sampled_from(CODECS),
    scales=st.sampled_from(GRIDS),
    query_tokens=st.sampled_from([0, 1, 7, 40]),
    stored=st.booleans(),
    params=st.sampled_from([{"pool": "mean"}, {"pool": "softmax", "temperature": 0.1}, {"pool": "max"}]),
)
def test_pooled_scores_are_the_same(
    seed: int,
    lengths: list[int],
    codec: Codec,
    scales: tuple[float, ...],
    query_tokens: int,
    stored: bool,
    params: dict[str, Any],
    small_parts: None,
) -> None:
    random = np.random.default_rng(seed)
    documents = random_documents(random, lengths, 24, codec)
    query = query_of(unit_rows(random, 2, 24), unit_rows(random, query_tokens, 24))
    window = window_of(documents, DEFAULT_SCALES if stored else None)
    for read in ("pooled", "tokens"):
        asked = SpectralParams(scales=scales, query=read, **params)
        np.testing.assert_allclose(*both(SPECTRAL, query, window, asked), rtol=0, atol=1e-6)


def test_scores_by_scale_are_those_of_each_scale_alone() -> None:
    random = np.random.default_rng(12)
    documents = random_documents(random, [200, 3, 0, 90], 32, "int8")
    vectors, scales = unit_rows(random, 2, 32), (1.0, 3.0, 7.0, math.inf)
    for loops in (False, True):
        compiled.enable(loops)
        found = greatest.greatest_by_scale(vectors, documents, None, scales)
        assert found.shape == (4, 2, 4)
        for place, scale in enumerate(scales):
            alone = greatest.greatest_cosines(vectors, documents, None, (scale,))
            np.testing.assert_allclose(found[:, :, place], alone, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(found.max(axis=2), greatest.greatest_cosines(vectors, documents, None, scales))


def test_a_long_document_beside_short_ones() -> None:
    random = np.random.default_rng(2)
    documents = random_documents(random, [20_000, 3, 700, 1, 0, 5000, 701], 32, "int8")
    query = query_of(unit_rows(random, 2, 32))
    np.testing.assert_allclose(
        *both(SPECTRAL, query, window_of(documents, DEFAULT_SCALES), SpectralParams()), rtol=0, atol=1e-6
    )


def test_rows_that_vanish_have_no_direction_in_either() -> None:
    random = np.random.default_rng(3)
    one = unit_rows(random, 1, 16)
    tokens = TokenVectors(np.concatenate([one, -one] * 8).astype(np.float32))
    query = query_of(one)
    params = SpectralParams(scales=(1, 2, "mean"))
    np.testing.assert_allclose(*both(SPECTRAL, query, window_of([tokens]), params), rtol=0, atol=1e-6)


def test_a_document_scores_the_same_in_any_company() -> None:
    random = np.random.default_rng(4)
    documents = random_documents(random, [64] * 40 + [63, 65], 32, "int8")
    query = query_of(unit_rows(random, 1, 32))
    assert compiled.enable()
    together = SPECTRAL.score(query, window_of(documents, DEFAULT_SCALES), SpectralParams())
    alone = [SPECTRAL.score(query, window_of([one], DEFAULT_SCALES), SpectralParams())[0] for one in documents]
    np.testing.assert_array_equal(together, np.array(alone, dtype=np.float32))


@settings(max_examples=40)
@given(data=st.data())
def test_documents_that_come_again_are_read_anew(data: st.DataObject) -> None:
    """What is remembered of a document is what it was: other norms, none, other scales and other documents count."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    documents = random_documents(random, [40, 7, 23], 32, data.draw(st.sampled_from(["float32", "int8"])))
    query = query_of(unit_rows(random, 1, 32))
    for _ in range(6):
        turn = data.draw(st.sampled_from(["stored", "halved", "none", "maxsim", "replaced"]))
        scales = data.draw(st.sampled_from(GRIDS))
        window = window_of(documents, None if turn == "none" else scales)
        if turn == "halved":
            assert window.norms is not None
            halved = [ScaleNorms(each.scales, each.values * np.float32(2)) for each in window.norms]
            window = Window(window.ids, window.first_pass, tokens=documents, norms=halved)
        if turn == "replaced":
            documents[1:] = random_documents(random, [7, 30], 32, "float32")
            window = window_of(documents, scales)
        rescorer, params = (MAXSIM, MaxSimParams()) if turn == "maxsim" else (SPECTRAL, SpectralParams(scales=scales))
        np.testing.assert_allclose(*both(rescorer, query, window, params), rtol=0, atol=1e-6)


def test_nothing_is_remembered_of_a_document_that_is_gone() -> None:
    random = np.random.default_rng(8)
    query = query_of(unit_rows(random, 1, 32))
    assert compiled.enable()
    from es_ttc.rescorers.compiled import window

    documents = random_documents(random, [20] * 50, 32, "int8")
    before = len(window._rows)
    SPECTRAL.score(query, window_of(documents, DEFAULT_SCALES), SpectralParams())
    assert len(window._rows) == before + 50
    del documents
    assert len(window._rows) == before


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_without_any_token_there_is_nothing_to_do(lengths: list[int]) -> None:
    random = np.random.default_rng(5)
    window = window_of(random_documents(random, lengths, 8))
    by_numpy, by_loops = both(SPECTRAL, query_of(unit_rows(random, 1, 8)), window, SpectralParams())
    assert by_numpy.tolist() == by_loops.tolist() == [-1.0] * len(lengths)


@pytest.mark.parametrize("rescorer", [SPECTRAL, MAXSIM])
def test_vectors_of_another_model_are_refused(rescorer: Rescorer[Any]) -> None:
    random = np.random.default_rng(6)
    window = window_of([*random_documents(random, [4], 8), *random_documents(random, [4], 12)])
    assert compiled.enable()
    with pytest.raises(ValueError, match=r"12 components.*8"):
        rescorer.score(query_of(unit_rows(random, 1, 8)), window, rescorer.Params())


def test_norms_of_another_document_are_refused() -> None:
    random = np.random.default_rng(7)
    window = window_of(random_documents(random, [4, 5], 8), DEFAULT_SCALES)
    assert window.norms is not None
    swapped = Window(window.ids, window.first_pass, tokens=window.tokens, norms=window.norms[::-1])
    assert compiled.enable()
    with pytest.raises(ValueError, match="norms of shape"):
        SPECTRAL.score(query_of(unit_rows(random, 1, 8)), swapped, SpectralParams())


@pytest.mark.parametrize("kept", [0, 10_000, 2**20])
def test_compiled_scores_of_concurrent_windows_are_the_same(
    kept: int, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of kernels begins anew beyond a number of bytes, while other windows are scored with it."""
    from es_ttc.rescorers.compiled.window import KernelTable

    monkeypatch.setattr(KernelTable, "MAX_BYTES", kept)
    random = np.random.default_rng(8)
    windows = [window_of(random_documents(random, [200, 17, 90, 90], 64, "int8"), DEFAULT_SCALES) for _ in range(8)]
    query = query_of(unit_rows(random, 1, 64))
    assert compiled.enable()
    alone = [SPECTRAL.score(query, window, SpectralParams()) for window in windows]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda window: SPECTRAL.score(query, window, SpectralParams()), windows * 20))
    for place, scores in enumerate(found):
        np.testing.assert_array_equal(scores, alone[place % 8])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 8, 11, 16, 22, 32, 43, 64, 86, 171, 342, 700, 1400])
def test_every_size_of_transform_smooths(length: int) -> None:
    """Sizes are 1 to 2,048, and three times a power of two: their steps of two, three and four all occur."""
    random = np.random.default_rng(length)
    documents = random_documents(random, [length], 24)
    vectors = unit_rows(random, 2, 24)
    compiled.enable(False)
    by_numpy = greatest.greatest_by_scale(vectors, documents, None, DEFAULT_SCALES)
    assert compiled.enable()
    by_loops = greatest.greatest_by_scale(vectors, documents, None, DEFAULT_SCALES)
    np.testing.assert_allclose(by_loops, by_numpy, rtol=0, atol=1e-6)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.one_of(st.integers(1, 70), st.integers(71, 600)),
    dims=st.one_of(st.integers(1, 40), st.just(96)),
    scales=st.sampled_from([*GRIDS, (3.0, 5.0, 9.0)]),
)
def test_norms_are_the_same(seed: int, length: int, dims: int, scales: tuple[float, ...]) -> None:
    tokens = unit_rows(np.random.default_rng(seed), length, dims)
    compiled.enable(False)
    by_numpy = scale_norms(tokens, scales).values
    assert compiled.enable()
    np.testing.assert_allclose(scale_norms(tokens, scales).values, by_numpy, rtol=0, atol=1e-6)


def test_norms_of_a_long_document_and_of_rows_with_gaps() -> None:
    tokens = unit_rows(np.random.default_rng(9), 9000, 40)[:, ::2]
    compiled.enable(False)
    by_numpy = scale_norms(tokens, DEFAULT_SCALES).values
    assert compiled.enable()
    np.testing.assert_allclose(scale_norms(tokens, DEFAULT_SCALES).values, by_numpy, rtol=0, atol=1e-6)
