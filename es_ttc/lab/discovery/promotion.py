"""Promote a program: measure it on held-out queries, and write the files for serving."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from es_ttc.common.files import replace_file
from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.lab.discovery.evaluator import Evaluator, Limits, run
from es_ttc.lab.discovery.records import DiscoveryPlan, ProgramRecord
from es_ttc.lab.discovery.tasks import DiscoveryTask, collections
from es_ttc.lab.evaluation.bootstrap import Comparison, compare, resampled_means
from es_ttc.lab.evaluation.features import encode_queries
from es_ttc.lab.evaluation.metrics import NDCG_10
from es_ttc.lab.evaluation.provenance import timestamp
from es_ttc.rescorers.programs.promoted import SERVED_READINGS, Manifest, check_program_name, program_digest
from es_ttc.vectors.tokens import Float32

_TOGETHER = 8
_ALIKE = 0.99
"""Minimum share of documents with equal scores: products of one row and of eight round differently, which may change
ranks."""


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """The result of a program on the held-out queries of one task."""

    task: str
    split: str
    queries: int
    documents: int
    baseline: float
    value: float
    versus: Comparison

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "task": self.task,
            "split": self.split,
            "queries": self.queries,
            "documents": self.documents,
            "metric": NDCG_10,
            "cosine": self.baseline,
            "value": self.value,
            **self.versus.as_json(),
        }


def held_out(record: ProgramRecord, evaluator: Evaluator) -> list[HeldOutResult]:
    """Measure a program on tasks of held-out queries, once."""
    _, values = evaluator.evaluate(record.proposal.source)
    return [_held(task, values[task.name]) for task in evaluator.tasks]


def require_servable(record: ProgramRecord, name: str) -> None:
    """Raise an error for a program that cannot be served."""
    check_program_name(name)
    if record.verdict != "measured":
        raise InvalidRequest(
            f"[{record.name}] was rejected ({record.reason}: {record.detail}): there is nothing to serve"
        )
    unknown = _readings(record) - SERVED_READINGS
    if unknown:
        raise InvalidRequest(f"[{record.name}] reads [{min(unknown)}], which no index holds: it cannot be served")


def samples(plan: DiscoveryPlan, encoder: Encoder) -> list[Float32]:
    """Return the vectors of the search's queries by task, as a sample of an index's queries."""
    return [
        np.stack(
            [query.vectors[0] for query in encode_queries(list(collection.queries.values()), encoder, tokens=False)]
        ).astype(np.float32)
        for collection in collections(plan, held=False)
    ]


def is_calibrated(record: ProgramRecord, task: DiscoveryTask, sample: Float32, limits: Limits) -> bool:
    """Return whether a program needs a sample of queries to score a single query, as a gateway does, like several."""
    if _scores_alone(record, task, limits):
        return False
    if _scores_alone(record, replaced(task, sample=sample), limits):
        return True
    raise InvalidRequest(
        f"[{record.name}] scores a query by the other queries that are asked with it, and the gateway has one at a "
        "time: it cannot be served. Statistics over queries can be taken from `ctx.calibration`"
    )


def _scores_alone(record: ProgramRecord, task: DiscoveryTask, limits: Limits) -> bool:
    few = replaced(
        task,
        query_texts=task.query_texts[:_TOGETHER],
        queries=task.queries[:_TOGETHER],
        qrels=dict(list(task.qrels.items())[:_TOGETHER]),
    )
    alone = replaced(
        few, query_texts=few.query_texts[:1], queries=few.queries[:1], qrels=dict(list(few.qrels.items())[:1])
    )
    together, single = run(record.proposal.source, [few, alone], limits)
    return bool(np.isclose(together.scores[0], single.scores[0], rtol=1e-3, atol=1e-5).mean() >= _ALIKE)


def write_program(
    record: ProgramRecord,
    plan: DiscoveryPlan,
    name: str,
    report: Sequence[HeldOutResult],
    folder: Path,
    *,
    calibrated: bool,
) -> Path:
    """Write the two files of a promoted program, the manifest last, and return the source's file."""
    queries = sum(one.queries for one in record.tasks.values())
    manifest = Manifest(
        name=name,
        sha256=program_digest(record.proposal.source),
        readings=tuple(sorted(_readings(record))),
        passes=sum(one.query_texts for one in record.tasks.values()) / queries,
        cost=round(record.cost or 1.0, 3),
        calibrated=calibrated,
        report={
            "program": record.name,
            "origin": record.proposal.origin,
            "novelty": record.proposal.novelty,
            "encoder": plan.identity,
            "search": {task: one.delta for task, one in record.tasks.items()},
            "held_out": [one.as_json() for one in report],
            "promoted": timestamp(),
        },
    )
    path = folder / f"{name}.py"
    replace_file(path, record.proposal.source.encode())
    replace_file(
        path.with_suffix(".json"), orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"
    )
    return path


def exported_program(records: Sequence[ProgramRecord]) -> bytes:
    """Return all programs that a search has found, as JSON lines for `--proposer`."""
    proposals = [record.proposal.model_dump(mode="json") for record in records if record.generation > 0]
    return b"".join(orjson.dumps(proposal) + b"\n" for proposal in proposals)


def _held(task: DiscoveryTask, values: Any) -> HeldOutResult:
    means = [resampled_means(one[None])[:, 0] for one in (values, task.baseline)]
    queries, documents = task.size
    return HeldOutResult(
        task.name,
        task.split,
        queries,
        documents,
        float(task.baseline.mean()),
        float(values.mean()),
        compare(values, task.baseline, *means),
    )


def _readings(record: ProgramRecord) -> frozenset[str]:
    return frozenset(reading for task in record.tasks.values() for reading in task.readings)
