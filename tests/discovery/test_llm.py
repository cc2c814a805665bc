"""A language model as the proposer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from es_ttc.errors import ConfigurationError, LlmError
from es_ttc.lab.discovery.evaluator import Evaluator
from es_ttc.lab.discovery.loop import search_programs
from es_ttc.lab.discovery.proposers.llm import LlmProposer, claims, program_of, prompt
from es_ttc.lab.discovery.records import DiscoveryPlan, ProgramRecord, ProposedProgram, SearchLog, TaskResult
from es_ttc.lab.discovery.summary import discovery_status
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.rescorers.programs.source import RefusalReason
from tests.support.llm import scripted_model, settings_for

PROGRAM = '''"""
Novelty: words first.
Hypothesis: vectors miss names.
"""
def program(Q, D, S, ctx):
    return S + ctx.lexicon().overlap(ctx.query_texts)
'''
PLAN = DiscoveryPlan(encoder="minilm", identity="x", seed=1, proposer="llm", tasks=())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Here it is:\n```python\n{PROGRAM}```\nIt should help.", PROGRAM),
        (f"```\nx = 1\n```\nand\n```py\n{PROGRAM}\n```", PROGRAM),
        (PROGRAM, PROGRAM),
        (f"{PROGRAM}```", PROGRAM),
        (f"```python\n{PROGRAM}", PROGRAM),
        ("", ""),
        ("```python\n```", ""),
    ],
)
def test_the_program_is_found_in_what_a_model_writes(text: str, found: str) -> None:
    assert program_of(text) == found


def test_claims_are_read_from_the_docstring() -> None:
    assert claims(PROGRAM) == ("words first.", "vectors miss names.")
    assert claims("def f(") == ("", "")


def test_the_prompt_holds_results_failures_and_the_frontier_within_its_room() -> None:
    task = TaskResult(
        value=0.5, delta=0.1, queries=1, documents=1, index_texts=1, query_texts=0, readings=(), seconds=0
    )
    records = [
        ProgramRecord(
            generation=1,
            name="g001",
            proposal=ProposedProgram(source=PROGRAM, origin="llm", novelty="words first."),
            verdict="measured",
            mean=0.1,
            cost=2.0,
            tasks={"bees": task},
        ),
        ProgramRecord(
            generation=2,
            name="g002",
            proposal=ProposedProgram(source="import torch", origin="llm"),
            verdict="rejected",
            reason=RefusalReason.EXTERNAL,
            detail="line 1: imports [torch]",
        ),
    ]
    text = prompt(records, 4_000)
    assert "g001 +0.1000, c 2.0 (bees +0.100): words first." in text
    assert "g002 external_model: line 1: imports [torch]" in text
    assert PROGRAM in text
    assert text.endswith("```python\n")
    bare = prompt(records, 200)
    assert PROGRAM not in bare
    assert len(bare) < len(prompt([], 200)) + 200


def test_a_blind_prompt_names_no_method() -> None:
    text = prompt([], 4_000, blind=True).lower()
    known = ("rrf", "rocchio", "maxsim", "fisher", "rankings", "feedback", "primitives", "z-score", "granularit")
    assert not [name for name in known if name in text]
    assert "program(q, d, s, ctx)" in text


async def test_a_scripted_model_drives_the_loop(
    tasks: list[DiscoveryTask], evaluator_of: Callable[..., Evaluator], tmp_path: Path
) -> None:
    import asyncio

    answers = [f"```python\n{PROGRAM}```", "I am sorry.", ""]

    def searched(url: str) -> list[ProgramRecord]:
        proposer = LlmProposer(settings_for(url, llm_api="chat", llm_model="m"), 1)
        with SearchLog(tmp_path / "s") as memory:
            memory.begin(PLAN)
            list(search_programs(memory, evaluator_of(tasks), proposer, 3, distance=0.02))
            return list(memory.records)

    async with scripted_model(answers) as model:
        records = await asyncio.to_thread(searched, model.url)
    assert [(record.verdict, record.reason) for record in records] == [
        ("measured", None),
        ("rejected", RefusalReason.SYNTAX),
        ("rejected", RefusalReason.NO_PROPOSAL),
    ]
    assert records[0].proposal.novelty == "words first."
    assert "g001" in str(model.asked[1])
    assert "g002 syntax" in str(model.asked[2])
    found = discovery_status(PLAN, records)
    assert found["llm"]["calls"] == 3
    assert found["proposals"] == {
        "all": 3,
        "valid": 1,
        "rejected": {"syntax": 1, "no_proposal": 1},
        "gaining": int((records[0].mean or 0) > 0),
        "admitted": int(records[0].admitted),
    }


async def test_an_endpoint_that_fails_ends_the_search_and_costs_no_generation(
    tasks: list[DiscoveryTask], evaluator_of: Callable[..., Evaluator], tmp_path: Path
) -> None:
    import asyncio

    def searched(url: str) -> list[ProgramRecord]:
        proposer = LlmProposer(settings_for(url, llm_model="m", llm_attempts=1), 1)
        with SearchLog(tmp_path / "s") as memory:
            memory.begin(PLAN)
            with pytest.raises(LlmError):
                list(search_programs(memory, evaluator_of(tasks), proposer, 3, distance=0.02))
            return list(memory.records)

    async with scripted_model([500]) as model:
        assert await asyncio.to_thread(searched, model.url) == []


def test_no_endpoint_is_told_before_the_search() -> None:
    with pytest.raises(ConfigurationError, match="ES_TTC_LLM_URL"):
        LlmProposer(settings_for("http://x").model_copy(update={"llm_url": None}), 1)


@pytest.mark.llm
@pytest.mark.slow
def test_the_loop_survives_a_small_base_model(
    llm_url: str, tasks: list[DiscoveryTask], evaluator_of: Callable[..., Evaluator], tmp_path: Path
) -> None:
    proposer = LlmProposer(settings_for(llm_url), 1, characters=1_000, tokens=48)
    with SearchLog(tmp_path) as memory:
        memory.begin(PLAN)
        records = list(search_programs(memory, evaluator_of(tasks), proposer, 2, distance=0.02))
    assert [record.generation for record in records] == [1, 2]
    assert all(record.proposal.llm is not None and record.proposal.llm.completion_tokens > 0 for record in records)
