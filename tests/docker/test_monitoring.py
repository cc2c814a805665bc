"""Dashboard and alerts: their queries are PromQL over metrics, labels and values that the gateway really has."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml

from es_ttc import errors
from es_ttc.serving.admin.jobs import JobKind, JobMetrics
from es_ttc.serving.features.scores import Timings
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.load import Rung
from es_ttc.serving.metrics import WATCHED, Metrics
from es_ttc.serving.writes.encoding import NotEncodedReason
from tests.docker.test_docker import DOCKER

NAME = re.compile(r"\bes_ttc_\w+")
OF_GRAFANA = {"$__rate_interval": "5m", "$job": ".*"}


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query with the title of its panel or alert."""
    for panel in json.loads(Path(DOCKER / "grafana" / "es-ttc.json").read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in OF_GRAFANA.items():
                query = query.replace(variable, value)
            yield panel["title"], query
    for rule in yaml.safe_load((DOCKER / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]


class _Cache:
    """Nothing is cached."""

    nbytes = capacity = hits = misses = 0

    def __len__(self) -> int:
        return 0


async def _looked(metrics: Metrics) -> None:
    """Let it count jobs: some pending, later none, and one look that fails."""
    moments = [100.0, 160.0, 220.0, 280.0, 310.0]
    waiting = iter([7, 9, 0, 3])

    async def look() -> dict[JobKind, int]:
        for count in waiting:
            return {JobKind.ENCODE: count}
        raise errors.EngineUnavailable("gone")

    clock = iter(moments)
    counted = JobMetrics(look, metrics, lambda: next(clock))
    found = []
    for _ in moments:
        await counted.look()
        found.append(
            (
                metrics.registry.get_sample_value("es_ttc_jobs_pending_documents", {"kind": "encode"}),
                metrics.registry.get_sample_value("es_ttc_jobs_backlog_seconds", {"kind": "encode"}),
                metrics.registry.get_sample_value("es_ttc_jobs_readable"),
            )
        )
    assert found == [(7, 0, 1), (9, 60, 1), (0, 0, 1), (3, 0, 1), (3, 0, 0)]


def scraped() -> set[str]:
    """Return the names of the samples of a gateway that has done everything once."""
    metrics = Metrics()
    metrics.answered("search", 200, 0.1)
    metrics.stage_seconds.labels("score").observe(0.1)
    metrics.fallbacks.labels("ttc_deadline_exceeded_exception").inc()
    metrics.rungs.labels("no_tokens").inc()
    metrics.skipped(["marks"])
    metrics.written(1, {})
    metrics.on_demand_documents.labels("encoded").inc()
    metrics.watch({name: int for name in WATCHED if not name.startswith("feature_cache_")})
    asyncio.run(_looked(metrics))
    metrics.watch_cache(_Cache())
    return set(re.findall(r"^(es_ttc_\w+)", metrics.text().decode(), re.MULTILINE))


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_a_query_is_one_over_metrics_that_there_are(title: str, query: str) -> None:
    promql_parser.parse(query)
    assert set(NAME.findall(query)) <= scraped()


def test_labels_have_values_that_the_gateway_gives() -> None:
    whole = " ".join(query for _, query in queries())
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    reasons = {one.type for one in classes if issubclass(one, errors.EsTtcError)}
    assert set(re.findall(r'reason="(\w+)"', whole)) <= reasons
    pending = {str(one) for one in NotEncodedReason}
    written = re.findall(r'es_ttc_written_documents_total\{outcome=~"([\w|]+)"', whole)
    assert set("|".join(written).split("|")) <= pending
    [requests] = Metrics().requests.describe()
    for label in re.findall(r'(?:kind|outcome)=~?"([\w|]+)"', whole):
        assert all(value in requests.documentation or value in pending for value in label.split("|")), label


def test_help_names_the_values_of_labels() -> None:
    metrics = Metrics()
    for metric, values in (
        (metrics.written_documents, [*NotEncodedReason, "encoded"]),
        (metrics.skipped_documents, [*SkipReason]),
        (metrics.rungs, [*Rung]),
        (metrics.stage_seconds, [*Timings(candidates=0.0).as_dict(), "search", "rewrite"]),
    ):
        [described] = metric.describe()
        assert {*values} <= {*re.findall(r"\w+", described.documentation)}


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads((DOCKER / "grafana" / "es-ttc.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)
