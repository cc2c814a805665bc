"""Fixtures that all tests share: real nodes of both products, a fresh index, the real encoder, a model, data.

The nodes are started once a run, in the background, and thrown away at its end; where several processes share a run's
tests, they share its nodes. ES_TTC_TEST_OPENSEARCH and ES_TTC_TEST_ELASTICSEARCH name nodes that run already and are
used instead.
"""

import gc
import json
import logging
import os
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import structlog

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError
from es_ttc.settings import EngineSettings
from tests import whole
from tests.support import shared_nodes, sharing
from tests.support.own_node import OwnNode
from tests.support.shared_nodes import SharedNodes

# Commands that run inside a test print nothing of a gateway of their own on standard output, as the program does not.
structlog.configure(
    processors=[structlog.stdlib.filter_by_level, structlog.processors.JSONRenderer()],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)


# A run starts some hundred processes: what one of them compiles is kept for the others, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Several processes share the processors: threads of numpy's and torch's own would wait for one another there.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

# Tests say nothing of speed: a busy machine must not fail one. Each run draws other examples.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=60)
hypothesis.settings.load_profile("tests")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
PRODUCTS = tuple(shared_nodes.PRODUCTS)
NODES = pytest.StashKey[Path]()
ENDED = pytest.StashKey[list[str]]()
"""The tests in which processes of the run have ended."""
ON_NODES = frozenset(
    {
        "nodes",
        "engine_url",
        "killed_node",
        "plugged",
        *(f"{one}_{what}" for one in PRODUCTS for what in ("url", "plugged")),
    }
)
"""The fixtures that give a test a node."""
ON_MODELS = frozenset({"encoder", "llm_url"})
"""The fixtures that give a test a model, which takes seconds to load."""


