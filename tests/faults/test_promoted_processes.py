"""A promoted program runs in a process of its own: nothing that it does holds the gateway up."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from es_ttc.common.cancellable_calls import Call
from es_ttc.encoders.base import Encoder
from es_ttc.errors import ConfigurationError
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.discovery.seeds import program_source
from es_ttc.rescorers.programs import promoted
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.rescorers.programs.interface import Context, ProgramError, run
from es_ttc.rescorers.programs.source import compiled
from es_ttc.sandbox import process_pool
from es_ttc.sandbox.process_pool import ProgramLimits, ProgramProcessPool
from es_ttc.serving.app import create_app
from es_ttc.settings import GatewaySettings
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32
from tests.discovery.conftest import BEES
from tests.serving.client import Reply, call
from tests.serving.conftest import fill
from tests.support.children import running
from tests.support.gateway import gateway_to

ENDLESS = """import re
def program(Q, D, S, ctx):
    return -S if re.match("(a+)+b", ctx.query_texts[0]) else S
"""
EXPANDING = """def program(Q, D, S, ctx):
    return S + ctx.encode_fn([text + " honey" for text in ctx.query_texts]) @ D.T + 2
"""
CALIBRATED = """from es_ttc.rescorers.programs.primitives.standardise import along_queries
def program(Q, D, S, ctx):
    return along_queries(S, D, ctx.calibration)
"""
GREEDY = """import numpy as np
def program(Q, D, S, ctx):
    held = [np.ones((1000, 1000)) for one in range(10_000)]
    return S + len(held)
