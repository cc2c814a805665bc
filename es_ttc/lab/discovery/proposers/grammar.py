"""A proposer without a language model: mutated and crossed trees of the grammar. The baseline for language models."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from es_ttc.lab.discovery.grammar.trees import MAX_TREE_NODES, Tree, cross, draw, mutate, render_tree
from es_ttc.lab.discovery.records import ProgramRecord, ProposedProgram
from es_ttc.lab.discovery.screening import registry_of
from es_ttc.lab.discovery.summary import frontier, measured_records
from es_ttc.rescorers.programs.source import Refused

_TRIES = 50
_FRESH, _CROSSED = 0.1, 0.35
_FROM_FRONTIER = 0.6
_TOURNAMENT = 4
_STEPS = (1, 1, 2, 3)


@dataclass
class GrammarProposer:
    """Mutation and crossover over typed trees.

    Its proposals depend only on the seed, the generation and the memory, so a resumed or repeated search gives the same
    results. Programs nearer than `distance` to a known one are avoided if possible.
    """

    seed: int
    distance: float

    def propose(self, generation: int, records: Sequence[ProgramRecord]) -> ProposedProgram:
        """Return a descendant of good programs, or a new one."""
        source = random.Random(f"{self.seed}:{generation}")  # noqa: S311 - a search to be repeated, not a secret
        registry = registry_of(records, self.distance)
        proposal = self._drawn(source, records)
        for _ in range(_TRIES):
            try:
                registry.screen(proposal.source)
            except Refused:
                proposal = self._drawn(source, records)
            else:
                break
        return proposal

    def _drawn(self, source: random.Random, records: Sequence[ProgramRecord]) -> ProposedProgram:
        grown = [record for record in measured_records(records) if record.proposal.genome is not None]
        chance = source.random()
        parents: tuple[str, ...] = ()
        if not grown or chance < _FRESH:
            tree, how = draw(source, "scores"), "drawn anew"
        else:
            parent = _chosen(source, grown)
            tree, parents = Tree.from_json(parent.proposal.genome), (parent.name,)
            if chance < _FRESH + _CROSSED:
                other = _chosen(source, grown)
                tree, how = cross(source, tree, Tree.from_json(other.proposal.genome))
                parents = (parent.name, other.name)
            else:
                steps = []
                for _ in range(source.choice(_STEPS)):
                    tree, step = mutate(source, tree)
                    steps.append(step)
                how = "; ".join(steps)
        if len(list(tree.nodes())) > MAX_TREE_NODES:
            tree, how = draw(source, "scores"), "drawn anew: the child was too large"
            parents = ()
        novelty = f"{' x '.join(parents) or 'new'}: {how}"
        return ProposedProgram(
            source=render_tree(tree, novelty),
            origin="grammar",
            parents=parents,
            novelty=novelty,
            genome=tree.as_json(),
        )


def _chosen(source: random.Random, records: Sequence[ProgramRecord]) -> ProgramRecord:
    """Return a program of the frontier, or the winner of a small tournament."""
    front = [record for record in frontier(records) if record.proposal.genome is not None]
    if front and source.random() < _FROM_FRONTIER:
        return source.choice(front)
    drawn = [source.choice(records) for _ in range(_TOURNAMENT)]
    return max(drawn, key=lambda record: record.mean or 0.0)
