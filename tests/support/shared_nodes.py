"""One node of each product for a whole run, however many processes share its tests.

The process that began the run starts a node as soon as one of them wants it, in the background, and ends it with the
run. They meet in a folder: who wants a node makes a file there, and finds its address in another one.
"""

import os
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.errors import ConfigurationError, NodeError
from es_ttc.settings import Settings
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.memory import data_folder

PRODUCTS: Mapping[str, Callable[[], Distribution]] = {
    "opensearch": OpenSearchDistribution,
    "elasticsearch": ElasticsearchDistribution,
}
LOOK_SECONDS = 0.1
MAX_SECONDS = 840.0
"""Until a node is given up: the first start on a machine downloads it. Less than a test may take."""
LICENCE_SECONDS = 300.0
START_SECONDS = 600.0
"""Generous: on a busy machine a node needs minutes."""
_CANNOT = "cannot: "


class SharedNodes:
    """The nodes, for the process that starts them; as long as it lives.

    Attributes:
        folder: Where others say what they want.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="es-ttc-tests-"))
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(product,), daemon=True) for product in PRODUCTS]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the nodes that were started."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self.folder)

    def _serve(self, product: str) -> None:
        """Wait until the product is wanted, start it, and end it with the run."""
        while not _wanted(self.folder, product).exists():
            if self._ended.wait(LOOK_SECONDS):
                return
        answer = f"{product} did not start"
        try:
            with started(PRODUCTS[product]()) as node:
                answer = node.url
                _answer(self.folder, product, answer)
                self._ended.wait()
        except ConfigurationError as error:
            answer = f"{_CANNOT}{error}"
        except NodeError as error:
            answer = f"{error}"
        finally:
            _answer(self.folder, product, answer)


def want(folder: Path, product: str) -> None:
    """Say that a node will be needed."""
    if _given(product) is None:
        _wanted(folder, product).touch()


def address(folder: Path, product: str) -> str:
    """Return a node's address: of one that ES_TTC_TEST_OPENSEARCH or ES_TTC_TEST_ELASTICSEARCH names, or of the run's.

    Raises:
        ConfigurationError: This machine has not what it takes.
        NodeError: It did not start.
    """
    if (given := _given(product)) is not None:
        return given
    want(folder, product)
    deadline = time.monotonic() + MAX_SECONDS
    while not _answered(folder, product).exists():
        if time.monotonic() > deadline:
            raise NodeError(f"no {product} within {MAX_SECONDS:.0f} seconds")
        time.sleep(LOOK_SECONDS)
    answer = _answered(folder, product).read_text()
    if answer.startswith(_CANNOT):
        raise ConfigurationError(answer.removeprefix(_CANNOT))
    if not answer.startswith("http://"):
        raise NodeError(answer)
    return answer


def await_licence(url: str) -> None:
    """Wait for the licence, which a new cluster of Elasticsearch gives itself only after it answers."""
    deadline = time.monotonic() + LICENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/_license", timeout=60).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise
            time.sleep(0.2)
        else:
            return
    raise AssertionError("the new Elasticsearch gives itself no licence")


@contextmanager
def started(distribution: Distribution, *, name: str = "", keep_data: bool = False) -> Iterator[process.Node]:
    """Start a node that is thrown away afterwards, but for its data where they are kept."""
    name = name or f"tests-{os.getpid()}-{distribution.product}"
    spec = NodeSpec(
        cache_dir=Settings().cache_dir,
        name=name,
        port=0,
        data_dir=data_folder(name),
        owned=True,
        short_lived=True,
        keep_data=keep_data,
        timeout=START_SECONDS,
    )
    with process.start_node(spec, distribution=distribution) as node:
        if distribution.product == "elasticsearch":
            await_licence(node.url)
        yield node


def _given(product: str) -> str | None:
    return os.environ.get(f"ES_TTC_TEST_{product.upper()}") or None


def _wanted(folder: Path, product: str) -> Path:
    return folder / f"{product}.wanted"


def _answered(folder: Path, product: str) -> Path:
    return folder / f"{product}.answer"


def _answer(folder: Path, product: str, text: str) -> None:
    staged = folder / f"{product}.staged"
    staged.write_text(text)
    staged.replace(_answered(folder, product))
