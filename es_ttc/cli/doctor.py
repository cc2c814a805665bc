"""`es-ttc doctor`: checks of each part, with the command that fixes each problem."""

import asyncio
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal

import aiohttp
import numpy as np
from pydantic import SecretStr
from rich.table import Table
from rich.text import Text

from es_ttc import __version__
from es_ttc.cli.common import (
    AsJson,
    EncoderName,
    EngineUrl,
    encoded_share,
    gateway_headers,
    mebibytes,
    print_json,
    provided,
    sample_documents,
    stderr,
    stdout,
    unread_language,
    without_tokens,
)
from es_ttc.cli.model_options import command
from es_ttc.cli.size_estimates import per_million
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.encoders.registry import load_encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.exchange import is_no_engine
from es_ttc.engine.node.java import find_java
from es_ttc.engine.node.parts import DEFAULT_VERSION
from es_ttc.engine.protocol import Capabilities, Engine
from es_ttc.engine.versions import NAMES, maintained_versions
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.enrichment.jobs.redis_server import addresses, find_server
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.proposals.plan import DEFAULT_PROMPTS, Plan, prompt_of
from es_ttc.enrichment.proposals.proposing import NoReadableProposal, propose_phrases
from es_ttc.errors import EsTtcError
from es_ttc.index.attach.feature_locations import Indices, contents_of, written_since_fill
from es_ttc.index.attach.side_index import attached_sources
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.indices import mappings_with_features
from es_ttc.index.mappings.spec import STATE, IndexSpec
from es_ttc.llm import LlmClient
from es_ttc.reranking.rerankers import Passage
from es_ttc.reranking.rerankers.cross_encoder import built_in
from es_ttc.reranking.strategies.methods import MSMARCO_MINILM
from es_ttc.rescorers import compiled
from es_ttc.settings import EngineSettings, GatewaySettings, LlmSettings, Settings

GATEWAY_SECONDS = 3
QUEUE_SECONDS = 3
MODEL_SECONDS = 5.0
MIB = 2**20
LEAST_FREE_MIB = 2048
PROBE = (
    "A heart attack happens when the flow of blood to the heart is blocked, most often by a clot. Doctors open the "
    "vessel again, or dissolve the clot with drugs."
)
PROBE_TOKENS = 64
PROBE_PAIRS = 8


class Status(StrEnum):
    """The result of a check.

    ``warning`` is a finding that prevents nothing; ``missing`` is a required part that is absent.
    """

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the report."""

    subject: str
    verdict: Status
    detail: str
    mend: str = ""


def packages() -> list[Check]:
    """Check Python and the required packages."""
    if _versions("onnxruntime", "torch"):
        backends = _versions("onnxruntime", "openvino", "torch")
        backend = Check("encoder backend", Status.OK, f"installed: {backends}; an encoder's name chooses one")
    else:
        none = "neither onnxruntime nor torch is installed: nothing can be encoded"
        backend = Check("encoder backend", Status.MISSING, none, "pip install 'es-ttc[minilm]'")
    return [
        Check("python", Status.OK, f"{sys.version.split()[0]}, {sys.executable}"),
        Check("es-ttc", Status.OK, f"{__version__}, {_versions('numpy', 'elasticsearch', 'opensearch-py')}"),
        _loops(),
        backend,
    ]


def _versions(*packages: str) -> str:
    return ", ".join(f"{name} {version}" for name in packages if (version := _version(name)))


def _loops() -> Check:
    """Check the loops that score windows: without compiled ones numpy scores."""
    if not compiled.available():
        how = "numpy, several times slower than compiled loops: install a C compiler, then es-ttc again"
        return Check("scoring loops", Status.OK, how)
    from es_ttc.rescorers.compiled import loops

    return Check("scoring loops", Status.OK, f"compiled, for this processor: {loops.builds()[-1]}")


def java() -> Check:
    """Check the Java of the embedded node; an engine elsewhere needs none here."""
    try:
        found = find_java()
    except EsTtcError as error:
        return Check("java", Status.WARNING, f"{error}; only `es-ttc engine` needs it", "pip install 'es-ttc[node]'")
    return Check("java", Status.OK, f"{found.version}, {found.home}")


def cache_folder(folder: Path) -> Check:
    """Check the folder of downloads and embeddings."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not _can_write(existing):
        mend = "set ES_TTC_CACHE_DIR to a folder of yours"
        return Check("cache", Status.MISSING, f"{folder} cannot be written", mend)
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {held / MIB:,.0f} MiB used, {free / MIB:,.0f} MiB free"
    if free < LEAST_FREE_MIB * MIB:
        return Check("cache", Status.WARNING, detail, "set ES_TTC_CACHE_DIR to a disk with more room")
    return Check("cache", Status.OK, detail)


