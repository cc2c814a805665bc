"""LangChain, LlamaIndex and Haystack through the gateway: the code of their pages, with addresses and names put in."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from es_ttc.attach import attach_beside
from es_ttc.attach.source import sources_of
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.attach.conftest import remove_traces
from tests.gateway.client import search
from tests.gateway.conftest import Behind, corpus, fill

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.prefix) / "frameworks" / "bin" / "python"
QUESTION = "which cat drinks milk?"
TEXTS = {document["_id"]: document["text"] for document in corpus() if document["text"]}


@dataclass(frozen=True)
class Page:
    """A how-to page, and what its code calls things."""

    name: str
    text_field: str
    result: str

    def blocks(self, address: str, articles: str, passages: str) -> list[str]:
        """Return its code with the address and the names of the indices put in."""
        text = (ROOT / "docs" / "how-to" / f"{self.name}.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        names = {"http://127.0.0.1:9280": address, "articles": articles, "passages": passages}
        for index, block in enumerate(blocks):
            assert f'"{next(iter(names))}"' in block
            blocks[index] = re.sub(r'"([^"\n]*)"', lambda found: f'"{names.get(found[1], found[1])}"', block)
        return blocks


PAGES = {
    page.name: page
    for page in (
        Page("langchain", "text", "documents"),
        Page("llama-index", "content", "nodes"),
        Page("haystack", "content", "documents"),
    )
}


def in_their_environment(function: str, **arguments: Any) -> Any:
    if not PYTHON.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the frameworks must be tested on CI: make .venv/.frameworks")
        pytest.skip("no frameworks: make .venv/.frameworks")
    run = subprocess.run(
        [str(PYTHON), "-m", "tests.support.frameworks", function],
        input=json.dumps(arguments),
        cwd=ROOT,
        env={**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "False"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


async def attach(url: str, index: str, spec: IndexSpec, encoder: Encoder) -> None:
    engine = await connect(EngineSettings(engine=url))
    try:
        await engine.refresh(index)
        [source] = await sources_of(engine, index)
        assert (await attach_beside(engine, source, spec, encoder)).written == len(TEXTS)
    finally:
        await engine.close()


async def detach(url: str, index: str) -> None:
    engine = await connect(EngineSettings(engine=url))
    try:
        await remove_traces(engine, index)
    finally:
        await engine.close()


@pytest.fixture
def written(behind: Behind, index_name: str) -> Iterator[str]:
    """The name of an index for a framework to write; what is attached to it goes afterwards."""
    yield f"{index_name}-articles"
    asyncio.run(detach(behind.engine, f"{index_name}-articles"))


@pytest.mark.parametrize("name", PAGES)
def test_code_of_the_page(behind: Behind, encoder: Encoder, index_name: str, written: str, name: str) -> None:
    page, made = PAGES[name], f"{index_name}-passages"
    in_their_environment(
        f"write_{name.replace('-', '_')}", url=behind.gateway, index=written, product=behind.product, texts=TEXTS
    )
    spec = IndexSpec(encoder.identity, text_fields=(page.text_field,), max_tokens=64)
    asyncio.run(attach(behind.engine, written, spec, encoder))
    documents = [{"_id": key, "id": key, page.text_field: text, "metadata": {}} for key, text in TEXTS.items()]
    asyncio.run(fill(behind.engine, made, spec, encoder, documents))

    first_pass = {"query": {"match": {page.text_field: QUESTION}}, "size": 5}
    section = {"window_size": 100, "ttc": {"method": "spectral"}}
    rescored = search(behind.gateway, written, {**first_pass, "rescore": section})
    assert rescored.json()["ttc"]["applied"] is True
    assert rescored.ids != search(behind.gateway, written, first_pass).ids
    clause = {"field": "ttc.vector", "query_text": QUESTION, "k": 5, "ttc": {"method": "nnn"}}
    nearest = search(behind.gateway, made, {"knn": clause, "size": 5})
    assert nearest.json()["ttc"]["applied"] is True

    blocks = page.blocks(behind.gateway, written, made)
    found = in_their_environment("run_page", page=f"{name}.md", blocks=blocks, result=page.result)
    for block, documents in zip(blocks, found, strict=True):
        expected = nearest if '"knn"' in block else rescored
        assert [document["id"] for document in documents] == expected.ids
        assert [document["text"] for document in documents] == [TEXTS[key] for key in expected.ids]
        scores = [document["score"] for document in documents]
        if name == "llama-index":  # it maps them to 0 ... 1
            assert (scores[0], scores[-1]) == (1, 0)
            assert scores == sorted(scores, reverse=True)
        else:
            assert scores == pytest.approx(expected.scores)
        if name == "langchain":
            shown = [document["detail"] for document in documents]
            assert all("first_pass_rank" in detail for detail in shown) if '"detail"' in block else not any(shown)
