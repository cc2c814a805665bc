import numpy as np

from es_ttc.rescorers.similarity import shown_similarity


def test_cosines_are_shown_as_the_engines_show_them() -> None:
    assert shown_similarity(np.array([-1, 0, 1, 1.0000001], np.float32)).tolist() == [0.0, 0.5, 1.0, 1.0]
