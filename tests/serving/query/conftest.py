"""An index of one shard with the field of enrichment, and a gateway whose model says what a test wants it to say."""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving import rewriting
from es_ttc.settings import EngineSettings
from tests.serving.client import Reply, call
from tests.serving.relay import Relay, relay
from tests.support.gateway import gateway_to
from tests.support.llm import Answer, ScriptedModel, scripted_model_beside
from tests.support.per_engine import PerEngine

DOCUMENTS = [
    {"title": "Heart", "text": "Myocardial infarction is treated with aspirin and rest."},
    {"title": "Heart", "text": "A heart attack needs help at once."},
    {"title": "Stroke", "text": "Thrombosis of an artery leads to a stroke."},
    {"title": "Lungs", "text": "Asthma narrows the airways and needs rest."},
    {"title": "Skin", "text": "A rash is treated with an ointment and rest."},
    {"title": "Bones", "text": "A fracture is treated with a cast and rest."},
    {"title": "Mind", "text": "Sleep is treated with rest."},
    {"title": "Blood", "text": "Anticoagulants thin the blood."},
]
ENRICHMENT = {"2": ["cardiac arrest", "myocardial infarction"], "8": ["thrombosis", "warfarin"]}


@dataclass
class Rewritten:
    """A gateway with a scripted model, the engine behind it as it is asked, and an index."""

    engine: str
    gateway: str
    index: str
    model: ScriptedModel
    relay: Relay
    answers: dict[str, Answer | Callable[[], Answer]] = field(default_factory=dict)

    def search(self, body: dict[str, Any], path: str | None = None, **headers: str) -> Reply:
        return call(self.gateway, "POST", f"/{path or self.index}/_search", body, headers)

    def directly(self, body: dict[str, Any], path: str | None = None) -> Reply:
        return call(self.engine, "POST", f"/{path or self.index}/_search", body)

    def says(self, text: str, *phrases: str) -> None:
        """Let the model propose phrases for a query's text."""
        self.answers[text] = orjson.dumps({"phrases": phrases}).decode()

    def asked_about(self, text: str) -> int:
        return sum(text in one["messages"][0]["content"] for one in self.model.asked)


@pytest.fixture(scope="session", autouse=True)
def time_to_rewrite() -> Iterator[None]:
    """What is tested is no time; machines may be busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "TIMEOUT_MS", 60_000)
        yield


@pytest.fixture(scope="session")
def all_rewritten(encoder: Encoder) -> Iterator[PerEngine[Rewritten]]:
    with PerEngine(lambda engine: _rewritten(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def rewritten(engine_url: str, all_rewritten: PerEngine[Rewritten]) -> Rewritten:
    """Of one engine after the other."""
    return all_rewritten.of(engine_url)


@contextmanager
def _rewritten(engine_url: str, encoder: Encoder) -> Iterator[Rewritten]:
    name = f"test-query-{uuid.uuid4().hex[:8]}"
    asyncio.run(fill(engine_url, name, encoder))
    answers: dict[str, Answer | Callable[[], Answer]] = {}

    def answer(body: dict[str, Any]) -> Answer:
        asked = body["messages"][0]["content"]
        found = max((text for text in answers if text in asked), key=len, default="")
        value = answers.get(found, "{}")
        return value() if callable(value) else value

    with relay(engine_url) as watched, scripted_model_beside(answer) as model:
        try:
            with gateway_to(watched.url, encoder, llm_url=model.url, llm_attempts=1, llm_model="m") as gateway:
                yield Rewritten(engine_url, gateway, name, model, watched, answers)
        finally:
            call(engine_url, "DELETE", f"/{name}")


async def fill(
    url: str,
    name: str,
    encoder: Encoder,
    documents: Sequence[Mapping[str, Any]] = DOCUMENTS,
    enrichment: Mapping[str, Sequence[str]] = ENRICHMENT,
) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        await create_index(engine, name, IndexSpec(encoder.identity, tokens="none"), IndexOptions(shards=1, replicas=0))
        properties = {"ttc": {"properties": {"enrichment": {"type": "text", "analyzer": "english", "norms": False}}}}
        await engine.request("PUT", f"/{name}/_mapping", body={"properties": properties})
        lines: list[bytes] = []
        for number, document in enumerate(documents, 1):
            phrases = enrichment.get(str(number))
            body = {**document, **({"ttc": {"enrichment": phrases}} if phrases else {})}
            lines += [orjson.dumps({"index": {"_id": str(number)}}), orjson.dumps(body)]
        assert all(item.ok for item in await engine.bulk(name, lines))
        await engine.refresh(name)
