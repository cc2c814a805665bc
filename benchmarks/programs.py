"""All programs and their baselines on the public collections, in memory: the paper's table on this project's data.

Run it in two steps::

    python -m benchmarks.programs run FOLDER [--encoder minilm] [--cheap] [--queries N] [--documents N] NAME...
    python -m benchmarks.programs report FOLDER [--write]

`run` evaluates collections one by one and writes `FOLDER/ENCODER.COLLECTION.json`; `report` reads them all and prints
the tables. With `--write` it also writes what is generated from them: the table that `budget` picks from, the page on
which program to use, and the plot.

Costs are counted in encoder calls, and in seconds: processor time of one thread, measured on a sample of every kind of
text (:func:`encoding_seconds`) and on scoring some of the queries.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.program_costs import Cost, Kind, cost_of, counted
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder, Role
from es_ttc.index.ingest.compose import compose
from es_ttc.lab.discovery.summary import pareto_front
from es_ttc.lab.discovery.tasks import spec_of_programs
from es_ttc.lab.evaluation.bootstrap import CONFIDENCE, RESAMPLES, TIE, compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import EvaluatedMethod, resolve_one, retrieval
from es_ttc.lab.evaluation.plan import evaluate
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.programs.catalogue import CATALOGUE, REVERSED, TOPIC
from es_ttc.rescorers.programs.interface import TOPIC_LENGTH
from es_ttc.rescorers.programs.rescorers import ProgramParams, ProgramRescorer
from es_ttc.settings import Settings
from es_ttc.vectors.chunks import GRANULARITIES

SEED = 2026
ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
MAIN = "ndcg@10"
SIXTEEN = "Rocchio, best of 16 in each cell"
DEPTHS = (2, 3, 5, 10)
WEIGHTS = (0.1, 0.3, 0.5, 0.7)
"""The sixteen Rocchio configurations of the paper's appendix D."""
PAIRS = (("lexhybridrrf", "plain RRF"), ("crossroundrrf", "plain RRF"), ("softcentroid", SIXTEEN))

SIZES: dict[str, tuple[int | None, int | None]] = {
    "limit-small": (300, None),
    "toollens": (300, None),
    "hotpotqa-train-hipporag": (None, None),
    "cranfield": (None, None),
    "scifact": (None, None),
    "npl-vaswani": (None, None),
    "qmsum-meetings": (None, None),
}
"""Test queries and documents kept of each collection, None for all, unless the command says otherwise."""

TIMED_TEXTS = 48
TIMED_QUERIES = 64


def load(name: str, split: str = "test", sizes: tuple[int | None, int | None] | None = None) -> Collection:
    """Return a collection, cut down where :data:`SIZES` says so."""
    return subset(load_collection(DATA / name, split), *(sizes or SIZES[name]))


def subset(collection: Collection, queries: int | None, documents: int | None) -> Collection:
    """Return a seeded sample: some queries, all documents judged for them, others up to the number wanted."""
    chosen = _sample(list(collection.queries), queries)
    judged = {document for query in chosen for document in collection.qrels[query]}
    others = [document.id for document in collection.documents if document.id not in judged]
    kept = judged | set(others if documents is None else _sample(others, max(0, documents - len(judged))))
    return replace(
        collection,
        documents=tuple(document for document in collection.documents if document.id in kept),
        queries={query: collection.queries[query] for query in chosen},
        qrels={query: collection.qrels[query] for query in chosen},
    )


def methods(*, cheap: bool) -> list[EvaluatedMethod]:
    """Return the programs, with the paper's own lexical channels, and what they are compared with.

    Args:
        cheap: Leave out the programs that expand queries, thirteen encodings of each.
    """
    rocchio = [
        replace(resolve_one("rocchio", {"documents": depth, "weight": weight}), name=f"rocchio {depth}/{weight}")
        for depth in DEPTHS
        for weight in WEIGHTS
    ]
    chosen = [entry for entry in CATALOGUE.values() if not (cheap and entry.passes)]
    paper = [resolve_one(entry.name, {"lexical": "paper"} if entry.lexical else {}) for entry in chosen]
    engine = [replace(resolve_one(name), name=f"{name}, engine's BM25") for name in ("lexhybridrrf", "crossroundrrf")]
    baselines = [resolve_one("dense"), resolve_one("bm25"), replace(resolve_one("hybrid", {"k": 0}), name="plain RRF")]
    return [*baselines, resolve_one("softcentroid"), *rocchio, *paper, *engine]


