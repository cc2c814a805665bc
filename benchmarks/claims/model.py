"""A claim of a paper, and the ways in which a verdict on it is found."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    PART = "in part"
    NOT = "does not hold"
    CONTRADICTED = "contradicted by the paper's own text"
    UNMEASURED = "not measured here"


class Stale(Exception):
    """What a verdict rests on, a line of a page or a test, is not there any more."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and its figure.

    Attributes:
        verdict: The verdict.
        figure: What was found, in one sentence.
    """

    verdict: Verdict
    figure: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        number: Its letter and number: S for Spectral Retrieval, N for NNN, T for programs, A for SIRA, R for RGS.
        words: What the paper says, in short.
        section: Where it says so; empty where the text has no numbers.
        find: Returns the finding.
        source: What the finding rests on: a command, a page with its own command, or a test.
        seconds: Whether `find` computes for more than a moment.
    """

    number: str
    words: str
    section: str
    find: Callable[[], Finding]
    source: str
    seconds: bool = False


def measured(number: str, words: str, section: str, find: Callable[[], Finding], *, seconds: bool = True) -> Claim:
    """Return a claim that `benchmarks.reproduce` measures itself."""
    return Claim(number, words, section, find, "`python -m benchmarks.reproduce`", seconds)


def cited(number: str, words: str, section: str, page: str, verdict: Verdict, figure: str, *says: str) -> Claim:
    """Return a claim whose figures are those of a page of results, which names its own command.

    Args:
        number: As in :class:`Claim`.
        words: As in :class:`Claim`.
        section: As in :class:`Claim`.
        page: The page below docs/, without suffix.
        verdict: The verdict.
        figure: What the page shows, in one sentence.
        says: Texts that the page must contain, white space aside; they are what the verdict was drawn from.
    """

    def find() -> Finding:
        text = " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
        for line in says:
            if " ".join(line.split()) not in text:
                raise Stale(f"{number}: docs/{page}.md does not say [{line}] any more: judge the claim again")
        return Finding(verdict, figure)

    return Claim(number, words, section, find, f"[{page.rpartition('/')[2]}](../{page}.md)")


def tested(number: str, words: str, section: str, verdict: Verdict, figure: str, *tests: str) -> Claim:
    """Return a claim that tests of the suite check; `tests` are ``path::function`` below tests/."""

    def find() -> Finding:
        for test in tests:
            path, _, name = test.partition("::")
            if not re.search(rf"^(async )?def {name}\b", (ROOT / "tests" / path).read_text(), re.MULTILINE):
                raise Stale(f"{number}: there is no test {test} any more: judge the claim again")
        return Finding(verdict, figure)

    names = ", ".join(f"`tests/{test}`" for test in tests)
    return Claim(number, words, section, find, names)


def unmeasured(number: str, words: str, section: str, why: str) -> Claim:
    """Return a claim that is not measured, with the reason."""
    return Claim(number, words, section, lambda: Finding(Verdict.UNMEASURED, why), "")


def holds(condition: bool, figure: str, otherwise: Verdict = Verdict.NOT) -> Finding:
    """Return a finding that holds if a condition does."""
    return Finding(Verdict.HOLDS if condition else otherwise, figure)
