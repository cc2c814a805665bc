"""One self-contained HTML page about an evaluation: no script, no request, readable in light and dark and on paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import orjson

from es_ttc.common.files import replace_file
from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.bootstrap import CONFIDENCE, TIE, Comparison
from es_ttc.lab.evaluation.metrics import headline_metrics
from es_ttc.lab.evaluation.results import CollectionResult, Evaluation, MethodResult

LEVEL = 1 - CONFIDENCE
_MOVED = 5  # number of displayed queries with the greatest gains, and with the greatest losses


@dataclass(frozen=True, slots=True)
class ChangedQuery:
    """A query that a method answers much better or much worse than the baseline."""

    id: str
    text: str
    baseline: float
    method: float
    before: Sequence[tuple[str, bool]] = ()
    after: Sequence[tuple[str, bool]] = ()

    @property
    def delta(self) -> float:
        """Method minus baseline."""
        return self.method - self.baseline


def rendered(template: str, **values: Any) -> str:
    """Return one of the templates of pages with its values."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    except ImportError as error:
        raise ConfigurationError("the report needs jinja2: pip install 'es-ttc[evaluate]'") from error

    environment = Environment(
        loader=PackageLoader("es_ttc.lab.evaluation"),
        autoescape=select_autoescape((".html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(score=shown_score, signed=signed, p=shown_p_value, milliseconds=shown_milliseconds)
    return environment.get_template(template).render(**values)


def render(evaluation: Evaluation) -> str:
    """Return the report as one HTML document."""
    headline = headline_metrics(evaluation.k)
    main = headline[0]
    sections = [
        {
            "result": collection,
            "best": {metric: best_method(collection, metric) for metric in headline},
            "leader": leader(collection, main),
            "sentence": comparison_sentence(collection, main),
            "moved": moved(collection, leader(collection, main), main),
            "families": families(collection),
        }
        for collection in evaluation.collections
    ]
    return rendered(
        "report.html.j2",
        evaluation=evaluation,
        sections=sections,
        headline=headline,
        main=main,
        overall=overall(evaluation.collections, main),
        verdict=significance,
        tie=TIE,
        confidence=f"{CONFIDENCE:.0%}".replace("%", " %"),
        settings={name: compact(value) for name, value in evaluation.settings.items()},
        params={method: compact(value) for method, value in parameters(evaluation).items()},
    )


def require_writable(*, folder: Path | None = None, file: Path | None = None) -> None:
    """Create a folder, or a file's, so that a path that cannot be written is an error before anything long begins."""
    for needed in (folder, file and file.absolute().parent):
        if needed is not None:
            try:
                needed.mkdir(parents=True, exist_ok=True)
                with TemporaryFile(dir=needed):
                    pass
            except OSError as error:
                raise ConfigurationError(f"folder [{needed}] cannot be written: {error.strerror}") from error


def write_report(evaluation: Evaluation, folder: Path) -> Path:
    """Write the page and ``results.json`` into a folder and return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    replace_file(folder / "results.json", results_json(evaluation))
    replace_file(page, render(evaluation).encode())
    return page


def results_json(evaluation: Evaluation) -> bytes:
    """Return ``results.json`` as it is written."""
    return orjson.dumps(evaluation.as_json(), option=orjson.OPT_INDENT_2) + b"\n"


def shown_score(value: float) -> str:
    """Return a number with three decimals."""
    return f"{value:.3f}"


def signed(value: float) -> str:
    """Return a number with three decimals and a sign; 0.000 has none."""
    text = f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
    return "0.000" if text[1:] == "0.000" else text


def shown_p_value(value: float) -> str:
    """Return a p value with three decimals, or ``< 0.001``."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def shown_milliseconds(value: float) -> str:
    """Return a time with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def compact(value: Any) -> str:
    """Return a value as one line of JSON; a text unchanged."""
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def best_method(result: CollectionResult, metric: str) -> float:
    """Return the greatest mean of a metric, rounded as displayed, so that equal displayed values are both the best."""
    return max(round(method.scores.mean(metric), 3) for method in result.methods.values())


def leader(result: CollectionResult, metric: str) -> MethodResult:
    """Return the method with the greatest mean, the first of equals; the baseline only if it is the only method."""
    others = [method for method in result.methods.values() if method.name != result.baseline]
    return max(others or result.methods.values(), key=lambda method: method.scores.mean(metric))


def significance(comparison: Comparison) -> str:
    """Return ``better``, ``worse`` or ``no clear difference`` at the level of the interval."""
    if comparison.p >= LEVEL:
        return "no clear difference"
    return "better" if comparison.delta > 0 else "worse"


def comparison_sentence(result: CollectionResult, metric: str) -> str:
    """Say in words how the methods compare with the baseline, losses too."""
    compared = [method for method in result.methods.values() if method.name != result.baseline]
    baseline = f"{result.baseline} ({shown_score(result.methods[result.baseline].scores.mean(metric))})"
    if not compared:
        return f"{metric} of {baseline}."
    groups: dict[str, list[str]] = {"better": [], "no clear difference": [], "worse": []}
    for method in sorted(compared, key=lambda method: -method.scores.mean(metric)):
        versus = method.versus[metric]
        groups[significance(versus)].append(f"{method.name} ({signed(versus.delta)})")
    words = {
        "better": f"better than {baseline}",
        "no clear difference": f"not clearly different from {baseline}",
        "worse": f"worse than {baseline}",
    }
    parts = [f"{', '.join(names)} {words[kind]}" for kind, names in groups.items() if names]
    return f"By {metric}: {'; '.join(parts)}."


def moved(result: CollectionResult, method: MethodResult, metric: str) -> tuple[list[ChangedQuery], list[ChangedQuery]]:
    """Return the queries that a method improves most and those that it worsens most, against the baseline."""
    baseline = result.methods[result.baseline].scores
    before, after = baseline.values[metric], method.scores.values[metric]
    order = np.argsort(before - after, kind="stable")
    queries = [
        ChangedQuery(
            query := baseline.queries[i],
            result.texts[query],
            float(before[i]),
            float(after[i]),
            _firsts(result, result.methods[result.baseline], query),
            _firsts(result, method, query),
        )
        for i in order
    ]
    gains = [query for query in queries[:_MOVED] if query.delta > TIE]
    losses = [query for query in queries[::-1][:_MOVED] if query.delta < -TIE]
    return gains, losses


def _firsts(result: CollectionResult, method: MethodResult, query: str) -> list[tuple[str, bool]]:
    right = result.right.get(query, frozenset())
    return [(result.labels.get(document, document), document in right) for document in method.firsts.get(query, ())]


def families(result: CollectionResult) -> dict[str, list[str]]:
    """Return every metric by family, for the full table."""
    groups: dict[str, list[str]] = {}
    for metric in result.methods[result.baseline].scores.values:
        family, _, cutoff = metric.partition("@")
        groups.setdefault(family if cutoff else "whole ranking", []).append(metric)
    return groups


def overall(collections: Sequence[CollectionResult], metric: str) -> dict[str, tuple[int, int, int]]:
    """Return by method on how many collections its mean wins, ties and loses against the baseline."""
    counts: dict[str, tuple[int, int, int]] = {}
    for method in collections[0].methods:
        deltas = [
            collection.methods[method].versus[metric].delta
            for collection in collections
            if collection.methods[method].versus
        ]
        wins, losses = sum(delta > TIE for delta in deltas), sum(delta < -TIE for delta in deltas)
        if deltas:
            counts[method] = (wins, len(deltas) - wins - losses, losses)
    return counts


def parameters(evaluation: Evaluation) -> Mapping[str, Mapping[str, Any]]:
    """Return every method's parameters, which are the same on all collections."""
    return {name: method.params for name, method in evaluation.collections[0].methods.items()}
