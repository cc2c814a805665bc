"""A language model as the proposer (section 3.2), behind any OpenAI-compatible endpoint.

The prompt is built only from the memory: results and costs of past programs, refusals with reasons, the sources of the
best of the frontier. The model's output is treated as text until it has passed the screening.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.lab.discovery.grammar.operations import PRIMITIVE_MODULES
from es_ttc.lab.discovery.records import LlmUsage, ProgramRecord, ProposedProgram
from es_ttc.lab.discovery.summary import frontier, measured_records
from es_ttc.llm.base import Reply
from es_ttc.llm.client import LlmClient
from es_ttc.llm.prompts import read_prompt
from es_ttc.settings import LlmSettings

LLM_ORIGIN: Final = "llm"

_PROMPT = Path(__file__).with_name("prompt.md")
_BLIND = Path(__file__).with_name("blind.md")
_FENCE = "```"
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_MAX_RESULTS, _MAX_FAILURES = 40, 10
_PRIMITIVES = "primitives."
_TEMPERATURE = 0.8


@dataclass
class LlmProposer:
    """Requests one program for each generation from a model; errors in the settings are raised at once."""

    settings: LlmSettings
    seed: int
    characters: int = 24_000
    tokens: int = 2_000
    blind: bool = False

    def __post_init__(self) -> None:
        LlmClient(self.settings)

    def propose(self, generation: int, records: Sequence[ProgramRecord]) -> ProposedProgram:
        """Return the model's output unchanged."""
        shown = [record for record in records if record.proposal.origin == LLM_ORIGIN] if self.blind else records
        text = prompt(shown, self.characters, blind=self.blind)
        with InterruptibleRunner() as runner:
            reply = runner.run(self._complete(text, self.seed * 100_000 + generation))
        source = program_of(reply.text)
        novelty, hypothesis = claims(source)
        return ProposedProgram(
            source=source,
            origin=LLM_ORIGIN,
            parents=tuple(record.name for record in _best(shown)),
            novelty=novelty,
            hypothesis=hypothesis,
            llm=LlmUsage(
                calls=1,
                prompt_tokens=reply.usage.prompt_tokens,
                completion_tokens=reply.usage.completion_tokens,
                seconds=round(reply.seconds, 3),
            ),
        )

    async def _complete(self, text: str, seed: int) -> Reply:
        async with LlmClient(self.settings) as client:
            continued = client.api == "completions"
            return await client.ask(
                text,
                max_tokens=self.tokens,
                temperature=_TEMPERATURE,
                seed=seed,
                stop=(_FENCE,) if continued else (),
            )


def prompt(records: Sequence[ProgramRecord], characters: int, *, blind: bool = False) -> str:
    """Return the prompt for a memory."""
    named = {} if blind else {"primitives": _primitives()}
    template = read_prompt(_BLIND if blind else _PROMPT, {*named, "history", "failures", "frontier"})
    return (
        template.render(
            **named,
            history=_within(_results(records), characters // 4) or "none yet",
            failures=_within(_failures(records), characters // 4) or "none yet",
            frontier=_within(_sources(records), characters // 2) or "none yet",
        ).rstrip("\n")
        + "\n"
    )


def program_of(text: str) -> str:
    """Return the program in a model's answer: the longest fenced block, or the text if there is none."""
    blocks = [block.strip("\n") for block in _FENCED.findall(text)]
    found = max(blocks, key=len) if blocks else text.partition(_FENCE)[0]
    return f"{found.strip()}\n" if found.strip() else ""


def claims(source: str) -> tuple[str, str]:
    """Return the claims in a program's docstring, novelty and hypothesis; empty if there are none."""
    try:
        text = ast.get_docstring(ast.parse(source)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", ""
    found = {}
    for line in text.splitlines():
        name, _, claim = line.partition(":")
        found[name.strip().lower()] = " ".join(claim.split())[:300]
    return found.get("novelty", ""), found.get("hypothesis", "")


def _best(records: Sequence[ProgramRecord]) -> list[ProgramRecord]:
    return sorted(frontier(records), key=lambda record: -(record.mean or 0.0))[:3]


def _results(records: Sequence[ProgramRecord]) -> Iterator[str]:
    known = sorted(measured_records(records), key=lambda record: -(record.mean or 0.0))[:_MAX_RESULTS]
    for record in known:
        tasks = ", ".join(f"{name} {one.delta:+.3f}" for name, one in record.tasks.items())
        about = f": {record.proposal.novelty}" if record.proposal.novelty else ""
        yield f"{record.name} {record.mean:+.4f}, c {record.cost:.1f} ({tasks}){about}"


def _failures(records: Sequence[ProgramRecord]) -> Iterator[str]:
    refused = [record for record in records if record.verdict == "rejected"][-_MAX_FAILURES:]
    for record in reversed(refused):
        yield f"{record.name} {record.reason}: {record.detail}"


def _sources(records: Sequence[ProgramRecord]) -> Iterator[str]:
    for record in sorted(frontier(records), key=lambda one: -(one.mean or 0.0)):
        about = f"{record.name}, {record.mean:+.4f} at c {record.cost:.1f}:"
        yield f"{about}\n{_FENCE}python\n{record.proposal.source.rstrip()}\n{_FENCE}\n"


def _within(parts: Iterator[str], room: int) -> str:
    """Return the parts that fit into the limit, complete ones only; a part that is too long is skipped."""
    kept: list[str] = []
    for part in parts:
        if len(part) < room:
            kept.append(part)
            room -= len(part) + 1
    return "\n".join(kept)


def _primitives() -> str:
    by_module: dict[str, list[str]] = {}
    for name, module in sorted(PRIMITIVE_MODULES.items()):
        if module.startswith(_PRIMITIVES):
            by_module.setdefault(module.removeprefix(_PRIMITIVES), []).append(name)
    return "\n".join(f"  {module}: {', '.join(names)}" for module, names in sorted(by_module.items()))