def _can_write(folder: Path) -> bool:
    """Return whether a file can be made in a folder, by making one: root passes every check of permissions."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def check_configured_encoder(name: str, cache_dir: Path) -> tuple[Check, Encoder | None]:
    """Check that the configured encoder loads and encodes."""
    begin = time.perf_counter()
    try:
        loaded = load_encoder(name, cache_dir=cache_dir)
        vector = loaded.encode(["does it encode?"], role="query", tokens=False).pooled[0]
    except EsTtcError as error:
        command = re.search(r"pip install '[^']+'", str(error))
        mend = command[0] if command else "set ES_TTC_ENCODER to another"
        return Check("encoder", Status.MISSING, str(error), mend), None
    seconds = time.perf_counter() - begin
    length = float(np.linalg.norm(vector))
    if not np.isclose(length, 1, atol=1e-3):
        detail = f"{loaded.identity.key} gives vectors of length {length:.3f} where 1 is needed"
        return Check("encoder", Status.MISSING, detail, "es-ttc doctor --encoder minilm"), None
    detail = f"{loaded.identity.key}, {loaded.backend}, loaded in {seconds:.1f} s"
    return Check("encoder", Status.OK, detail), loaded


async def cross_encoder() -> list[Check]:
    """Check that the cross-encoder loads, if it is installed, and measure its time for a pair."""
    make = built_in().get(MSMARCO_MINILM)
    if make is None:
        return []
    reranker = make()
    try:
        await reranker.scores("how long", [Passage("", "short")])  # loads it
        begin = time.perf_counter()
        await reranker.scores("how long does a pair take", [Passage("", "word " * 240)] * PROBE_PAIRS)
    except EsTtcError as error:
        return [Check("reranker", Status.WARNING, str(error), "pip install --force-reinstall 'es-ttc[cross-encoder]'")]
    finally:
        await reranker.close()
    ms = (time.perf_counter() - begin) * 1000 / PROBE_PAIRS
    return [Check("reranker", Status.OK, f"{MSMARCO_MINILM}, {ms:.0f} ms a pair of 250 tokens, pairs in parallel")]


def suited_methods(identity: EncoderIdentity) -> Check:
    """Say which methods suit an encoder, by how its tokens become the pooled vector."""
    if identity.late_interaction:
        suited = "late interaction: maxsim and blend; measure spectral before you use it alone"
    elif identity.averages:
        suited = "mean pooling: all; which is best differs by model, so measure: es-ttc evaluate"
    else:
        suited = (
            f"{identity.pooling} pooling: blend, dense, and maxsim with query tokens; spectral reads the mean of the "
            "query's words, because the pooled vector is no mean of tokens"
        )
    return Check("methods", Status.OK, suited)


async def check_engine(settings: EngineSettings, loaded: Encoder | None) -> list[Check]:
    """Check that the engine answers and can store vectors, and the state of es-ttc's indices in it."""
    try:
        async with connected(settings) as client:
            found = await client.capabilities()
            check = engine_check(client.url, found)
            return [check, *(await _indices(client, loaded) if check.verdict is not Status.MISSING else [])]
    except EsTtcError as error:
        start = "es-ttc engine up, or " if is_no_engine(error) else ""
        mend = f"{start}name yours with --engine or ES_TTC_ENGINE"
        return [Check("engine", Status.MISSING, str(error), mend)]