class Nodes:
    """The nodes of this run, as far as this process has asked for them."""

    def __init__(self, folder: Path) -> None:
        self.urls: dict[str, str] = {}
        self._folder = folder

    def url(self, product: str) -> str:
        """Return a node's address; it is waited for."""
        if product not in self.urls:
            self.urls[product] = shared_nodes.address(self._folder, product)
        return self.urls[product]


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that begins a run start its nodes; the others of the run are told where they meet."""
    if (told := getattr(config, "workerinput", None)) is not None:
        config.stash[NODES] = Path(told["nodes"])
        return
    shared = SharedNodes()
    config.stash[NODES] = shared.folder
    config.add_cleanup(shared.stop)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a further process of the run where the nodes are found."""
    node.workerinput["nodes"] = str(node.config.stash[NODES])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Say which tests stay together where several processes share them."""
    return sharing.scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Say at once in which test a process of the run has ended; it fails if that was not the first time, or often so.

    pytest-xdist repeats such a test.
    """
    sys.stderr.write(f"\na process of the run ended in {crashitem}\n")
    ended = sched.config.stash.setdefault(ENDED, [])
    if crashitem not in ended and len(ended) < whole.MOST:
        report.outcome = "rerun"  # type: ignore[assignment]
    ended.append(crashitem)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of slow tests where those are not asked for: to import them takes as long as all others."""
    if "not slow" not in config.option.markexpr or not collection_path.is_relative_to(config.rootpath):
        return None
    return sharing.slow(collection_path.relative_to(config.rootpath).as_posix()) or None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a file that says `ON_ONE_ENGINE` on one product: what they show does not depend on it."""
    chosen = any("engine_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if getattr(metafunc.module, "ON_ONE_ENGINE", False) and "engine_url" in metafunc.fixturenames and not chosen:
        metafunc.definition.add_marker(pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests that need a node or are slow; where several processes share the tests, the longest begin."""
    for item in items:
        asked = getattr(item, "fixturenames", ())
        if not ON_NODES.isdisjoint(asked):
            item.add_marker("engine")
        if sharing.slow(item.nodeid) or not ON_MODELS.isdisjoint(asked):
            item.add_marker("slow")
    yield
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: sharing.rank(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the nodes started that tests will ask for.

    What is loaded by now is frozen: a gateway in this process would otherwise collect it at its start, for 0.4 s.
    """
    gc.freeze()
    if session.config.option.collectonly:
        return
    for product in {product for item in session.items for product in _products_of(item)}:
        shared_nodes.want(session.config.stash[NODES], product)


def pytest_sessionfinish() -> None:
    """Let the process's end collect everything."""
    gc.unfreeze()


def _products_of(item: pytest.Item) -> Iterator[str]:
    """Return whose nodes a test asks for."""
    asked = set(getattr(item, "fixturenames", ()))
    if "engine_url" in asked and (chosen := getattr(item, "callspec", None)) is not None:
        asked.add(f"{chosen.params.get('engine_url')}_url")
    return (product for product in PRODUCTS if f"{product}_url" in asked)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Undo what a command or a gateway run inside a test has made of the process's logging."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)


class Outcome(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str


@pytest.fixture
def es_ttc(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command of `es-ttc` in this process."""
    from es_ttc.cli.app import run

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        return Outcome(run(list(arguments)), *capsys.readouterr())

    return command


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Takes away the log that a command has set up: its stream ends with the test."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in before]


@pytest.fixture(scope="session")
def nodes(pytestconfig: pytest.Config) -> Nodes:
    return Nodes(pytestconfig.stash[NODES])


@pytest.fixture(scope="session")
def opensearch_url(nodes: Nodes) -> str:
    """The address of a real OpenSearch."""
    return nodes.url("opensearch")


@pytest.fixture(scope="session")
def elasticsearch_url(nodes: Nodes) -> str:
    """The address of a real Elasticsearch; the test is skipped where no JDK can run one, which fails on CI."""
    try:
        return nodes.url("elasticsearch")
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Elasticsearch must be tested on CI: {error}")
        pytest.skip(f"no Elasticsearch: {error}")


@pytest.fixture(scope="session", params=PRODUCTS)
def engine_url(request: pytest.FixtureRequest) -> str:
    """The address of a real node, of one product after the other."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[Engine]:
    """A client of the node."""
    client = await connect(EngineSettings(engine=engine_url))
    yield client
    await client.close()


@pytest.fixture
def index_name(nodes: Nodes) -> Iterator[str]:
    """A name that no index has; afterwards every index whose name begins with it is deleted."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    for url in nodes.urls.values():
        for index in _call("GET", f"{url}/_cat/indices/{name}*?format=json&h=index&expand_wildcards=all"):
            _call("DELETE", f"{url}/{index['index']}")


def _call(method: str, url: str) -> Any:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.fixture(scope="session")
def killed_node() -> Iterator[OwnNode]:
    """A real OpenSearch that tests kill and start again, one after the other; each has indices of its own in it."""
    node = OwnNode("killed")
    yield node
    node.stop()


@pytest.fixture
def own_node(killed_node: OwnNode) -> OwnNode:
    """The node that a test may kill; it runs, whatever the test before has left."""
    if not killed_node.lives:
        killed_node.restart()
    return killed_node


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real MiniLM, on ONNX Runtime."""
    from es_ttc.encoders import load_encoder

    return load_encoder("minilm@onnx")


@pytest.fixture(scope="session")
def llm_url() -> Iterator[str]:
    """The base URL of a real, small language model; a base model, to be asked by completions.

    It is llama.cpp's server, or under `make test-vllm` vLLM's.
    """
    from tests.support.local_llm import running_llm
    from tests.support.vllm import VARIABLE, vllm

    with vllm(python) if (python := os.environ.get(VARIABLE)) else running_llm() as url:
        yield url


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of BEIR data sets beside the repository; the test is skipped where there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no data sets: {SHARED_DATA.name} is not beside the repository")
    return SHARED_DATA
