"""A job with its workers killed at random, Redis killed and back empty, the engine restarted, and a model that is sick.

The engine is a node of the benchmark's own, the model's endpoint a double that fails on demand; workers and their Redis
are real processes, killed with SIGKILL. At the end every document is looked at.
"""

import argparse
import asyncio
import random
import tempfile
import uuid
from pathlib import Path

from benchmarks.common import heading, table
from tests.support.chaos import Survived, survive
from tests.support.jobs import Workplace, connected, make_index, model_process
from tests.support.own_node import OwnNode


async def run(arguments: argparse.Namespace, folder: Path) -> Survived:
    node = await asyncio.to_thread(OwnNode, "jobs-chaos")
    index = f"bench-chaos-{uuid.uuid4().hex[:8]}"

    def restart() -> None:
        node.kill()
        node.restart()

    try:
        engine = await connected(node.url)
        await make_index(engine, index, arguments.documents)
        await engine.close()
        with model_process(folder, seconds=arguments.seconds) as (model, fault, asked):
            return await survive(
                Workplace(node.url, index, model, folder),
                fault,
                asked,
                kills=arguments.kills,
                redis_kills=arguments.redis_kills,
                faults=["garbage", "429", "500", "hang"],
                fault_seconds=arguments.fault_seconds,
                span=arguments.span,
                restart=restart,
                rng=random.Random(arguments.seed),
            )
    finally:
        await asyncio.to_thread(node.stop)


def report(arguments: argparse.Namespace, survived: Survived) -> None:
    about = (
        f"{arguments.documents} short documents, seed {arguments.seed}; faults of the model: garbage, 429, 500, no "
        f"answer, {arguments.fault_seconds:g} s each"
    )
    print(heading("A job that is killed", data=about, packages=("celery", "redis", "opensearch-py")))
    counted, progress = survived.census, survived.shown.progress
    rows = [
        ("worker killed, with all its processes", survived.kills),
        ("Redis killed, back empty", survived.redis_kills),
        ("engine killed and restarted", 1),
        ("state of the job at the end", survived.shown.state),
        ("documents", counted.documents),
        ("enriched", counted.enriched),
        ("with exactly the phrases of their own, once", counted.once),
        ("noted as done", counted.notes),
        ("noted twice", counted.doubled),
        ("done by the job's record", progress.done),
        ("failed, deferred, pending by the record", f"{progress.failed}, {progress.deferred}, {progress.pending}"),
        ("questions to the model", sum(survived.asked.values())),
        ("seconds", f"{survived.seconds:.0f}"),
    ]
    print(table(["what", "number"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--redis-kills", type=int, default=2)
    parser.add_argument("--fault-seconds", type=float, default=60.0)
    parser.add_argument("--span", type=float, default=3.0, help="seconds of work within which something happens")
    parser.add_argument("--seconds", type=float, default=0.3, help="that the model takes for an answer")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(arguments, asyncio.run(run(arguments, Path(folder))))


if __name__ == "__main__":
    main()
