"""A LIMIT-style collection: profiles that list many things, queries that want one of them in other words.

The design follows "On the Theoretical Limitations of Embedding-Based Retrieval" (Weller et al., arXiv 2508.21038):
short profile documents that each list dozens of attributes, every query asking for one attribute, two relevant
documents a query. Two things differ. Nothing is taken from that data set: the lists in ``data/`` are the project's
own. And a query never uses a word of the documents: it paraphrases ("insects that make honey" for "beekeeping"), so
that term matching has nothing to hold on to but the frame "Who likes", and a single vector has to find one attribute
in the average of forty.
"""

import random
from typing import TypeVar

from es_ttc.lab.demo.files import read_lines, read_rows
from es_ttc.lab.evaluation.datasets import Collection, Document

LIMIT_STYLE = "limit-style"
RELEVANT_PER_QUERY = 2

T = TypeVar("T")


def generate(
    *, documents: int = 100, queries: int = 100, attributes: tuple[int, int] = (30, 50), seed: int = 20250821
) -> Collection:
    """Make the collection; the same arguments give the same collection on every machine and Python."""
    concepts = read_rows("concepts.tsv")
    fillers = read_lines("fillers.txt")
    given, family = zip(*read_rows("names.tsv"), strict=True)

    choices = random.Random(seed)  # noqa: S311 - a collection to be repeated, not a secret
    people = _shuffled(choices, [f"{first} {last}" for first in given for last in family])[:documents]
    asked = {f"q{number}": pair for number, pair in enumerate(_shuffled(choices, concepts)[:queries], 1)}
    wanted: dict[str, list[str]] = {person: [] for person in people}
    holders: dict[str, list[str]] = {}
    for query, (phrase, _) in asked.items():
        # The least burdened profiles, ties broken by chance: the wanted attributes spread evenly.
        holders[query] = sorted(_shuffled(choices, people), key=lambda person: len(wanted[person]))[:RELEVANT_PER_QUERY]
        for person in holders[query]:
            wanted[person].append(phrase)

    profiles = []
    for person in people:
        size = _between(choices, *attributes)
        listed = wanted[person] + _shuffled(choices, fillers)[: size - len(wanted[person])]
        profiles.append(Document(_identifier(person), "", _profile(person, _shuffled(choices, listed))))
    return Collection(
        name=LIMIT_STYLE,
        split="test",
        documents=tuple(profiles),
        queries={query: f"Who likes {paraphrase}?" for query, (_, paraphrase) in asked.items()},
        qrels={query: {_identifier(person): 1 for person in sorted(people)} for query, people in holders.items()},
    )


def _profile(person: str, attributes: list[str]) -> str:
    return f"{person} likes {', '.join(attributes[:-1])} and {attributes[-1]}."


def _identifier(person: str) -> str:
    return person.lower().replace(" ", "-")


def _between(choices: random.Random, low: int, high: int) -> int:
    return low + int(choices.random() * (high - low + 1))


def _shuffled(choices: random.Random, items: list[T]) -> list[T]:
    """Return the items in a random order drawn from ``random()`` alone, the one method whose values are promised."""
    return [item for _, _, item in sorted((choices.random(), place, item) for place, item in enumerate(items))]
