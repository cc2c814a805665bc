from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.program_costs import Cost, Kind, cost_of, counted
from es_ttc.lab.discovery.summary import pareto_front
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.rescorers.programs.catalogue import CATALOGUE, Reading
from es_ttc.vectors.chunks import no_chunks

points = st.lists(st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float)), max_size=8)


def test_the_ratio_is_the_papers() -> None:
    whole = Cost(base_query=15_916, base_index=3_196, index=3_196, query=0)
    assert round(whole.ratio, 1) == 1.2  # BidirZScore in the paper's table 2, from table 1's counts
    expanding = Cost(base_query=15_916, base_index=3_196, index=0, query=2 * 15_916)
    assert round(expanding.ratio - 1, 1) == 1.7
    assert expanding.at_query == 3
    assert expanding.at_index == 1
    assert whole.at_index == 2


def test_seconds_count_each_kind_of_text_by_what_it_takes() -> None:
    counts: dict[Reading, int] = {"sentences": 50, "pairs": 40, "paragraphs": 20, "topic": 10, "reversed": 10}
    rates: dict[Kind, float] = dict.fromkeys(("document", "reversed", "topic", "pairs", "paragraphs"), 2.0)
    rates |= {"query": 1.0, "sentences": 0.5, "expanded": 3.0}
    split = cost_of(CATALOGUE["sentmaxsim"], counts, 5, rates, scoring=0.1)
    assert (split.base_index, split.base_query, split.index) == (20, 5, 25)
    assert split.query == pytest.approx(0.5)
    assert split.ratio == pytest.approx(50.5 / 25)
    assert split.at_index == pytest.approx(2.25)
    assert split.at_query == pytest.approx(1.1)
    expanding = cost_of(CATALOGUE["diversedualctx"], counts, 5, rates, scoring=0.0)
    assert expanding.query == 5 * 2 * 3
    assert expanding.index == 25 + 80 + 40 + 20 + 20


def test_documents_are_counted_as_queries_only_where_they_are_encoded_so() -> None:
    rows = np.zeros((3, 2), np.float32)
    without = CorpusFeatures(["a", "b", "c"], np.ones(3, bool), rows, chunks=[no_chunks(2)] * 3)
    with_them = replace(without, reversed=rows)
    assert (counted(without)["reversed"], counted(with_them)["reversed"]) == (0, 3)
    bidirzscore = CATALOGUE["bidirzscore"]
    assert cost_of(bidirzscore, counted(without), queries=7).ratio == 1
    assert cost_of(bidirzscore, counted(with_them), queries=7).ratio == pytest.approx(1.3)


@given(points)
def test_no_point_is_as_cheap_and_as_good_as_one_of_the_front(found: list[tuple[float, float]]) -> None:
    front = pareto_front(found)
    for place, (cost, quality) in enumerate(found):
        beaten = any((other[0] <= cost and other[1] >= quality) and other != (cost, quality) for other in found)
        first = found.index((cost, quality)) == place
        assert (place in front) == (not beaten and first)
    assert [found[place][0] for place in front] == sorted(found[place][0] for place in front)
