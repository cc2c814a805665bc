"""A corpus enriched by a real job: real endpoint, real Redis, real workers; throughput, tokens, failures by kind.

What the model proposed goes to a file in the user's cache folder, one line a document, for evaluations that need not
ask again: ``{"_id", "phrases", "kept", "asked", "prompt", "model", "read", "written"}``. A run begins with what that
file has under the same question (prompt, model, parameters): jobs find it among the proposals that they keep.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import heading, table
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.documents import text_of
from es_ttc.enrichment.jobs.record import Job, JobStatus
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.stored_proposals import StoredProposal
from es_ttc.index.mappings.enrichment import add_enrichment, enrichable
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import ENRICHED, ENRICHED_TEXT, ENRICHMENT, IndexSpec
from es_ttc.llm.local import MODEL, running_llm
from es_ttc.settings import Settings
from tests.support.jobs import IDENTITY, Workplace, connected, worker_at

PREFIX = "bench-enrichment"
LOOK_SECONDS = 10


def ordered(folder: Path) -> list[dict[str, Any]]:
    """The corpus, with all documents that are relevant to some query first."""
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").open(encoding="utf-8")]
    relevant = set()
    for file in (folder / "qrels").glob("*.tsv"):
        with file.open(encoding="utf-8") as lines:
            relevant |= {row["corpus-id"] for row in csv.DictReader(lines, delimiter="\t") if int(row["score"]) > 0}
    return sorted(documents, key=lambda document: document["_id"] not in relevant)


async def make(engine: Engine, index: str, documents: Sequence[dict[str, Any]]) -> None:
    """Index the whole corpus, with each document's place in the order, for document frequencies are those of all."""
    await create_index(engine, index, IndexSpec(IDENTITY, tokens="none"), IndexOptions(shards=1, replicas=0))
    await add_enrichment(engine, index)
    for start in range(0, len(documents), 500):
        lines = []
        for place, document in enumerate(documents[start : start + 500], start=start):
            source = {"title": document.get("title", ""), "text": document["text"], "place": place}
            lines += [json.dumps({"index": {"_id": document["_id"]}}).encode(), json.dumps(source).encode()]
        await engine.bulk(index, lines)
    await engine.refresh(index)


def recorded(file: Path, job: Job) -> dict[str, dict[str, Any]]:
    """Return the lines of a file that answer a job's question, by document."""
    lines = [json.loads(line) for line in file.open(encoding="utf-8")] if file.exists() else []
    return {line["_id"]: line for line in lines if line["asked"] == job.plan.asked}


async def seed(
    engine: Engine, place: Workplace, job: Job, documents: Sequence[dict[str, Any]], known: dict[str, dict[str, Any]]
) -> None:
    """Put recorded proposals where jobs keep what a model has proposed."""
    store = JobStore(engine, place.settings.jobs_index)
    fields = (await enrichable(engine, place.index)).spec.text_fields
    for document in documents:
        if line := known.get(document["_id"]):
            text = text_of((document["_id"], None), document, fields)
            kept = StoredProposal(tuple(line["phrases"]), line["read"], line["written"], "recorded", document["_id"])
            await store.proposals.put(job.plan.asked, place.index, text.hash, kept)


async def export(engine: Engine, place: Workplace, job: Job, file: Path) -> int:
    """Write what the model proposed and what was kept to a file, beside what it holds; return the number enriched."""
    store = JobStore(engine, place.settings.jobs_index)
    found: list[tuple[str, str, list[str]]] = []
    after: list[Any] | None = None
    while True:
        body: dict[str, Any] = {
            "size": 500,
            "query": {"term": {ENRICHED: job.plan.key}},  # by an earlier job of the same plan too
            "sort": [{"place": "asc"}],
            "_source": False,
            "stored_fields": [ENRICHMENT],
            "docvalue_fields": [ENRICHED_TEXT],
            **({"search_after": after} if after else {}),
        }
        hits = (await engine.search(place.index, body))["hits"]["hits"]
        if not hits:
            break
        after = hits[-1]["sort"]
        found += [(hit["_id"], hit["fields"][ENRICHED_TEXT][0], hit["fields"].get(ENRICHMENT, [])) for hit in hits]
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_suffix(".part")
    lines = recorded(file, job)
    for start in range(0, len(found), 500):
        part = found[start : start + 500]
        kept = await store.proposals.get(job.plan.asked, [text for _, text, _ in part])
        for (name, _, phrases), old in zip(part, kept, strict=True):
            if old is None:
                continue
            lines[name] = {
                "_id": name,
                "phrases": list(old.phrases),
                "kept": phrases,
                "asked": job.plan.asked,
                "prompt": job.plan.template.version,
                "model": job.plan.model,
                "read": old.read,
                "written": old.written,
            }
    whole.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines.values()), encoding="utf-8")
    whole.replace(file)
    return len(found)


