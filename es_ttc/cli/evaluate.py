"""`es-ttc evaluate`: methods on BEIR collections, in memory or through an engine, compared with a baseline."""

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field
from rich import box
from rich.markup import escape
from rich.table import Table

from es_ttc.cli import tables
from es_ttc.cli.common import AsJson, EncoderOptions, print_json
from es_ttc.cli.evaluating import cached_encoder, stages, window_option
from es_ttc.cli.judged import judgements_option, load_judged, require_one_source, with_llm_flag
from es_ttc.cli.model_options import ARGUMENTS_KEY, FILE_PATH, FOLDER_PATH, command
from es_ttc.cli.options import (
    CODEC_CHOICE,
    SKIP_HELP,
    STORAGE_HELP,
    RankingModels,
    codec_help,
    first_pass_option,
    params_option,
    with_storage,
)
from es_ttc.common.files import replace_file
from es_ttc.common.interruption import interruptible
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation import report as reports
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.methods import EvaluatedMethod, resolve
from es_ttc.lab.evaluation.metrics import headline_metrics
from es_ttc.lab.evaluation.plan import EvaluationPlan, run_plan
from es_ttc.lab.evaluation.report import best_method, require_writable, shown_p_value, shown_score, signed, significance
from es_ttc.lab.evaluation.results import CollectionResult, Evaluation, MethodResult
from es_ttc.rescorers.learned.model import read_models
from es_ttc.rescorers.learned.rescorer import LearnedParams
from es_ttc.rescorers.relevance import METHOD
from es_ttc.rescorers.tuned import Tuned
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import EngineSettings, Settings
from es_ttc.vectors.codecs import Profile, SkipTokens

MEMORY = "memory"
_METHODS = "blend,hybrid,bm25,dense,maxsim,spectral"
_PIPED_WIDTH = 150
_WIDE = 125
_CREDENTIALS = re.compile(r"//[^/\s]*@")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EncoderOptions):
    """Options of `es-ttc evaluate`."""

    methods: Annotated[str, "--methods NAMES", "Methods, separated by commas."] = _METHODS
    judgements: Annotated[
        str | None,
        judgements_option(
            "Index of the engine, in place of DATA: its judged queries (`es-ttc judge`) are asked of the index itself."
        ),
    ]
    with_llm: Annotated[bool, with_llm_flag]
    engine: Annotated[
        str,
        "--engine URL|memory",
        "memory, or the URL of an engine: each collection is then indexed there temporarily, and searched through "
        "the gateway.",
    ] = MEMORY
    split: Annotated[str, "--split NAME", "Split of the judgements: qrels/NAME.tsv."] = "test"
    window: Annotated[int | str, window_option]
    first_pass: Annotated[
        str, first_pass_option(["bm25", "dense", "hybrid"], "bm25", "First pass of rescorers; hybrid in memory only.")
    ]
    k: Annotated[int, "--k N", Field(ge=1, le=1000), "Cutoff of the displayed metrics."] = 10
    baseline: Annotated[
        str | None, "--baseline NAME", "Method that the others are compared with. Default: dense, or the first."
    ] = None
    params: Annotated[
        dict[str, dict[str, Any]],
        params_option(
            'Parameters by method, for example {"bm25": {"k1": 0.9, "b": 0.4}}.',
            '{"spectral": {"scales": [1, 5]}}',
            nested=True,
        ),
    ]
    tuned: Annotated[
        tuple[Path, ...],
        FILE_PATH,
        "File of one method's parameters, written by `es-ttc tune`; may be given several times.",
    ] = ()
    ranking_models: RankingModels = None
    storage: Annotated[Profile | None, STORAGE_HELP] = None
    codec: Annotated[
        str | None, CODEC_CHOICE, codec_help(", in memory and in the index. Default: that of --storage, else float16")
    ] = None
    skip_tokens: Annotated[SkipTokens | None, SKIP_HELP] = None
    max_tokens: Annotated[
        int,
        "--max-tokens N",
        Field(ge=1, le=1_000_000),
        "Maximum number of token vectors per document; a warning counts the documents that have more.",
    ] = 1024
    out: Annotated[Path | None, FILE_PATH, "File for the results as JSON."] = None
    report: Annotated[
        Path | None, "--report DIR", FOLDER_PATH, "Folder for the report: index.html and results.json."
    ] = None

    @property
    def stored(self) -> dict[str, Any]:
        """How token vectors are stored, as fields of a plan."""
        options = {"storage": self.storage, "codec": self.codec, "skip_tokens": self.skip_tokens}
        return {"codec": "float16", **with_storage(options)}

    @property
    def engine_settings(self) -> EngineSettings | None:
        """The engine that is searched; None for memory."""
        if self.engine != MEMORY:
            return EngineSettings(engine=self.engine)
        return EngineSettings() if self.judgements else None