@dataclass(frozen=True, slots=True)
class Share:
    """A cost ratio c, pooled over cells as the paper pools its tasks: the sums' ratio, not the ratios' mean.

    Attributes:
        whole: Index and queries together.
        index: The documents' part.
        query: The queries' part.
    """

    whole: float = 1.0
    index: float = 1.0
    query: float = 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """One method over all cells (encoder, collection), as the paper pools them.

    Attributes:
        name: The method.
        calls: Its cost in encoder calls.
        seconds: Its cost in seconds.
        mean: Mean of the cells' differences from dense in nDCG@10.
        median: Their median.
        wins: Cells above +.001.
        ties: Cells within.
        losses: Cells below.
        better: Cells significantly better, by the bootstrap.
        worse: Cells significantly worse.
    """

    name: str
    calls: Share
    seconds: Share
    mean: float
    median: float
    wins: int
    ties: int
    losses: int
    better: int
    worse: int


@click.group()
def main() -> None:
    """Programs and their baselines on the public collections."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(SIZES)))
@click.option("--encoder", default="minilm", show_default=True)
@click.option("--cheap", is_flag=True, help="Without the programs that expand queries.")
@click.option("--queries", type=int, help="Sample so many test queries.")
@click.option("--documents", type=int, help="Sample so many documents, those judged for the queries among them.")
def run(
    folder: Path, names: Sequence[str], encoder: str, cheap: bool, queries: int | None, documents: int | None
) -> None:
    """Evaluate collections; what is there already is done again."""
    settings = Settings(encoder=encoder)
    loaded = CachedEncoder(load_encoder(encoder, cache_dir=settings.cache_dir), settings.cache_dir / "encodings")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        start = time.perf_counter()
        sizes = (queries or SIZES[name][0], documents or SIZES[name][1])
        found = evaluated(load(name, sizes=sizes), loaded, methods(cheap=cheap))
        content = orjson.dumps({"encoder": encoder, "collection": name, **found}, option=orjson.OPT_INDENT_2)
        (folder / f"{encoder}.{name}.json").write_bytes(content)
        click.echo(f"{encoder} {name}: {time.perf_counter() - start:.0f} s", err=True)


def encoded(collection: Collection, encoder: Encoder) -> tuple[CorpusFeatures, list[Query]]:
    """Return a collection's documents with their chunks, and its queries."""
    spec = spec_of_programs(collection, encoder)
    features = encode_corpus(collection.documents, spec, encoder)
    return features, encode_queries(list(collection.queries.values()), encoder, tokens=False)


def evaluated(collection: Collection, encoder: CachedEncoder, wanted: Sequence[EvaluatedMethod]) -> dict[str, Any]:
    """Return the metrics and costs of methods on one collection, whole corpus as the window."""
    features, queries = encoded(collection, encoder)
    texts = [compose(document.source, ("title", "text"))[0] for document in collection.documents]
    found = retrieval([method for method in wanted if method.rescorer is None and method.name != "plain RRF"])
    searcher = MemorySearcher(collection, texts, found, features, queries, window=None)
    result = evaluate(collection, wanted, searcher).as_json(10)
    counts, rates = counted(features), encoding_seconds(features, queries, encoder.uncached)
    for method in wanted:
        entry = CATALOGUE.get(method.name.partition(",")[0])
        if entry is None:
            continue
        cost = cost_of(entry, counts, len(queries))
        scoring = scoring_seconds(method, features, queries)
        seconds = cost_of(entry, counts, len(queries), rates, scoring)
        result["methods"][method.name]["cost"] = _ratios(cost) | {"seconds": _ratios(seconds), "scoring": scoring}
    return result