async def run(arguments: argparse.Namespace, model: str, folder: Path) -> None:
    data = Path(arguments.data)
    engine = await connected(arguments.engine)
    index = f"{PREFIX}-{data.name}"
    more = {
        "ES_TTC_LLM_TIMEOUT": "120",
        "ES_TTC_LLM_ATTEMPTS": "3",
        "ES_TTC_JOBS_TURN_SECONDS": "60",
        "ES_TTC_JOBS_LEASE_SECONDS": "60",
        "ES_TTC_JOBS_SWEEP_SECONDS": "5",
    }
    place = Workplace(arguments.engine, index, model, folder, more=more)
    file = Settings().cache_dir / "enrichment" / f"{data.name}-{MODEL}.jsonl"
    try:
        documents = ordered(data)
        if not await engine.exists(index):
            await make(engine, index, documents)
        wanted = submission.JobRequest(
            index=index,
            query={"range": {"place": {"lt": arguments.documents}}},
            tau=arguments.tau,
            characters=arguments.characters,
            answer_tokens=24,
            lanes=2,
            parallel=arguments.parallel,
        )
        shown: JobStatus[Any] = await submission.submit(engine, place.settings, wanted)
        job: Job = shown.job
        await seed(engine, place, job, documents, recorded(file, job))
        begun = time.monotonic()
        exported = 0
        with worker_at(place, processes=arguments.processes):
            while shown.job.status == "running" and time.monotonic() - begun < arguments.minutes * 60:
                await asyncio.sleep(LOOK_SECONDS)
                with contextlib.suppress(OSError):
                    shown = await commands.shown(engine, place.settings, shown.job.id)
                if shown.progress.done >= exported + 100:
                    exported = await export(engine, place, job, file)
            seconds = time.monotonic() - begun
            if shown.job.status == "running":
                await commands.pause(engine, place.settings, shown.job.id)
        shown = await commands.shown(engine, place.settings, shown.job.id)
        await export(engine, place, job, file)
        report(arguments, shown, seconds, len(documents))
    finally:
        if not arguments.keep:
            for name in (index, *(f"{index}-jobs{part}" for part in ("", "-outcomes", "-proposals"))):
                if await engine.exists(name):
                    await engine.delete_index(name)
        await engine.close()


def report(arguments: argparse.Namespace, shown: JobStatus[Any], seconds: float, corpus: int) -> None:
    progress = shown.progress
    about = (
        f"{Path(arguments.data).name}, {corpus} documents, {arguments.documents} of them to enrich, relevant ones first"
    )
    plan = shown.job.plan
    print(heading("Enrichment as a job", data=about, packages=("celery", "redis", "xllamacpp", "opensearch-py")))
    print(
        f"Model {plan.model} (4 bits, one thread), prompt {plan.prompt} ({plan.template.version}), {plan.characters} "
        f"characters a document, tau {plan.tau:g}; {arguments.processes} processes, {arguments.parallel} questions "
        "each.\n"
    )
    rows = [
        ("state at the end", shown.state),
        ("documents enriched", f"{progress.done:,}"),
        ("of them from answers recorded before", f"{progress.reused:,}"),
        ("failed", f"{progress.failed:,}"),
        ("deferred", f"{progress.deferred:,}"),
        ("pending", f"{progress.pending:,}"),
        ("phrases written", f"{progress.phrases:,}"),
        ("tokens read", f"{progress.read:,}"),
        ("tokens written", f"{progress.written:,}"),
        ("seconds", f"{seconds:,.0f}"),
        ("documents a second, of those asked about", f"{(progress.done - progress.reused) / seconds:.2f}"),
        *((f"failures [{each['kind']}]", f"{each['documents']:,}") for each in progress.errors),
    ]
    print(table(["what", "number"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, help="the engine's URL")
    parser.add_argument("--data", required=True, help="a BEIR folder")
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--characters", type=int, default=500)
    parser.add_argument("--tau", type=float, default=0.02)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--keep", action="store_true", help="leave the index and the records for a look")
    arguments = parser.parse_args()
    with running_llm() as model, tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(arguments, model, Path(folder)))


if __name__ == "__main__":
    main()
