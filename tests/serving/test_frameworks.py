"""LangChain, LlamaIndex and Haystack through the gateway: the code of their pages, with addresses and names put in."""

import asyncio
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import ir_measures
import numpy as np
import pytest
from ir_measures import R, Success, nDCG

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.attach import attach_beside
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.attach.conftest import remove_traces
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack, fill
from tests.serving.corpus import corpus
from tests.serving.writes.conftest import fill_pending, follow, states, unfollow
from tests.support.gateway import gateway_to

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.prefix) / "frameworks" / "bin" / "python"
QUESTION = "which cat drinks milk?"
TEXTS = {document["_id"]: document["text"] for document in corpus() if document["text"]}


@dataclass(frozen=True)
class Page:
    """A how-to page, and what its code calls things."""

    name: str
    text_field: str
    topic_field: str
    result: str

    def blocks(self, address: str, articles: str, passages: str) -> list[str]:
        """Return its code with the address and the names of the indices put in."""
        names = {"http://127.0.0.1:9280": address, "articles": articles, "passages": passages}
        return [
            re.sub(r'"([^"\n]*)"', lambda quoted: f'"{names.get(quoted[1], quoted[1])}"', block)
            for block in code_of(self.name)
        ]


def code_of(page: str) -> list[str]:
    """Return the blocks of Python in a how-to page."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


PAGES = {
    page.name: page
    for page in (
        Page("langchain", "text", "metadata.topic.keyword", "documents"),
        Page("llama-index", "content", "metadata.topic.keyword", "nodes"),
        Page("haystack", "content", "topic", "documents"),
    )
}


class Framework:
    """A process in the frameworks' environment, whose calls all are of one framework."""

    def __init__(self, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", "tests.serving.frameworks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "False"},
            text=True,
        )

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function there and return what it returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], 120)[0], "it does not answer"
        answer, *failure = json.loads(self._process.stdout.readline())
        assert not failure, failure[0]
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Framework]]:
    """Gives each framework's process, which is started when it is first asked for."""
    if not PYTHON.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the frameworks must be tested on CI: make .venv/.frameworks")
        pytest.skip("no frameworks: make .venv/.frameworks")
    with ExitStack() as exits:
        folder = tmp_path_factory.mktemp("frameworks")

        @cache
        def started(name: str) -> Framework:
            framework = Framework(exits.enter_context((folder / f"{name}.log").open("wb")))
            exits.callback(framework.end)
            return framework

        yield started


async def attach(url: str, index: str, spec: IndexSpec, encoder: Encoder) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        await engine.refresh(index)
        [source] = await Index.behind(engine, index)
        assert (await attach_beside(engine, source, spec, encoder)).written == len(TEXTS)


async def detach(url: str, index: str) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        await remove_traces(engine, index)


@pytest.fixture
def written(stack: SearchStack, index_name: str) -> Iterator[str]:
    """The name of an index for a framework to write; what is attached to it goes afterwards."""
    yield f"{index_name}-articles"
    asyncio.run(detach(stack.engine, f"{index_name}-articles"))


@pytest.fixture(scope="module")
def gateway_alone(encoder: Encoder) -> Iterator[str]:
    """A gateway whose engine is not there: embeddings need none."""
    with gateway_to("http://127.0.0.1:9", encoder, rerank_timeout_ms=60_000) as url:
        yield url