def _ratios(cost: Cost) -> dict[str, float]:
    return {**asdict(cost), "c": cost.ratio, "at_index": cost.at_index, "at_query": cost.at_query}


def encoding_seconds(features: CorpusFeatures, queries: Sequence[Query], encoder: Encoder) -> dict[Kind, float]:
    """Return the processor time that a text of each kind takes to encode, on a seeded sample of the collection's."""
    random = np.random.default_rng(SEED)
    documents = [own for own in features.chunks if own.text]
    chunks = {
        name: [own.text[start:end] for own in documents for start, end in own.spans[name].tolist()]
        for name in GRANULARITIES
    }
    asked = [query.text for query in queries]
    sentences = random.choice(np.array(chunks["sentences"], object), TIMED_TEXTS).tolist()
    expanded = [
        f"{text} {sentence}" for text, sentence in zip(random.choice(asked, TIMED_TEXTS), sentences, strict=True)
    ]
    whole = [own.text for own in documents]
    kinds: dict[Kind, tuple[list[str], Role, int | None]] = {
        "document": (whole, "document", None),
        "query": (asked, "query", None),
        "expanded": (expanded, "query", None),
        REVERSED: (whole, "query", None),
        TOPIC: (whole, "document", TOPIC_LENGTH),
        **{name: (chunks[name], "document", None) for name in GRANULARITIES},
    }
    rates = {}
    for kind, (texts, role, length) in kinds.items():
        sample = random.choice(np.array(texts, object), TIMED_TEXTS).tolist()
        reader = encoder if length is None else encoder.shortened(length)
        reader.encode(sample[:4], role=role, tokens=False)
        start = time.process_time()
        reader.encode(sample, role=role, tokens=False)
        rates[kind] = (time.process_time() - start) / TIMED_TEXTS
    return rates


def scoring_seconds(method: EvaluatedMethod, features: CorpusFeatures, queries: Sequence[Query]) -> float:
    """Return a query's share of the processor time of scoring some queries together; their expansions are cached."""
    program, params = method.rescorer, method.params
    assert isinstance(program, ProgramRescorer)
    assert isinstance(params, ProgramParams)
    known = np.flatnonzero(features.present)
    nothing = np.zeros(len(known), np.float32)
    window = features.window(known, nothing, program.needs(params) | program.wants)
    some = queries[:TIMED_QUERIES]
    lexical = np.zeros((len(some), len(known)), np.float32) if method.name.endswith("engine's BM25") else None
    start = time.process_time()
    program.batch(some, window, params, lexical)
    return (time.process_time() - start) / len(some)


@main.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(SIZES)))
@click.option("--encoder", default="minilm", show_default=True)
@click.option("--documents", type=int, help="Sample so many documents, those judged for the queries among them.")
def served(names: Sequence[str], encoder: str, documents: int | None) -> None:
    """Print what a gateway would serve: a window of 100 that BM25 found, and its scores as the lexical channel."""
    settings = Settings(encoder=encoder)
    loaded = CachedEncoder(load_encoder(encoder, cache_dir=settings.cache_dir), settings.cache_dir / "encodings")
    free = [entry.name for entry in CATALOGUE.values() if not entry.passes and not entry.calibrated]
    wanted = [resolve_one(name) for name in ("dense", "bm25", "hybrid", *free)]
    cells = []
    for name in names:
        collection = load(name, sizes=(SIZES[name][0], documents or SIZES[name][1]))
        features, queries = encoded(collection, loaded)
        texts = [compose(document.source, ("title", "text"))[0] for document in collection.documents]
        searcher = MemorySearcher(collection, texts, retrieval(wanted), features, queries, first_pass="bm25")
        found = evaluate(collection, wanted, searcher).as_json(10)
        cells.append({"encoder": encoder, "collection": name, **found})
    data = ", ".join(f"{cell['collection']} ({cell['encoder']}, {_size(cell)})" for cell in cells)
    print(heading("TTC programs over a window of 100 that BM25 found", data=data, packages=("numpy", "sentencex")))
    print(by_cell(cells))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--write", is_flag=True, help="Write what is generated from the tables.")