def engine_check(url: str, found: Capabilities) -> Check:
    """Check that the engine has vectors, and that its vendor maintains its version."""
    described = f"{found.engine} at {url}"
    if not found.vectors:
        return Check("engine", Status.MISSING, f"{described} has no vector search", "install its k-NN plugin")
    nodes = f"{found.nodes} data node{'s' * (found.nodes != 1)}"
    vectors = f"vectors of up to {found.max_dims:,} dimensions"
    detail = f"{described}, {nodes}, {vectors}, licence {found.licence}"
    if found.engine.unmaintained:
        maintained = f"{NAMES[found.product]} {maintained_versions(found.product)}"
        if url.startswith("http://127.0.0.1:") and str(found.engine).endswith(f" {DEFAULT_VERSION}"):
            detail += f"; for trials only: `es-ttc engine up` has no newer version, its vendor maintains {maintained}"
            return Check("engine", Status.OK, detail)
        newer = f"upgrade to {maintained}"
        return Check("engine", Status.WARNING, f"{detail}; its vendor does not maintain this version any more", newer)
    return Check("engine", Status.OK, detail)


async def _indices(client: Engine, loaded: Encoder | None) -> list[Check]:
    """Check every index with features: its spec, its encoder, its documents without features."""
    try:
        ours = await mappings_with_features(client)
    except EsTtcError as error:
        return [Check("indices", Status.WARNING, str(error), "sign in as a user who may read the indices")]
    checks = [await _index(client, name, mapping, loaded) for name, mapping in ours.items()]
    try:
        checks += [await _attached(client, source, loaded) for source in await attached_sources(client)]
    except EsTtcError as error:
        checks.append(Check("side indices", Status.WARNING, str(error), "sign in as a user who may read ttc-*"))
    if not checks:
        none = "none of ours yet; make one: es-ttc index create NAME, or add to one: es-ttc attach NAME"
        return [Check("indices", Status.OK, none)]
    return checks


async def _attached(client: Engine, source: str, loaded: Encoder | None) -> Check:
    """Check an index with a side index."""
    try:
        held = (await Indices.behind(client, source)).only()
        counts, written = await contents_of(client, held), await written_since_fill(client, held)
    except EsTtcError as error:
        return Check(f"index {source}", Status.WARNING, str(error), f"es-ttc detach {source}")
    detail = f"{counts.documents:,} documents, features in its side index {held.index}, {held.spec.encoder.key}"
    detail += _on_disk(counts.bytes, counts.documents)
    if held.on_demand:
        detail += f"; encoded on demand, {encoded_share(counts.documents, counts.lacking)} so far"
        return await _features(client, source, held.spec, detail, loaded, lacking=0)
    return await _features(client, source, held.spec, detail, loaded, counts.lacking, written)


async def _index(client: Engine, name: str, mapping: Mapping[str, Any], loaded: Encoder | None) -> Check:
    """Check an index whose documents carry features."""
    try:
        spec = IndexSpec.from_mapping(name, mapping)
        documents = await client.count(name)
        done = {"terms": {STATE: [READY, EMPTY]}}
        lacking = await client.count(name, {"bool": {"must_not": [done]}})
    except EsTtcError as error:
        return Check(f"index {name}", Status.WARNING, str(error), f"es-ttc index show {name}")
    codec = f" {spec.codec}" if spec.tokens == "packed" else ""
    codec += without_tokens(spec.skip_tokens)
    detail = f"{documents:,} documents, {spec.encoder.key}, tokens {spec.tokens}{codec}"
    detail += _on_disk(await stored_bytes(client, name), documents)
    return await _features(client, name, spec, detail, loaded, lacking)


async def _features(
    client: Engine, name: str, spec: IndexSpec, detail: str, loaded: Encoder | None, lacking: int, written: int = 0
) -> Check:
    """Check that the encoder here is the features', that no document lacks them, and that it knows the language."""
    subject = f"index {name}"
    if loaded is not None and loaded.identity.key != spec.encoder.key:
        detail += f"; the encoder set here is {loaded.identity.key}"
        return Check(subject, Status.WARNING, detail, f"es-ttc serve --encoder {spec.encoder.model}")
    if lacking:
        detail += f"; {lacking:,} of them {'lacks' if lacking == 1 else 'lack'} features and cannot be rescored"
    if written:
        detail += f"; {written:,} of them {'was' if written == 1 else 'were'} written since the last fill"
    if lacking or written:
        return Check(subject, Status.WARNING, detail, f"es-ttc fill {name}")
    try:
        problem = unread_language(await sample_documents(client, name), spec.text_fields, spec.encoder)
    except EsTtcError:  # the caller may not read documents
        problem = ""
    if problem:
        return Check(subject, Status.WARNING, f"{detail}; {problem}")
    return Check(subject, Status.OK, detail)