"""
TRAP = "a" * 64
PROGRAMS = {"endless": (ENDLESS, 0.0), "expanding": (EXPANDING, 1.0)}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, (source, passes) in PROGRAMS.items():
        (folder / f"{name}.py").write_text(source)
        manifest = promoted.Manifest(
            name=name, sha256=promoted.program_digest(source), readings=(), passes=passes, cost=1.0, report={}
        )
        (folder / f"{name}.json").write_text(manifest.model_dump_json())
    return folder


@pytest.fixture
def host() -> Iterator[ProgramProcessPool]:
    made = ProgramProcessPool(ProgramLimits(seconds=20, memory_mb=256))
    yield made
    made.close()
    assert not children()


@pytest.fixture(scope="module")
def vectors(encoder: Encoder) -> tuple[Float32, Float32]:
    queries = encoder.encode(list(BEES.queries.values()), role="query", tokens=False).pooled
    documents = encoder.encode([one.text for one in BEES.documents], role="document", tokens=False).pooled
    return queries, documents


def children() -> list[psutil.Process]:
    return running("es_ttc.sandbox.child")


def context(encoder: Encoder, sample: Moments | None = None) -> Context:
    texts = [one.text for one in BEES.documents]
    ids = [one.id for one in BEES.documents]
    return Context(list(BEES.queries.values()), texts, list(BEES.queries), ids, encode_fn(encoder), calibration=sample)


def one_query(text: str) -> Context:
    def encode(*_: object, **__: object) -> Float32:
        return np.zeros((0, 2), np.float32)

    return Context([text], ["d"], ["0"], ["0"], encode)


def test_a_regular_expression_that_never_ends_costs_its_search_alone(
    opensearch_url: str, index_name: str, encoder: Encoder, programs: Path
) -> None:
    spec = IndexSpec(encoder.identity, text_fields=("text",), tokens="none")
    documents = [{"_id": document.id, "text": document.text} for document in BEES.documents]
    asyncio.run(fill(opensearch_url, index_name, spec, encoder, documents))

    def search(gateway: str, text: str, *, name: str = "endless", **more: Any) -> Reply:
        section = {"method": "program", "params": {"name": name}, "query_text": text, **more}
        return call(
            gateway, "POST", f"/{index_name}/_search", {"query": {"match_all": {}}, "rescore": {"ttc": section}}
        )

    with gateway_to(opensearch_url, encoder, programs=programs) as gateway, ThreadPoolExecutor(1) as thread:
        assert not children()  # none before the first call
        before = search(gateway, "insects")
        assert before.json()["ttc"]["applied"], before.body
        [busy] = [one for one in children() if _is_kept(one)]
        trapped = thread.submit(search, gateway, TRAP, timeout="3s")
        while not trapped.done():
            others = search(gateway, "honey", name="expanding")
            assert others.status == 200
            assert others.json()["ttc"]["applied"], others.body
        reply = trapped.result()
        assert reply.status == 200
        assert not reply.json()["ttc"]["applied"]
        assert "longer than its budget of 3000 ms" in reply.json()["ttc"]["reason"]
        plain = call(gateway, "POST", f"/{index_name}/_search", {"query": {"match_all": {}}})
        assert (reply.ids, reply.scores) == (plain.ids, plain.scores)  # the engine's own order
        assert psutil.wait_procs([busy], timeout=10)[1] == []
        failed = search(gateway, TRAP, timeout="500ms", on_error="fail")
        assert failed.status == 503
        assert failed.json()["error"]["type"] == "ttc_deadline_exceeded_exception"
        after = search(gateway, "insects")
        assert after.json()["ttc"]["applied"], after.body
        assert (after.ids, after.scores) == (before.ids, before.scores)
    assert not children()


def _is_kept(process: psutil.Process) -> bool:
    """Whether a process has its program: its memory is limited then."""
    return process.rlimit(psutil.RLIMIT_AS)[0] != psutil.RLIM_INFINITY


@pytest.mark.parametrize("name", ["bidirzscore", "crossroundrrf", "diversedualctx", "expanding", "calibrated"])
def test_a_program_scores_there_as_it_does_here(
    name: str, host: ProgramProcessPool, encoder: Encoder, vectors: tuple[Float32, Float32]
) -> None:
    own = {"expanding": EXPANDING, "calibrated": CALIBRATED}
    text = own.get(name) or program_source(CATALOGUE[name])
    sample = Moments.of(vectors[0])
    here, there = context(encoder, sample), context(encoder, sample)
    noted: list[dict[str, Float32]] = [{}, {}]
    here.record, there.record = (one.__setitem__ for one in noted)
    expected = run(compiled(text), *vectors, here)
    np.testing.assert_allclose(run(host.program(text), *vectors, there), expected, atol=2e-5)
    assert noted[0].keys() == noted[1].keys()
    for channel in noted[0]:
        np.testing.assert_allclose(noted[1][channel], noted[0][channel], atol=2e-5)


def test_processes_are_kept_and_replaced(host: ProgramProcessPool) -> None:
    one = np.ones((1, 2), np.float32)
    program = host.program(ENDLESS)
    assert run(program, one, one, one_query("x")).shape == (1, 1)
    [kept] = [child for child in children() if _is_kept(child)]
    assert run(program, one, one, one_query("x")).shape == (1, 1)
    assert kept in children()

    giving_up = Call()
    ended: Future[Any] = Future()

    def trapped() -> None:
        try:
            giving_up.run(lambda: run(program, one, one, one_query(TRAP)))
        except ProgramError as error:
            ended.set_result(error)

    thread = threading.Thread(target=trapped)
    thread.start()
    begun = kept.cpu_times().user
    while kept.cpu_times().user < begun + 0.2 and thread.is_alive():
        pass  # until it is in the midst of it
    giving_up.give_up()
    assert "nobody waited any longer" in str(ended.result(timeout=10))
    thread.join()
    assert kept not in children()
    assert run(program, one, one, one_query("x")).shape == (1, 1)


def test_a_gateway_that_stops_ends_what_still_runs() -> None:
    one = np.ones((1, 2), np.float32)
    host = ProgramProcessPool(ProgramLimits(seconds=60))
    program = host.program(ENDLESS)
    assert run(program, one, one, one_query("x")).shape == (1, 1)
    [kept] = [child for child in children() if _is_kept(child)]
    with ThreadPoolExecutor(1) as thread:
        trapped = thread.submit(run, program, one, one, one_query(TRAP))
        begun = kept.cpu_times().user
        while kept.cpu_times().user < begun + 0.2 and not trapped.done():
            pass
        host.close()
        with pytest.raises(ProgramError, match="stopping"):
            trapped.result(timeout=10)
    assert not children()


def test_a_call_that_nobody_waits_for_leaves_its_process_to_the_next(host: ProgramProcessPool) -> None:
    one = np.ones((1, 2), np.float32)
    gone = Call()
    gone.give_up()
    with pytest.raises(ProgramError, match="in time"):
        gone.run(lambda: run(host.program(ENDLESS), one, one, one_query("x")))
    assert run(host.program(ENDLESS), one, one, one_query("x")).shape == (1, 1)
    assert len([child for child in children() if _is_kept(child)]) == 1


def test_program_beyond_memory_or_time_is_refused() -> None:
    one = np.ones((1, 2), np.float32)
    host = ProgramProcessPool(ProgramLimits(seconds=0.5, memory_mb=64, processes=0))
    try:
        with pytest.raises(ProgramError, match="memory_limit"):
            run(host.program(GREEDY), one, one, one_query("x"))
        with pytest.raises(ProgramError, match="time_limit"):
            run(host.program(ENDLESS), one, one, one_query(TRAP))
        host.program("def program(Q, D, S, ctx):\n    return S\n")(one, one, one @ one.T, one_query("x"))
        assert not [child for child in children() if _is_kept(child)]  # none is kept
    finally:
        host.close()
    with pytest.raises(ProgramError, match="stopping"):
        run(host.program(ENDLESS), one, one, one_query("x"))


def test_without_the_filter_programs_are_refused(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'es-ttc\[sandbox\]'"):
        create_app(GatewaySettings(programs=programs))
    create_app(GatewaySettings())  # which serves none
    monkeypatch.setattr(process_pool, "_STATUS", Path("/nowhere"))
    with pytest.raises(ConfigurationError, match="need Linux"):
        create_app(GatewaySettings(programs=programs))