@command(
    "es-ttc evaluate data/scifact",
    "es-ttc evaluate data/scifact data/nfcorpus --methods blend,hybrid,bm25 --report report",
    'es-ttc evaluate data/mine --split train --params \'{"spectral": {"scales": [1, 5, 20, "mean"]}}\'',
    "es-ttc evaluate data/mine --engine http://127.0.0.1:9200 --methods bm25,spectral",
    "es-ttc evaluate --judgements articles --methods blend,hybrid,bm25",
    "es-ttc evaluate data/mine --methods dense,nnn --first-pass dense --tuned nnn.json",
    "es-ttc evaluate data/limit-small --encoder mpnet@torch:float32 --window all --out results.json",
)
def evaluate(
    data: Annotated[tuple[Path, ...], "DATA..."] = (), /, *, options: EvaluateOptions, as_json: AsJson
) -> None:
    """Measure methods on judged collections, or on an index by its judgements.

    Each DATA is a BEIR folder: corpus.jsonl ({"_id", "title", "text"}), queries.jsonl ({"_id", "text"}) and
    qrels/SPLIT.tsv (query-id, corpus-id, score, below a header line).

    blend rescores what BM25 finds together with as many documents nearest by pooled vector. These methods search the
    whole corpus: bm25, dense, hybrid (both, fused by reciprocal rank), retrievers (knn:nnn, knn:spectral) and, through
    an engine, rewriters (sira, rm3). Every other method rescores the window of the first pass. All are compared with
    the baseline on the same queries: paired bootstrap of 10,000 resamples, 95 % intervals, and the numbers of queries
    won, tied and lost.

    rr, gar, slidegar and rgs spend the budget of a reranker, starting with the window. All but rr use the neighbour
    graph, which is built temporarily.

    The name `programs` means the twelve TTC programs. With --window all they rank the whole corpus for all queries
    together, as their paper does.

    With --judgements INDEX the queries and judgements are those of `es-ttc judge`, and the documents those of the
    index: nothing is indexed.

    Encodings are kept in the cache folder, so a second run is quick. Tune on a different split than you report.
    """
    judgements, with_llm = options.judgements, options.with_llm
    require_one_source(data, judgements, with_llm=with_llm)
    settings = options.settings(Settings, ranking_models=options.ranking_models)
    served = read_models(settings.ranking_models)
    wanted = [name.strip() for name in options.methods.split(",") if name.strip()]
    if not wanted:
        raise InvalidRequest("[--methods] names no method")
    chosen = _tuned(options.tuned)
    plan = EvaluationPlan(
        methods=resolve(wanted, with_tuned(options.params, chosen), served),
        k=options.k,
        baseline=options.baseline,
        first_pass=options.first_pass,  # type: ignore[arg-type]  # click has checked it
        window=None if isinstance(options.window, str) else options.window,
        **options.stored,
        max_tokens=options.max_tokens,
        engine=options.engine_settings,
        index=judgements,
        ranking_models=settings.ranking_models,
    )
    if judgements is not None and plan.engine is not None:
        found = [load_judged(plan.engine, judgements, with_llm=with_llm)]
    else:
        found = _load(data, options.split)
    collections = [_warned(collection, chosen, plan.methods) for collection in found]
    require_writable(folder=options.report, file=options.out)
    with interruptible():
        evaluation = _evaluate(plan, collections, settings, quiet=as_json)
    if options.out is not None:
        replace_file(options.out, reports.results_json(evaluation))
        click.echo(f"results: {options.out}", err=True)
    if options.report is not None:
        click.echo(f"report: {reports.write_report(evaluation, options.report)}", err=True)
    if as_json:
        print_json(evaluation.as_json())


def _tuned(files: Sequence[Path]) -> list[Tuned]:
    found = {path: Tuned.read(path) for path in files}
    for path, tuned in found.items():
        if tuned.method == METHOD:
            raise InvalidRequest(
                f"[{path}] is the relevance of hits, which changes no ranking: leave --tuned {path} out"
            )
    return [*found.values()]


