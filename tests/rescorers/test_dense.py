import numpy as np

from es_ttc.rescorers.base import Window
from es_ttc.rescorers.dense import DenseParams, DenseRescorer
from tests.rescorers.windows import query_of, unit_rows

dense = DenseRescorer()


def test_dense_is_the_cosine_of_the_best_query_text() -> None:
    random = np.random.default_rng(0)
    pooled, vectors = unit_rows(random, 7, 16), unit_rows(random, 2, 16)
    pooled[3] = 0
    window = Window([str(place) for place in range(7)], np.zeros(7, np.float32), pooled=pooled)
    scores = dense.score(query_of(vectors), window, DenseParams())
    wanted = [max(float(vector @ document) for vector in vectors) for document in pooled]
    np.testing.assert_allclose(scores, wanted, atol=1e-6)
    assert scores[3] == 0
    assert dense.detail(query_of(vectors), window, DenseParams()) == [{}] * 7
