"""The map of a document: the cosines that the scores are taken from, within the width of a byte's step."""

from base64 import b64decode
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from es_ttc.rescorers.base import Query
from es_ttc.rescorers.evidence_map import MAX_CELLS, Cells, evidence_map
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer
from es_ttc.vectors.quantise import dequantise, quantise
from tests.rescorers.reference import cosines
from tests.rescorers.windows import unit_rows, window_of

Offsets = NDArray[np.int32]


def places(fields: list[int], special: set[int]) -> Offsets:
    """Tokens of four characters and a space in these fields; special ones have no characters."""
    starts = [5 * fields[:place].count(field) for place, field in enumerate(fields)]
    return np.array(
        [
            [field, start, start + 4 * (place not in special)]
            for place, (field, start) in enumerate(zip(fields, starts, strict=True))
        ],
        np.int32,
    ).reshape(-1, 3)


def values(part: dict[str, Any], columns: int) -> NDArray[np.float64]:
    """The cosines of a part, ``(r, c)``, as a client reads them."""
    levels = np.frombuffer(b64decode(part["values"]), np.uint8).reshape(-1, columns)
    return float(part["low"]) + levels / 255 * float(part["high"] - part["low"])


def greatest(part: dict[str, Any], columns: int) -> NDArray[np.float64]:
    """Each row's greatest cosine, also at tokens without text."""
    return np.array(np.maximum(values(part, columns).max(axis=1), part.get("elsewhere", -1.0)))


@given(st.integers(1, 90), st.integers(0, 90), st.integers(1, 3), st.integers(0, 2**16), st.booleans())
def test_the_greatest_cosines_of_a_map_are_the_scores(
    length: int, title: int, texts: int, seed: int, norms: bool
) -> None:
    random = np.random.default_rng(seed)
    document = quantise(unit_rows(random, length, 16), "int8")
    spans = np.array([[0, 0], [0, 5], [6, 7]], np.int32)
    query = Query("which c", unit_rows(random, texts, 16), unit_rows(random, 3, 16), token_spans=spans)
    fields = [0] * min(title, length) + [1] * max(0, length - title)
    special = set(random.choice(length, random.integers(0, length), replace=False).tolist())
    offsets = places(fields, special)
    params = SpectralParams(scales=(*DEFAULT_SCALES, "mean"))
    window = window_of([document], params.scales[1:] if norms else None)
    stored = None if window.norms is None else window.norms[0]

    shown = orjson.loads(orjson.dumps(evidence_map(query, document, stored, offsets, params.scales)))
    cells = [tuple(row) for row in offsets.tolist() if row[2] > row[1]]
    assert [*zip(*(shown["tokens"][key] for key in ("field", "start", "end")), strict=True)] == cells
    assert shown["tokens_per_cell"] == 1
    assert shown["spectral"]["scales"] == [*DEFAULT_SCALES, "mean"]
    assert shown["late"]["query_tokens"] == [None, "which", "c"]
    for name, score in (
        ("spectral", SpectralRescorer().score(query, window, params)[0]),
        ("late", MaxSimRescorer().score(query, window, MaxSimParams(query="tokens"))[0]),
    ):
        part = shown[name]
        assert ("elsewhere" in part) == bool(special)
        step = (part["high"] - part["low"]) / 255 + 1e-5
        found = greatest(part, len(cells))
        assert (found.max() if name == "spectral" else found.mean()) == pytest.approx(score, abs=step)
    rows, text = dequantise(document).astype(float), [place for place in range(length) if place not in special]
    step = (shown["spectral"]["high"] - shown["spectral"]["low"]) / 255
    for scale, row in zip(params.scales, values(shown["spectral"], len(cells)), strict=True):
        exact = np.max([cosines(one.astype(float), rows, scale) for one in query.vectors], axis=0)
        np.testing.assert_allclose(row, exact[text], atol=step / 2 + 2e-4)


def test_a_long_document_has_several_tokens_in_a_column_and_keeps_the_greatest() -> None:
    random = np.random.default_rng(1)
    fields = [0] * 7 + [1] * (3 * MAX_CELLS)
    offsets = places(fields, {0, 7, 1000})
    document = quantise(unit_rows(random, len(fields), 8), "float32")
    query = Query("q", unit_rows(random, 1, 8))
    shown = evidence_map(query, document, None, offsets, (1.0,))
    columns = shown["tokens"]
    assert shown["tokens_per_cell"] == 4
    assert (6 + 3 * MAX_CELLS - 2) / 4 <= len(columns["field"]) <= MAX_CELLS + 2
    assert "late" not in shown
    exact = document.values @ query.vectors[0]
    [row] = values(shown["spectral"], len(columns["field"]))
    text = offsets[:, 2] > offsets[:, 1]
    for value, field, start, end in zip(row, *columns.values(), strict=True):
        inside = text & (offsets[:, 0] == field) & (offsets[:, 1] >= start) & (offsets[:, 2] <= end)
        assert 1 <= inside.sum() <= 4
        assert value == pytest.approx(exact[inside].max(), abs=1 / 255)
    assert len(orjson.dumps(shown)) < 20_000


def test_texts_of_no_token_and_equal_cosines() -> None:
    query = Query("q", np.ones((1, 1), np.float32))
    one = quantise(np.ones((1, 1), np.float32), "float32")
    assert evidence_map(query, one, None, np.zeros((1, 3), np.int32), (1.0,)) == {}
    none = quantise(np.empty((0, 1), np.float32), "float32")
    assert evidence_map(query, none, None, np.empty((0, 3), np.int32), (1.0,)) == {}
    shown = evidence_map(query, one, None, np.array([[0, 0, 4]], np.int32), (1.0,))
    assert (shown["spectral"]["low"], shown["spectral"]["high"], shown["spectral"]["values"]) == (1.0, 1.0, "AA==")
    assert Cells.of(np.empty((0, 3), np.int32)).spans.shape == (0, 3)
