"""Which programs stay, and how unlike they are."""

import pytest

from es_ttc.lab.discovery.evaluator import cost_ratio
from es_ttc.lab.discovery.records import ProgramRecord, ProposedProgram, TaskResult
from es_ttc.lab.discovery.screening import ProposedPrograms, distance, shapes
from es_ttc.lab.discovery.summary import admits, frontier
from es_ttc.rescorers.programs.source import RefusalReason, Refused

PROGRAM = "import numpy as np\n\n\ndef program(Q, D, S, ctx):\n    best = S.max(axis=1, keepdims=True)\n    return {}\n"


def record(name: str, cost: float, mean: float, *, admitted: bool = False) -> ProgramRecord:
    return ProgramRecord(
        generation=1,
        name=name,
        proposal=ProposedProgram(source="x", origin="t"),
        verdict="measured",
        cost=cost,
        mean=mean,
        admitted=admitted,
    )


def test_the_frontier_holds_what_nothing_as_cheap_is_as_good_as() -> None:
    points = {"a": (3, 0.02), "b": (2, 0.01), "c": (4, 0.02), "d": (1, 0.0), "e": (5, 0.05)}
    records = [record(name, *point) for name, point in points.items()]
    assert [one.name for one in frontier(records)] == ["b", "a", "e"]
    assert frontier([record("worse", 2, -0.1)]) == []


def test_the_papers_rule_admits_what_beats_everything_admitted() -> None:
    first = record("a", 3, 0.02, admitted=True)
    assert admits(0.001, [])
    assert not admits(0.0, [])
    assert not admits(0.02, [first])
    assert admits(0.021, [first])
    assert admits(0.021, [first, record("not admitted", 9, 0.5)])


def test_costs_are_pooled_over_tasks() -> None:
    """(100 + 10 + 90 + 0 + 100) / 200: the paper's c, not the mean of the tasks' ratios."""
    small = TaskResult(value=0, delta=0, queries=10, documents=0, index_texts=90, query_texts=0, readings=(), seconds=0)
    large = small.model_copy(update={"documents": 180, "index_texts": 0, "query_texts": 10})
    assert cost_ratio([small, large]) == pytest.approx((200 + 100) / 200)


def test_names_comments_and_constants_do_not_count() -> None:
    one = shapes(PROGRAM.format("np.float32(0.5) * S / best"))
    renamed = shapes(
        '"""Other words."""\nimport numpy as np\n\n\ndef program(Q, D, S, ctx):\n    """More."""\n'
        "    m = S.max(axis=7, keepdims=True)  # why\n    return np.float32(0.9) * S / m\n"
    )
    assert distance(one, renamed) == 0
    other = shapes(PROGRAM.format("np.float32(0.5) * S - best"))
    assert 0 < distance(one, other) < 0.5
    assert distance(one, shapes("def program(Q, D, S, ctx):\n    return ctx.lexicon().rare(ctx.query_texts)\n")) > 0.8


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (PROGRAM.format("S / best"), RefusalReason.EVALUATED_ONCE),
        (PROGRAM.format("S / best").replace("axis=1", "axis=0"), RefusalReason.EVALUATED_ONCE),
        (PROGRAM.format("S / best").replace("best", "top"), RefusalReason.EVALUATED_ONCE),
        ("def program(Q, D, S, ctx):\n    return S\n", None),
    ],
)
def test_a_program_has_one_evaluation(source: str, reason: RefusalReason | None) -> None:
    registry = ProposedPrograms(0.02)
    registry.add("g001", PROGRAM.format("S / best"))
    if reason is None:
        registry.screen(source)
        return
    with pytest.raises(Refused, match="g001") as caught:
        registry.screen(source)
    assert caught.value.reason == reason


def test_near_copies_are_not_distinct() -> None:
    registry = ProposedPrograms(0.3)
    registry.add("g001", PROGRAM.format("S / best"))
    with pytest.raises(Refused, match="a distance of 0") as caught:
        registry.screen(PROGRAM.format("S - best"))
    assert caught.value.reason == RefusalReason.NOT_DISTINCT