def report(folder: Path, write: bool) -> None:
    """Print the tables of all collections that were evaluated."""
    cells = sorted((orjson.loads(path.read_bytes()) for path in folder.glob("*.json")), key=_place)
    names = ", ".join(f"{cell['collection']} ({cell['encoder']}, {_size(cell)})" for cell in cells)
    print(heading("TTC programs against dense retrieval", data=names, packages=("numpy", "sentencex")))
    summaries = [best_of_sixteen(cells), *(one for name in _names(cells) if (one := summarised(name, cells)))]
    pooled, each, intervals = markdown(summaries, len(cells)), by_cell(cells), by_collection(cells)
    print(pooled, each, comparisons(cells), intervals, sep="\n")
    if write:
        written(summaries, cells)


def summarised(name: str, cells: Sequence[dict[str, Any]]) -> Summary | None:
    """Pool a method's cells; None where it was not evaluated, or is the baseline."""
    own = [cell["methods"][name] for cell in cells if name in cell["methods"]]
    versus = [method["versus"][MAIN] for method in own if MAIN in method["versus"]]
    costs = [method["cost"] for method in own if "cost" in method]
    return _summary(name, versus, costs) if versus else None


def best_of_sixteen(cells: Sequence[dict[str, Any]]) -> Summary:
    """Pool the best Rocchio configuration of each cell, chosen on its test queries: the paper's comparison."""
    return _summary(SIXTEEN, [cell["methods"][best_rocchio(cell)]["versus"][MAIN] for cell in cells], [])


def best_rocchio(cell: dict[str, Any]) -> str:
    """Return the name of the cell's best of the sixteen."""
    methods: dict[str, Any] = cell["methods"]
    return max((name for name in methods if name.startswith("rocchio ")), key=lambda name: float(methods[name][MAIN]))


def _summary(name: str, versus: Sequence[dict[str, Any]], costs: Sequence[dict[str, Any]]) -> Summary:
    deltas = np.array([one["delta"] for one in versus])
    sure = [one for one in versus if one["p"] < 1 - CONFIDENCE]
    return Summary(
        name,
        _share(costs) if costs else Share(),
        _share([cost["seconds"] for cost in costs]) if costs else Share(),
        float(deltas.mean()),
        float(np.median(deltas)),
        int(np.sum(deltas > TIE)),
        int(np.sum(np.abs(deltas) <= TIE)),
        int(np.sum(deltas < -TIE)),
        sum(one["delta"] > 0 for one in sure),
        sum(one["delta"] < 0 for one in sure),
    )


def _share(costs: Sequence[dict[str, float]]) -> Share:
    pooled = Cost(*(sum(cost[part] for cost in costs) for part in ("base_index", "base_query", "index", "query")))
    return Share(pooled.ratio, pooled.at_index, pooled.at_query)


_COLUMNS = ("method", "c", "c of a query", "mean Δ", "median Δ", "W/T/L", "sure W/L")


