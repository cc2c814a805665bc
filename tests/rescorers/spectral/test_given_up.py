"""Norms that are computed are kept as long as their document; a call that nobody waits for ends between documents."""

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from es_ttc.common.cancellable_calls import Call
from es_ttc.errors import DeadlineExceeded
from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.spectral import norms
from es_ttc.rescorers.spectral.greatest import greatest_by_scale, greatest_cosines
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.rescorers.spectral.rescorer import SpectralRescorer
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

SCALES = (1, 3.0, 10.0, float("inf"))


def window(count: int) -> list[TokenVectors]:
    rng = np.random.default_rng(3)
    documents = [rng.standard_normal((20 + number, 16)).astype(np.float32) for number in range(count)]
    return [TokenVectors((one / np.linalg.norm(one, axis=1, keepdims=True)).astype(np.float32)) for one in documents]


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("score", [greatest_cosines, greatest_by_scale])
@pytest.mark.parametrize("stored", [True, False])
def test_a_call_that_was_given_up_ends(score: Any, stored: bool, loops: bool) -> None:
    compiled.enable(loops)
    documents, vectors = window(6), window(1)[0].values[:2]
    own = [norms.scale_norms(dequantise(one), SCALES) for one in documents] if stored else None
    expected = score(vectors, documents, own, SCALES)
    call = Call()
    np.testing.assert_array_equal(call.run(lambda: score(vectors, documents, own, SCALES)), expected)
    call.give_up()
    with pytest.raises(DeadlineExceeded):
        call.run(lambda: score(vectors, window(6), own, SCALES))


def test_computed_norms_are_kept_with_their_document(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = norms.scale_norms

    def counted(tokens: Float32, scales: Sequence[float]) -> ScaleNorms:
        computed.append(len(tokens))
        return compute(tokens, scales)

    monkeypatch.setattr(norms, "scale_norms", counted)
    documents, before = window(3), len(norms._kept)
    empty = [ScaleNorms((), np.zeros((0, len(one)), np.float32)) for one in documents]
    for _ in range(3):
        for one, nothing in zip(documents, empty, strict=True):
            found = norms.norms_of_scales(one, None, SCALES[1:])
            np.testing.assert_array_equal(norms.norms_of_scales(one, nothing, SCALES[1:]), found)
            np.testing.assert_array_equal(found, compute(dequantise(one), SCALES[1:]).values)
    assert computed == [20, 21, 22]
    del documents, one
    gc.collect()
    assert len(norms._kept) == before


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("params", [{}, {"pool": "mean"}, {"aggregation": "top_mean"}], ids=str)
def test_norms_that_are_not_those_of_the_vectors_are_computed(params: dict[str, Any], loops: bool) -> None:
    compiled.enable(loops)
    documents = window(4)
    own = [norms.scale_norms(dequantise(one), SCALES) for one in documents]
    forged = [ScaleNorms(one.scales, np.full_like(one.values, 1e-30)) for one in own]
    query = Query("", np.eye(1, 16, dtype=np.float32))
    ids, first = [str(place) for place in range(4)], np.zeros(4, np.float32)
    asked = SpectralParams(scales=SCALES, **params)
    expected, got = (
        SpectralRescorer().score(query, Window(ids, first, tokens=documents, norms=some), asked)
        for some in (own, [own[0], *forged[1:]])
    )
    np.testing.assert_allclose(got, expected, atol=1e-6)