def _on_disk(size: int | None, documents: int) -> str:
    """Return what an index takes, and what a million such documents would; "" if it is not known."""
    if not size or not documents:
        return ""
    return f", {mebibytes(size)} on disk (a million such: {per_million(size / documents)}, less after merges)"


async def queue(settings: Settings) -> Check:
    """Check that workers have a Redis; only `es-ttc worker` needs one."""
    if not _version("celery"):
        none = "Celery is not installed; only `es-ttc worker` needs it"
        return Check("queue", Status.WARNING, none, "pip install 'es-ttc[worker]'")
    if settings.redis is None:
        try:
            program = find_server()
        except EsTtcError as error:
            return Check("queue", Status.WARNING, str(error), "pip install 'es-ttc[worker]'")
        return Check("queue", Status.OK, f"none set: a worker runs its own, {program}")
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        _, url = addresses(settings.redis.get_secret_value())
        async with Redis.from_url(url, socket_timeout=QUEUE_SECONDS, socket_connect_timeout=QUEUE_SECONDS) as client:
            version = (await client.info("server"))["redis_version"]
    except (EsTtcError, RedisError, OSError, ValueError) as error:
        mend = "start it, or leave ES_TTC_REDIS out: a worker then runs its own"
        return Check("queue", Status.WARNING, f"the Redis that is set does not answer: {error}", mend)
    return Check("queue", Status.OK, f"Redis {version}, Celery {_version('celery')}")


async def workers(settings: Settings) -> list[Check]:
    """Check that a worker has been seen lately, if jobs are running."""
    status = [JobState.RUNNING]
    try:
        async with connected(settings) as client:
            store = JobStore(client, settings.jobs_index)
            running = len(await store.encoding.list(status)) + len(await store.enrichment.list(status))
            absent = await store.leases.unattended() if running else ""
    except EsTtcError as error:
        return [Check("workers", Status.WARNING, f"the records of jobs cannot be read: {error}")]
    if absent:
        return [Check("workers", Status.WARNING, f"jobs are running ({running}), and {absent}", "es-ttc worker")]
    return [Check("workers", Status.OK, f"seen lately; running jobs: {running}")] if running else []


async def model(settings: LlmSettings) -> Check:
    """Check that the language model answers, and with phrases; enrichment and rewriters need it."""
    if settings.llm_url is None:
        none = "none set; enrichment and `sira` need one"
        return Check("model", Status.OK, f"{none}: ES_TTC_LLM_URL=http://host:8000/v1")
    try:
        async with LlmClient(settings) as client:
            name = await client.model(seconds=MODEL_SECONDS)
            found = await client.models(seconds=MODEL_SECONDS)
            url = client.url
            silent = await _without_phrases(client, settings.llm_api) if name in found else None
    except EsTtcError as error:
        return Check("model", Status.WARNING, str(error), "start it, or set ES_TTC_LLM_URL and ES_TTC_LLM_MODEL")
    if name not in found:
        shown = ", ".join(found[:5]) or "none"
        return Check("model", Status.WARNING, f"{url} does not serve [{name}], but {shown}", "set ES_TTC_LLM_MODEL")
    if silent is not None:
        other = "completions" if settings.llm_api == "chat" else "chat"
        detail = f"{name} at {url}, by {settings.llm_api}: no phrases in its answer about a passage ({silent!r})"
        kind = "a base model" if other == "completions" else "an assistant"
        return Check("model", Status.WARNING, detail, f"if it is {kind}, set ES_TTC_LLM_API={other}; else use another")
    return Check("model", Status.OK, f"{name} at {url}, by {settings.llm_api}, finds phrases")