def rows(summaries: Sequence[Summary]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the table, as text; of the sixteen Rocchio configurations the one of the greatest mean."""
    best = max((one for one in summaries if one.name.startswith("rocchio ")), key=lambda one: one.mean, default=None)
    for one in summaries:
        if one.name.startswith("rocchio ") and one is not best:
            continue
        yield (
            one.name,
            *(f"{part:.1f}" for part in (one.calls.whole, one.calls.query)),
            f"{one.mean:+.4f}",
            f"{one.median:+.4f}",
            f"{one.wins}/{one.ties}/{one.losses}",
            f"{one.better}/{one.worse}",
        )


def markdown(summaries: Sequence[Summary], cells: int) -> str:
    """Return the pooled table."""
    return f"nDCG@10 against dense, {cells} cells (encoder, collection):\n\n{table(_COLUMNS, rows(summaries))}"


def by_cell(cells: Sequence[dict[str, Any]]) -> str:
    """Return one row a method and one column a cell; a star where the interval leaves out 0."""
    lines = [
        ("dense, nDCG@10", *(f"{cell['methods']['dense'][MAIN]:.3f}" for cell in cells)),
        *((name, *(_delta(cell, name) for cell in cells)) for name in _shown(cells)),
    ]
    return table(("method", *(f"{cell['collection']} ({cell['encoder']})" for cell in cells)), lines)


def _delta(cell: dict[str, Any], name: str) -> str:
    name = best_rocchio(cell) if name == SIXTEEN else name
    if name not in cell["methods"]:
        return ""
    versus = cell["methods"][name]["versus"][MAIN]
    return f"{versus['delta']:+.3f}{'*' if versus['p'] < 1 - CONFIDENCE else ''}"


def comparisons(cells: Sequence[dict[str, Any]]) -> str:
    """Return what the paper claims of two methods each, cell by cell: the paired difference with its interval."""
    lines = []
    for cell in cells:
        row = [f"{cell['collection']} ({cell['encoder']})"]
        for one, other in PAIRS:
            names = (one, best_rocchio(cell) if other == SIXTEEN else other)
            values = np.array([cell["methods"][name]["per_query"][MAIN] for name in names])
            means = resampled_means(values, resamples=RESAMPLES, seed=SEED)
            versus = compare(values[0], values[1], means[:, 0], means[:, 1])
            row.append(f"{versus.delta:+.3f} ({versus.interval.low:+.3f} to {versus.interval.high:+.3f})")
        lines.append(row)
    return "Paired differences:\n\n" + table(("cell", *(f"{one} against {other}" for one, other in PAIRS)), lines)


def by_collection(cells: Sequence[dict[str, Any]]) -> str:
    """Return each cell's differences with their intervals."""
    parts = []
    for cell in cells:
        dense = cell["methods"]["dense"][MAIN]
        lines = []
        for name, method in cell["methods"].items():
            if name == "dense":
                continue
            versus = method["versus"][MAIN]
            low, high = versus["interval"]["low"], versus["interval"]["high"]
            record = f"{versus['wins']}/{versus['ties']}/{versus['losses']}"
            lines.append((name, f"{method[MAIN]:.4f}", f"{versus['delta']:+.4f}", f"{low:+.4f} to {high:+.4f}", record))
        title = f"## {cell['collection']}, {cell['encoder']} ({_size(cell)}; dense {dense:.4f})\n\n"
        parts.append(title + table(("method", MAIN, "Δ", "95 % interval", "queries W/T/L"), lines))
    return "\n".join(parts)


def written(summaries: Sequence[Summary], cells: Sequence[dict[str, Any]]) -> None:
    """Write the table that `budget` reads, the plot, and the tables in the pages."""
    programs = [one for one in summaries if one.name in CATALOGUE]
    measured = [{"name": one.name, "c": round(one.calls.whole, 2), "delta": round(one.median, 4)} for one in programs]
    target = ROOT / "es_ttc" / "rescorers" / "programs" / "measured.json"
    target.write_bytes(orjson.dumps(measured, option=orjson.OPT_INDENT_2) + b"\n")
    docs = ROOT / "docs"
    plotted(summaries, docs / "images" / "programs.svg")
    _between(docs / "how-to" / "choose-a-program.md", f"{markdown(summaries, len(cells))}\n{on_the_front(programs)}\n")
    _between(docs / "results" / "programs.md", by_cell(cells))


def on_the_front(programs: Sequence[Summary]) -> str:
    """Return the sentence that names the programs that no other is as cheap and as good as, dense among them."""
    points = [(1.0, 0.0), *((one.calls.whole, one.median) for one in programs)]
    named = [f"`{programs[place - 1].name}`" for place in pareto_front(points) if place]
    free = max((one for one in programs if one.calls.query == 1), key=lambda one: one.median)
    return (
        f"Programs on the front of cost and median gain (no cheaper program is as good): "
        f"{', '.join(named) or 'none'}. The best that encodes nothing at query time, the default of "
        f"`program`: `{free.name}`."
    )


def _between(path: Path, tables: str) -> None:
    """Write tables between a page's marks."""
    start, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    before, mark, rest = path.read_text(encoding="utf-8").partition(start)
    assert mark, path
    path.write_text(f"{before}{start}{tables}{end}{rest.partition(end)[2]}", encoding="utf-8")


def plotted(summaries: Sequence[Summary], path: Path) -> None:
    """Draw median difference against cost in calls and in seconds, each with the programs' Pareto front."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    programs = [one for one in summaries if one.name in CATALOGUE]
    baselines = [one for one in summaries if one.name in ("plain RRF", "softcentroid")]
    figure, both = pyplot.subplots(1, 2, figsize=(13, 5.2), layout="constrained", sharey=True)
    for axes, of, what in zip(both, ("calls", "seconds"), ("encoder calls", "seconds"), strict=True):
        points = [(1.0, 0.0), *((getattr(one, of).whole, one.median) for one in programs)]
        names = ["dense", *(one.name for one in programs)]
        front = pareto_front(points)
        axes.axhline(0, color="0.8", linewidth=0.8)
        axes.plot(*zip(*(points[place] for place in front), strict=True), color="tab:blue", linewidth=1, zorder=1)
        for place, point in enumerate(points):
            axes.scatter(*point, color="tab:blue" if place in front else "0.6", zorder=3)
        for one in baselines:
            axes.scatter(1.0, one.median, facecolor="white", edgecolor="0.4", zorder=3)
            axes.annotate(one.name, (1.0, one.median), textcoords="offset points", xytext=(7, -3), fontsize=8)
        axes.set_xlim(0.5, 1.3 * max(point[0] for point in points))
        axes.set_xlabel(f"c in {what}, index and queries together (dense = 1)")
        _label(axes, names, points)
    both[0].set_ylabel("median Δ nDCG@10 against dense, over cells")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _label(axes: Any, names: Sequence[str], points: Sequence[tuple[float, float]]) -> None:
    """Write names beside points; those far to the right stand in a column of their own, for they stand close."""
    low, high = axes.get_ylim()
    gap, right = (high - low) / 24, 0.8 * max(point[0] for point in points)
    taken = low
    for name, (cost, gain) in sorted(zip(names, points, strict=True), key=lambda one: one[1][1]):
        if cost < right:
            below = gain < 0
            axes.annotate(name, (cost, gain), textcoords="offset points", xytext=(7, -10 if below else 4), fontsize=8)
            continue
        taken = max(taken + gap, gain)
        place = (1.06 * right / 0.8, taken)
        line = {"arrowstyle": "-", "color": "0.8", "relpos": (0, 0.5)}
        axes.annotate(name, (cost, gain), xytext=place, fontsize=8, va="center", arrowprops=line)


def _place(cell: dict[str, Any]) -> tuple[str, int]:
    return cell["encoder"], list(SIZES).index(cell["collection"])


def _shown(cells: Sequence[dict[str, Any]]) -> list[str]:
    names = [name for name in _names(cells) if name != "dense" and not name.startswith("rocchio ")]
    sixteen = [SIXTEEN] if any(name.startswith("rocchio ") for name in _names(cells)) else []
    return [*names[:3], *sixteen, *names[3:]]


def _names(cells: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell["methods"]))


def _size(cell: dict[str, Any]) -> str:
    return f"{cell['queries']} queries, {cell['documents']} documents"


def _sample(ids: Sequence[str], size: int | None) -> list[str]:
    if size is None or size >= len(ids):
        return list(ids)
    kept = set(random.Random(SEED).sample(sorted(ids), size))
    return [one for one in ids if one in kept]


if __name__ == "__main__":
    main()