@pytest.mark.parametrize("name", PAGES)
def test_code_of_the_page(
    stack: SearchStack,
    encoder: Encoder,
    index_name: str,
    written: str,
    frameworks: Callable[[str], Framework],
    name: str,
) -> None:
    page, made, framework = PAGES[name], f"{index_name}-passages", frameworks(name)
    framework.call(
        f"write_{name.replace('-', '_')}", url=stack.gateway, index=written, product=stack.product, texts=TEXTS
    )
    spec = IndexSpec(encoder.identity, text_fields=(page.text_field,), max_tokens=64)
    asyncio.run(attach(stack.engine, written, spec, encoder))
    documents = [{"_id": key, "id": key, page.text_field: text, "metadata": {}} for key, text in TEXTS.items()]
    asyncio.run(fill(stack.engine, made, spec, encoder, documents))

    module = "\n".join(code_of("retrieve-for-a-language-model"))
    namespace: dict[str, Any] = {}
    exec(module, namespace)
    asked, passages_of = partial(namespace["search_body"], field=page.text_field), namespace["passages_of"]
    bodies = [
        asked(QUESTION),
        asked(f"{QUESTION}\nwhich bird sings before rain?"),
        asked("who drinks milk?", filters=[{"term": {page.topic_field: "cats"}}]),
        namespace["nearest_body"](QUESTION),
    ]
    expected = [search(stack.gateway, made if "knn" in body else written, body) for body in bodies]
    for reply in expected:
        assert reply.json()["ttc"]["applied"] is True

    blocks = page.blocks(stack.gateway, written, made)
    invocation = blocks[0].splitlines()[-1]
    late = f'import retrieval\nretrieval.SECTION["timeout"] = "1nanos"\n{invocation}'
    ran = framework.call("run_page", page=f"{name}.md", module=module, blocks=[*blocks, late], result=page.result)
    *found, fell_back = ran["found"]
    for documents, reply in zip(found, expected, strict=False):
        hits = reply.json()["hits"]["hits"]
        assert [document["id"] for document in documents] == reply.ids
        assert [document["text"] for document in documents] == [passages_of(hit, page.text_field) for hit in hits]
        assert [document["score"] for document in documents] == pytest.approx(reply.scores)
        assert [document["metadata"]["ttc"] for document in documents] == [hit["_ttc"] for hit in hits]
    for documents in found[len(expected) + 1 :]:  # by the store's own retriever
        body = {"query": {"match": {page.text_field: QUESTION}}, "size": 5, "rescore": {"ttc": {}}}
        assert [document["id"] for document in documents] == search(stack.gateway, written, body).ids
    assert fell_back
    for document in fell_back:
        outcome = document["metadata"]["ttc"]
        assert (outcome["method"], outcome["applied"], document["text"]) == ("blend", False, TEXTS[document["id"]])
        assert "longer than its budget" in outcome["reason"]
    judged = namespace["judged"]
    ranked = {text: search(stack.gateway, written, asked(text)).ids for text in judged}
    run = {text: {key: -rank for rank, key in enumerate(ids)} for text, ids in ranked.items()}
    measures = {"hit rate": Success @ 5, "recall": R @ 5, "nDCG": nDCG @ 5}
    reference = ir_measures.calc_aggregate(measures.values(), judged, run)
    assert ran["measures"] == pytest.approx({key: reference[measure] for key, measure in measures.items()})


def test_openais_client_gets_the_vectors_of_ingest(
    gateway_alone: str, encoder: Encoder, frameworks: Callable[[str], Framework]
) -> None:
    texts = list(TEXTS.values())
    found = frameworks("openai").call("embed_openai", url=f"{gateway_alone}/_ttc/v1", model="minilm", texts=texts)
    np.testing.assert_allclose(found, encoder.encode(texts, tokens=False).pooled, atol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_coheres_clients_get_the_scores_of_the_endpoint(
    gateway_alone: str, frameworks: Callable[[str], Framework], version: int
) -> None:
    model, query, texts = "rerank-v3.5", "who gives milk", list(TEXTS.values())
    asked = {"model": model, "query": query, "documents": texts}
    expected = call(gateway_alone, "POST", "/_ttc/rerank", asked).json()["results"]
    found = frameworks("cohere").call(
        "rerank_cohere", url=f"{gateway_alone}/_ttc", version=version, model=model, query=query, texts=texts
    )
    assert found == [[one["index"], pytest.approx(one["relevance_score"])] for one in expected]


@pytest.mark.parametrize("name", PAGES)
def test_stores_write_to_an_index_whose_writes_are_encoded(
    stack: SearchStack, encoder: Encoder, index_name: str, frameworks: Callable[[str], Framework], name: str
) -> None:
    page, framework = PAGES[name], frameworks(name)
    spec = IndexSpec(encoder.identity, text_fields=(page.text_field,), max_tokens=64)
    asyncio.run(follow(stack.engine, index_name, spec, "now"))
    half = len(TEXTS) // 2
    parts = {stack.gateway: dict(list(TEXTS.items())[:half])}
    if name != "langchain" or stack.product == "elasticsearch":  # its store refuses OpenSearch
        parts[stack.engine] = dict(list(TEXTS.items())[half:])
    try:
        for url, texts in parts.items():
            write = f"write_{name.replace('-', '_')}"
            framework.call(write, url=url, index=index_name, product=stack.product, texts=texts)
        found = states(stack.engine, index_name)
        expected = {key: "ready" if url == stack.gateway else "pending" for url, part in parts.items() for key in part}
        assert found == expected
        asyncio.run(fill_pending(stack.engine, index_name, encoder))
        assert set(states(stack.engine, index_name).values()) == {"ready"}
        for method in ("spectral", "blend"):
            section = {"window_size": 100, "ttc": {"method": method, "query_text": QUESTION}}
            body = {"query": {"match_all": {}}, "rescore": section}
            assert search(stack.gateway, index_name, body).json()["ttc"]["scored"] == len(expected)
    finally:
        unfollow(stack.engine, index_name)