async def _without_phrases(client: LlmClient, api: Literal["chat", "completions"]) -> str | None:
    """Ask for phrases as enrichment does; return the beginning of an answer that has none."""
    prompt = prompt_of(DEFAULT_PROMPTS[api])
    plan = Plan(prompt=prompt.name, text=prompt.text, model="", api=api, answer_tokens=PROBE_TOKENS, most=3)
    try:
        await propose_phrases(client, plan, PROBE)
    except NoReadableProposal as error:
        return error.sample
    return None


async def check_gateway(url: str, token: SecretStr | None = None) -> Check:
    """Check that a gateway answers at its address, and say how it encodes on demand if it does."""
    timeout = aiohttp.ClientTimeout(total=GATEWAY_SECONDS)
    on_demand: dict[str, int] = {}
    try:
        async with aiohttp.ClientSession(timeout=timeout, headers=gateway_headers(token)) as session:
            async with session.get(f"{url}/_ttc/health") as answer:
                status = answer.status
            async with session.get(f"{url}/_ttc/") as answer:
                if status == answer.status == 200:  # else it is another program, or the token is missing
                    on_demand = (await answer.json())["on_demand"]
    except (aiohttp.ClientError, TimeoutError):
        return Check("gateway", Status.OK, f"none at {url}: `es-ttc serve` starts one, commands bring their own")
    if status != 200:
        another = f"{url} answers {status}: is it another program's port?"
        return Check("gateway", Status.WARNING, another, "es-ttc serve --port 0")
    if not on_demand.get("windows"):
        return Check("gateway", Status.OK, url)
    complete = on_demand["complete_windows"] / on_demand["windows"]
    detail = f"{url}; on demand {complete:.0%} of recent windows were complete, {on_demand['queue']:,} documents wait"
    return Check("gateway", Status.OK, detail)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "bold red"}


@command("es-ttc doctor", "es-ttc doctor --engine http://127.0.0.1:9200 --json")
def doctor(
    *,
    engine: EngineUrl,
    encoder: EncoderName,
    gateway: Annotated[
        str | None, "--gateway URL", "URL of the gateway. Default: where `es-ttc serve` listens."
    ] = None,
    as_json: AsJson,
) -> int:
    """Check what works and what does not.

    The checks cover versions, engine, indices, encoder, queue, model, gateway and cache. Each finding that needs action
    comes with the command that fixes it. Exit status: 0 if everything needed works.
    """
    settings = GatewaySettings(**provided(engine=engine, encoder=encoder))
    with stderr.status("looking at this machine, the engine and the encoder"):
        found = asyncio.run(_examine(settings, gateway or f"http://{settings.host}:{settings.port}"))
    works = all(check.verdict is not Status.MISSING for check in found)
    if as_json:
        print_json({"ok": works, "checks": [asdict(check) for check in found]})
    else:
        stdout.print(report(found))
        stdout.print(summary(found))
    return 0 if works else 1


async def _examine(settings: GatewaySettings, gateway: str) -> list[Check]:
    found = [*packages(), java(), cache_folder(settings.cache_dir)]
    encoder_check, encoder = check_configured_encoder(settings.encoder, settings.cache_dir)
    found.append(encoder_check)
    found += [] if encoder is None else [suited_methods(encoder.identity)]
    found += await cross_encoder()
    found += await check_engine(settings, encoder)
    if any(check.subject == "engine" and check.verdict is not Status.MISSING for check in found):
        found += await workers(settings)
    found += [await queue(settings), await model(settings), await check_gateway(gateway, settings.admin_token)]
    return found


def report(found: Sequence[Check]) -> Table:
    """Return one row for each check, followed by the command that fixes a problem."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found:
        detail = Text(check.detail)
        if check.mend:
            detail.append(f"\n→ {check.mend}", "bold")
        table.add_row(Text(check.verdict, STYLES[check.verdict]), Text(check.subject), detail)
    return table


def summary(found: Sequence[Check]) -> Text:
    """Return a summary in one sentence."""
    missing = [check.subject for check in found if check.verdict is Status.MISSING]
    warnings = sum(check.verdict is Status.WARNING for check in found)
    if missing:
        return Text(f"\nNot ready: {', '.join(missing)}.", STYLES[Status.MISSING])
    remark = f" ({warnings} to know about)" if warnings else ""
    return Text(f"\nEverything needed works{remark}.", STYLES[Status.OK])
