"""Trees of the grammar are programs."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from es_ttc.lab.discovery.evaluator import Limits, run
from es_ttc.lab.discovery.grammar.operations import GRAMMAR, PRIMITIVE_MODULES
from es_ttc.lab.discovery.grammar.trees import Tree, cross, draw, mutate, render_tree
from es_ttc.lab.discovery.proposers.grammar import GrammarProposer
from es_ttc.lab.discovery.records import ProgramRecord, ProposedProgram
from es_ttc.lab.discovery.seeds import KNOWN, seeds
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.source import check

BATCH = "\n".join(
    (
        "from es_ttc.rescorers.programs.frontier import {name}",
        "def program(Q, D, S, ctx):",
        "    return {name}(Q, D, S, ctx)",
    )
)


@pytest.mark.parametrize("name", ["sentmaxsim", "covtriple", "lexhybridrrf", "crossroundrrf", "diversedualctx"])
def test_a_known_tree_is_the_papers_program(name: str, tasks: Sequence[DiscoveryTask]) -> None:
    written = run(render_tree(KNOWN[name], name), tasks, Limits())
    ours = run(BATCH.format(name=name), tasks, Limits())
    for one, other in zip(written, ours, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        assert one.usage == other.usage


def test_the_seeds_are_the_twelve() -> None:
    assert [seed.title for seed in seeds()] == list(CATALOGUE)
    assert [seed.title for seed in seeds(cheap=True)] == [one.name for one in CATALOGUE.values() if not one.passes]
    for seed in seeds():
        check(seed.source)


def test_every_primitive_has_a_home() -> None:
    assert {name for one in GRAMMAR.values() for name in one.imports} == set(PRIMITIVE_MODULES)


@pytest.mark.slow
def test_grammar_proposals_are_allowed_and_run(bees: DiscoveryTask) -> None:
    """A hundred steps of chance; every tree is checked, and every tenth is run."""
    source = random.Random(7)
    tree, other = draw(source, "scores"), KNOWN["lexhybridrrf"]
    grown = []
    for _ in range(100):
        tree, _ = mutate(source, tree) if source.random() < 0.6 else cross(source, tree, other)
        if len(list(tree.nodes())) > 30:
            tree = draw(source, "scores")
        assert Tree.from_json(tree.as_json()) == tree
        check(render_tree(tree, "x"))
        grown.append(tree)
    for tree in grown[::10]:
        (ran,) = run(render_tree(tree, "x"), [bees], Limits())
        assert ran.scores.shape == bees.size


def test_every_operation_runs(bees: DiscoveryTask) -> None:
    """One tree an operation, all summed in one program."""
    source = random.Random(1)
    wanted = set(GRAMMAR)
    trees = list(KNOWN.values())
    while missing := wanted - {node.name for tree in trees for node in tree.nodes()}:
        tree = draw(source, "scores")
        if missing & {node.name for node in tree.nodes()}:
            trees.append(tree)
    everything = Tree("zsum", tuple(trees))
    (ran,) = run(render_tree(everything, "all of them"), [bees], Limits(cost=100))
    assert ran.scores.shape == bees.size


def test_a_proposal_follows_from_seed_generation_and_memory() -> None:
    memory = [
        ProgramRecord(
            generation=place, name=seed.title, proposal=seed, verdict="measured", mean=place / 100, cost=2.0 + place
        )
        for place, seed in enumerate(seeds(cheap=True))
    ]

    def proposed(seed: int) -> list[ProposedProgram]:
        return [GrammarProposer(seed, 0.02).propose(generation, memory) for generation in range(1, 9)]

    assert proposed(1) == proposed(1)
    assert proposed(1) != proposed(2)
    assert len({proposal.source for proposal in proposed(1)}) == 8
