"""Three nodes that are killed one after the other and started again, while clients search and work goes on.

    python -m benchmarks.cluster_chaos [--product opensearch] [--minutes 30]

Two gateways that know all nodes stand in front of the cluster. Clients send searches whose rankings are known, over an
index that does not change (3 shards, a replica of each), to both of them; one more sends its searches to the nodes
directly, from one to the next as the engine's own clients do, and counts what fails there. Meanwhile documents are
ingested, attached and encoded after their writing, graphs are built, and enrichment jobs run. A node is killed with
SIGKILL, started again after some seconds, and the next one is killed once the cluster is whole. The run starts its own
nodes, and fails if a search is not answered though the engine could, is answered wrongly, or is not by the method and
does not say so; or if work loses or doubles a document.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.cluster import DATA, DFS, SEARCHES, WITHOUT_US, Body, cached_encoder, collection, indexed, proposals
from benchmarks.cluster_work import DOCUMENTS, Place, Work, attach, encoding, enrichment, graphs, ingest
from benchmarks.common import heading, table
from benchmarks.served import gateway
from tests.serving.client import call
from tests.support.jobs import Worker, Workplace, model_process
from tests.support.llm import scripted_model_beside
from tests.support.rankings import Ranking
from tests.support.three_nodes import NODES, PRODUCTS, ThreeNodes, three_nodes
from tests.support.verdicts import Verdict, verdict

INDEX = "benchmark-cluster"
CLIENTS = 3
WHOLE_SECONDS = 300
CLIENT_SECONDS = 150
"""After which a client gives a search up."""


@dataclass(frozen=True)
class Known:
    """A search whose ranking is known.

    Attributes:
        name: Its kind.
        body: Its body.
        right: Its ranking.
        engines_own: The ranking of its first pass; None where it has none that is known.
    """

    name: str
    body: Body
    right: Ranking
    engines_own: Ranking | None


@dataclass
class Report:
    """What happened.

    Attributes:
        verdicts: Searches by kind and verdict.
        direct: What a client of the nodes themselves met.
        reasons: What was said about searches that were not right.
        faults: Searches that must not be so.
        kills: Nodes killed.
        longest: Seconds that the slowest search took.
    """

    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    direct: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    kills: int = 0
    longest: float = 0.0


def main() -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--product", choices=PRODUCTS, default="opensearch")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--data", type=Path, default=DATA / "cranfield")
    parser.add_argument("--queries", type=int, default=5, help="of each kind of search")
    parser.add_argument("--port", type=int, default=19841, help="of the first node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-work", action="store_true", help="only search")
    arguments = parser.parse_args()
    documents = collection(arguments.data, None)
    texts = list(documents.queries.values())[: arguments.queries]
    with (
        tempfile.TemporaryDirectory() as folder,
        three_nodes(arguments.product, heap="512m", port=arguments.port) as nodes,
    ):
        asyncio.run(indexed(nodes.engine, INDEX, documents, cached_encoder(), shards=3, replicas=1))
        nodes.await_status()
        with gateways(nodes) as urls:
            known = searches(nodes.urls[0], urls, texts)
            sources = [one.source["text"] for one in documents.documents if one.source.get("text")]
            with model_process(Path(folder)) as (model, _, _):
                jobs = Workplace(nodes.engine, "chaos", model, Path(folder), more={"ES_TTC_ENCODER": "minilm@onnx"})
                place = Place(nodes.engine, urls, jobs, sources[:DOCUMENTS])
                report, work = asyncio.run(run(nodes, place, known, arguments))
    printed(arguments, report, work, len(known))
    sys.exit(bool(report.faults or any(one.faults for one in work)))


@contextmanager
def gateways(nodes: ThreeNodes) -> Iterator[list[str]]:
    """Run two gateways that know all nodes."""
    with ExitStack() as stack:
        model = stack.enter_context(scripted_model_beside(proposals))
        yield [
            stack.enter_context(gateway(nodes.engine, llm_url=model.url, llm_api="completions")).url for _ in range(2)
        ]


def searches(node: str, urls: Sequence[str], texts: Sequence[str]) -> list[Known]:
    """Return the searches with their rankings, on which both gateways agree, several times."""
    known: list[Known] = []
    for name, body_of in SEARCHES.items():
        for text in texts:
            body = body_of(text)
            found = [ranked(url, body) for url in urls for _ in range(3)]
            agree = all(found[0].same(other) for other in found)
            if not agree:
                print(f"{name}, {text!r}: not the same twice, left out", file=sys.stderr)
                continue
            first_pass = {key: value for key, value in body.items() if key != "rescore"}
            engines_own = ranked(node, first_pass) if "rescore" in body or name == WITHOUT_US else None
            known.append(Known(name, body, found[0], engines_own))
    return known


def ranked(url: str, body: Body) -> Ranking:
    """Return the ranking of a search that must be answered in whole and by the method."""
    answer = call(url, "POST", f"/{INDEX}/_search?{DFS}", body).json()
    assert not answer["_shards"]["failed"], answer
    assert answer.get("ttc", {"applied": True})["applied"], answer["ttc"]
    return Ranking.of(answer)


async def run(
    nodes: ThreeNodes, place: Place, known: Sequence[Known], arguments: argparse.Namespace
) -> tuple[Report, list[Work]]:
    """Let all of it happen for so many minutes."""
    report, ends = Report(), asyncio.Event()
    rng = random.Random(arguments.seed)
    work = [Work(name) for name in ("ingest", "attach", "graph", "encoding", "enrichment")]
    timeout = aiohttp.ClientTimeout(total=CLIENT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        tasks = [
            asyncio.create_task(client(session, place, known, random.Random(number), ends, report))
            for number in range(CLIENTS)
        ]
        tasks.append(asyncio.create_task(direct_client(session, place, known, ends, report)))
        worker = None
        if not arguments.without_work:
            worker = await asyncio.to_thread(Worker, place.jobs)
            tasks += [
                asyncio.create_task(ingest(place, work[0], ends)),
                asyncio.create_task(attach(place, work[1], ends)),
                asyncio.create_task(graphs(place, work[2], ends)),
                asyncio.create_task(encoding(place, work[3], ends)),
                asyncio.create_task(enrichment(place, work[4], ends)),
            ]
        try:
            await kills(nodes, arguments.minutes, rng, report, tasks)
        finally:
            ends.set()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, BaseException):
                    report.faults.append(f"{type(ended).__name__}: {ended}")
            if worker is not None:
                await asyncio.to_thread(worker.stop)
    return report, work


async def kills(
    nodes: ThreeNodes, minutes: float, rng: random.Random, report: Report, tasks: Sequence["asyncio.Task[None]"]
) -> None:
    """Kill one node after the other, start it again, wait until the cluster is whole."""
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        number = report.kills % NODES
        await asyncio.sleep(rng.uniform(2, 15))
        await asyncio.to_thread(nodes.kill, number)
        report.kills += 1
        await asyncio.sleep(rng.uniform(0, 20))
        await asyncio.to_thread(nodes.restart)
        await asyncio.to_thread(nodes.await_status, node=number, seconds=WHOLE_SECONDS)
        left = (end - time.monotonic()) / 60
        so_far = dict(sum(report.verdicts.values(), Counter()))
        ended = sum(task.done() for task in tasks)
        print(f"{report.kills} kills, {so_far}, {ended} ended, {left:.1f} min left", file=sys.stderr, flush=True)


async def client(
    session: aiohttp.ClientSession,
    place: Place,
    known: Sequence[Known],
    rng: random.Random,
    ends: asyncio.Event,
    report: Report,
) -> None:
    """Send one search after the other through either gateway, and note what each is worth."""
    while not ends.is_set():
        one, url = rng.choice(known), rng.choice(place.gateways)
        began = time.monotonic()
        status, answer = await sent(session, url, one.body)
        report.longest = max(report.longest, time.monotonic() - began)
        worth = verdict(status, answer, one.right, one.engines_own)
        if worth is Verdict.UNANSWERED and not await answers(session, place, one):
            worth = Verdict.ENGINE_FAILED
        report.verdicts.setdefault(one.name, Counter())[worth] += 1
        if worth is not Verdict.RIGHT:
            report.reasons[f"{one.name}: {worth}: {why(status, answer)}"] += 1
        if worth.is_fault:
            told = f"{one.name}, {worth}: {status} {orjson.dumps(answer).decode():.1500}"
            report.faults.append(told)
            print(told, "expected", one.right, file=sys.stderr, flush=True)


async def answers(session: aiohttp.ClientSession, place: Place, one: Known) -> bool:
    """Return whether a node answers the first pass of a search in whole, right after the gateway has not."""
    body = {key: value for key, value in one.body.items() if key != "rescore"}
    if "knn" in body or "ttc" in body.get("query", {}):
        body = {"size": 1}
    for node in place.nodes:
        status, answer = await sent(session, node, body)
        if status == 200 and not answer["_shards"]["failed"]:
            return True
    return False


async def direct_client(
    session: aiohttp.ClientSession, place: Place, known: Sequence[Known], ends: asyncio.Event, report: Report
) -> None:
    """Search the nodes directly; a search that one does not answer goes to the next one."""
    own = [one for one in known if one.name == WITHOUT_US]
    turn = 0
    while not ends.is_set():
        one = own[turn % len(own)]
        outcome = "failed by all nodes"
        for place_of in range(NODES):
            turn += 1
            status, answer = await sent(session, place.nodes[turn % NODES], one.body)
            if status == 200:
                lost = answer["_shards"]["failed"] or not Ranking.of(answer).same(one.right)
                outcome = "from a part of the shards" if lost else "right" if not place_of else "right, by another node"
                break
        report.direct[outcome] += 1
        await asyncio.sleep(0.2)


async def sent(session: aiohttp.ClientSession, url: str, body: Body) -> tuple[int, Mapping[str, Any]]:
    """Return status and body of an answer; status 0 without one."""
    try:
        async with session.post(f"{url}/{INDEX}/_search?{DFS}", json=body) as response:
            return response.status, orjson.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
        return 0, {"error": {"reason": f"{type(error).__name__}: {error}"}}


def why(status: int, answer: Mapping[str, Any]) -> str:
    """Return what an answer says about itself, without what differs from one to the next."""
    if status != 200:
        error = answer.get("error") or {}
        return f"{status} {error.get('type')}: {error.get('reason')}"
    ttc = answer.get("ttc") or {}
    told = ttc.get("reason") or ttc.get("candidates", {}).get("reason")
    return str(told or answer["_shards"])[:160]


def printed(arguments: argparse.Namespace, report: Report, work: Sequence[Work], searched: int) -> None:
    """Print what happened."""
    about = (
        f"cranfield, 1,400 documents, {searched} searches of {len(SEARCHES)} kinds, {CLIENTS} clients, "
        f"seed {arguments.seed}; {report.kills} kills in {arguments.minutes:g} minutes"
    )
    print(heading(f"Nodes killed and returned, {arguments.product}", data=about, packages=("aiohttp", "uvicorn")))
    columns = ["search", *Verdict]
    rows = [[name, *(found[one] for one in Verdict)] for name, found in report.verdicts.items()]
    total: Counter[Verdict] = sum(report.verdicts.values(), Counter())
    print(table(columns, [*rows, ["all", *(total[one] for one in Verdict)]]))
    print(f"Longest search: {report.longest:.1f} s. Directly at the nodes: {dict(report.direct)}\n")
    print(table(("said", "searches"), report.reasons.most_common(30)))
    columns = ["work", "runs", "documents right", "ended with an error, run again", "faults"]
    print(table(columns, [(one.name, one.runs, one.documents, len(one.refused), len(one.faults)) for one in work]))
    for one in work:
        for told in [*one.refused[:5], *one.faults[:5]]:
            print(f"{one.name}: {told}", file=sys.stderr)
    for fault in report.faults[:20]:
        print(fault, file=sys.stderr)


if __name__ == "__main__":
    main()