def with_tuned(params: Mapping[str, Mapping[str, Any]], tuned: Sequence[Tuned]) -> dict[str, Mapping[str, Any]]:
    """Return parameters by method, the tuned ones among them."""
    merged = dict(params)
    for one in tuned:
        if one.method in merged:
            raise InvalidRequest(f"parameters of [{one.method}] are given twice: name each method once")
        merged[one.method] = one.params
    return merged


def _warned(collection: Collection, tuned: Sequence[Tuned], methods: Sequence[EvaluatedMethod]) -> Collection:
    """Say in the results which figures flatter a method, for it was tuned or learned on the very queries."""
    same = [one for one in tuned if (one.data, one.split) == (collection.name, collection.split)]
    warnings = [
        f"the parameters of {one.method} were chosen on these very queries: its figures are too good" for one in same
    ]
    for method in methods:
        if isinstance(method.params, LearnedParams):
            trained = method.params.chosen.trained
            if collection.name in str(trained.get("data")).split("+") and trained.get("split") == collection.split:
                warnings.append(f"{method.name} was trained on these very queries: its figures are too good")
    return replace(collection, warnings=(*collection.warnings, *warnings))


def _load(data: Sequence[Path], split: str) -> list[Collection]:
    """Read all collections before anything long begins."""
    collections = [load_collection(folder, split) for folder in data]
    names = [collection.name for collection in collections]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"two data folders are called [{name}]: results go by name, so rename one")
    return collections


def _evaluate(
    plan: EvaluationPlan, collections: Sequence[Collection], settings: Settings, *, quiet: bool
) -> Evaluation:
    if plan.engine is not None:
        configure_logs(logging.ERROR)  # retries and the gateway's own log are no news here
    encoder = cached_encoder(settings) if plan.needs_encoder else None
    results: list[CollectionResult] = []
    where = MEMORY
    for collection in collections:
        with stages(collection.name) as progress:
            result, where = run_plan(plan, collection, encoder, progress)
        results.append(result)
        if not quiet:
            _show(result, plan.k)
    return Evaluation(
        collections=tuple(results),
        k=plan.k,
        encoder=encoder.identity.key if encoder else None,
        encoder_backend=encoder.backend if encoder else None,
        engine=where,
        settings=plan.settings(),
        machine=provenance.machine(),
        versions=provenance.versions(),
        command=command_line(click.get_current_context().meta[ARGUMENTS_KEY]),
        date=provenance.timestamp(),
    )


def _show(result: CollectionResult, k: int) -> None:
    for warning in result.warnings:
        click.echo(f"note: {warning}", err=True)
    console = tables.console(_PIPED_WIDTH)
    console.print(results_table(result, k, wide=console.width >= _WIDE))


def results_table(result: CollectionResult, k: int, *, wide: bool = True) -> Table:
    """Return a collection's results as a table; the best of each column is bold."""
    main, *others = headline_metrics(k)
    metrics = [main, *others] if wide else [main, f"recall@{k}", "mrr"]
    table = Table(
        title=f"{escape(result.name)} ({escape(result.split)}): {result.documents:,} documents, "
        f"{len(result.texts):,} queries",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("method", style="bold")
    for metric in metrics:
        table.add_column(metric, justify="right")
    for heading in (f"Δ {main}", *(("95 % interval", "p") if wide else ()), "won/tied/lost", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    greatest = {metric: best_method(result, metric) for metric in metrics}
    for method in result.methods.values():
        means = {metric: method.scores.mean(metric) for metric in metrics}
        cells = [
            f"[bold]{shown_score(mean)}[/]" if round(mean, 3) == greatest[metric] else shown_score(mean)
            for metric, mean in means.items()
        ]
        table.add_row(
            escape(method.name), *cells, *_against(method, main, wide=wide), f"{method.latency_ms['p50']:.3g}"
        )
    return table


def _against(method: MethodResult, metric: str, *, wide: bool) -> list[str]:
    if metric not in method.versus:
        return ["baseline", *([""] * (3 if wide else 1))]
    versus = method.versus[metric]
    colour = {"better": "green", "worse": "red"}.get(significance(versus), "default")
    certainty = [f"{signed(versus.interval.low)} to {signed(versus.interval.high)}", shown_p_value(versus.p)]
    return [
        f"[{colour}]{signed(versus.delta)}[/]",
        *(certainty if wide else []),
        versus.record,
    ]


def command_line(arguments: Sequence[str]) -> str:
    """Return a command line that makes the same evaluation; credentials in URLs are left out."""
    own = [_CREDENTIALS.sub("//", argument) for argument in arguments if argument != "--json"]
    return shlex.join(["es-ttc", "evaluate", *own])
