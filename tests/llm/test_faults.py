"""What the client does when its endpoint is busy, broken, slow, gone, or talks of something else."""

import asyncio
import logging
import time
from functools import partial

import pytest
from aiohttp import web

from es_ttc.errors import ConfigurationError, LlmError, LlmFailure
from es_ttc.llm import JsonSchema, LlmClient
from es_ttc.llm.endpoint import EndpointSettings
from tests.support.llm import scripted_model, settings_for

SCHEMA = JsonSchema("phrases", {"type": "object"})
SECRET = "the patient's secret complaint"


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_passing_fault_is_asked_again(status: int) -> None:
    async with scripted_model([status, "yes"]) as model, LlmClient(settings_for(model.url)) as client:
        assert (await client.ask("?")).text == "yes"
    assert len(model.asked) == 2


async def test_retry_after_is_kept_to() -> None:
    busy = web.Response(status=429, headers={"Retry-After": "1"}, text="{}")
    async with scripted_model([busy, "yes"]) as model, LlmClient(settings_for(model.url)) as client:
        started = time.monotonic()
        await client.ask("?")
    assert 1.0 <= time.monotonic() - started < 2.5


async def test_a_long_retry_after_is_the_callers_to_wait() -> None:
    busy = web.Response(status=429, headers={"Retry-After": "3600"}, text="{}")
    async with scripted_model([busy]) as model, LlmClient(settings_for(model.url)) as client:
        with pytest.raises(LlmError, match="with 429") as raised:
            await client.ask("?")
    assert raised.value.failure is LlmFailure.RATE_LIMITED
    assert raised.value.retry_after == 3600
    assert len(model.asked) == 1


NO_JSON_OBJECT = (b"not json", b"[]", b"")
NO_ANSWER = (b"{}", b'{"choices": []}', b'{"choices": [{"text": 1}]}')


@pytest.mark.parametrize(
    ("answer", "failure", "asked"),
    [
        *((status, LlmFailure.REFUSED, 1) for status in (400, 401, 403, 404, 422)),
        (503, LlmFailure.SERVER, 2),
        *((raw, LlmFailure.MALFORMED, 2) for raw in NO_JSON_OBJECT),
        *((raw, LlmFailure.MALFORMED, 1) for raw in NO_ANSWER),
    ],
)
async def test_an_answer_of_no_use_is_a_failure_of_its_kind(
    answer: int | bytes, failure: LlmFailure, asked: int
) -> None:
    async with scripted_model([answer]) as model, LlmClient(settings_for(model.url, llm_attempts=2)) as client:
        with pytest.raises(LlmError) as raised:
            await client.ask("?")
    assert raised.value.failure is failure
    assert len(model.asked) == asked


async def test_an_empty_answer_is_an_answer() -> None:
    none = b'{"choices": [{"message": {"content": null}}]}'
    async with scripted_model([none]) as model, LlmClient(settings_for(model.url, llm_api="chat")) as client:
        reply = await client.ask("?")
    assert reply.text == ""
    assert reply.usage.completion_tokens == 0


async def test_a_deadline_holds_whatever_the_endpoint_does() -> None:
    async with scripted_model([None]) as model, LlmClient(settings_for(model.url)) as client:
        started = time.monotonic()
        with pytest.raises(LlmError, match="gave no answer") as raised:
            await client.ask("?", seconds=0.3)
    assert raised.value.failure is LlmFailure.TIMEOUT
    assert time.monotonic() - started < 1.0


async def test_a_deadline_holds_in_the_queue() -> None:
    async with (
        scripted_model([None]) as model,
        LlmClient(settings_for(model.url, llm_concurrency=1, llm_model="scripted")) as client,
    ):
        first = asyncio.create_task(client.ask("?", seconds=2))
        await asyncio.sleep(0.1)
        with pytest.raises(LlmError) as raised:
            await client.ask("?", seconds=0.2)
        first.cancel()
    assert raised.value.failure is LlmFailure.TIMEOUT
    assert client.endpoint.seconds_closed == 0


async def test_no_more_questions_at_once_than_allowed() -> None:
    async with (
        scripted_model(["yes"], seconds=0.05) as model,
        LlmClient(settings_for(model.url, llm_concurrency=3)) as client,
    ):
        await asyncio.gather(*(client.ask("?") for _ in range(12)))
    assert len(model.asked) == 12
    assert model.most == 3


async def test_an_endpoint_that_is_down_is_left_alone_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = partial(EndpointSettings, breaker_failures=2, breaker_seconds=0.3)
    monkeypatch.setattr("es_ttc.llm.client.EndpointSettings", quick)
    async with scripted_model([500, 500, "yes"]) as model, LlmClient(settings_for(model.url, llm_attempts=1)) as client:
        for _ in range(2):
            with pytest.raises(LlmError, match="with 500"):
                await client.ask("?")
        with pytest.raises(LlmError, match="failed 2 times in a row") as raised:
            await client.ask("?")
        assert raised.value.failure is LlmFailure.CIRCUIT_OPEN
        assert 0 < (raised.value.retry_after or 0) <= 0.3
        assert len(model.asked) == 2
        await asyncio.sleep(0.35)
        assert (await client.ask("?")).text == "yes"
        assert client.endpoint.seconds_closed == 0


async def test_endpoint_that_refuses_connections_cannot_be_reached() -> None:
    async with LlmClient(settings_for("http://127.0.0.1:9/v1", llm_attempts=1)) as client:
        with pytest.raises(LlmError, match="cannot be reached") as raised:
            await client.ask("?")
    assert raised.value.failure is LlmFailure.UNREACHABLE


async def test_redirects_are_not_followed() -> None:
    async with scripted_model(["yes"]) as other:
        moved = web.Response(status=307, headers={"Location": f"{other.url}/completions"})
        async with scripted_model([moved]) as model, LlmClient(settings_for(model.url)) as client:
            with pytest.raises(LlmError, match="redirect"):
                await client.ask("?")
    assert other.asked == []


async def test_without_schemas_it_is_asked_without_from_then_on() -> None:
    def answer(body: dict[str, object]) -> str | int:
        return 400 if "response_format" in body else "yes"

    async with scripted_model(answer) as model, LlmClient(settings_for(model.url)) as client:
        replies = [await client.ask("?", schema=SCHEMA) for _ in range(2)]
    assert [reply.held for reply in replies] == [False, False]
    assert len(model.asked) == 3


async def test_a_refusal_that_is_not_the_schemas_is_told() -> None:
    async with scripted_model([400]) as model, LlmClient(settings_for(model.url)) as client:
        for _ in range(2):
            with pytest.raises(LlmError, match="with 400"):
                await client.ask("?", schema=SCHEMA)
    assert len(model.asked) == 4  # both times with and without: nothing was learned


async def test_prompts_and_the_key_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    telling = web.json_response({"error": {"message": f"cannot answer '{SECRET}'"}}, status=400)
    settings = {"llm_api_key": "sk-very-secret", "llm_attempts": 2}
    async with scripted_model([503, "yes", telling]) as model, LlmClient(settings_for(model.url, **settings)) as client:
        await client.ask(SECRET)
        with pytest.raises(LlmError, match="repeats the request"):
            await client.ask(SECRET)
    assert model.headers[0]["Authorization"] == "Bearer sk-very-secret"
    told = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "with 503" in told or "server" in told
    assert SECRET not in told
    assert "sk-very" not in told


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://models", "http or https"),
        ("models", "http or https"),
        ("http://user:pass@models/v1", "holds credentials"),
        ("http://[::1", "is no URL"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as raised:
        LlmClient(settings_for(url))
    assert "pass" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://models:8000", "http://models:8000/v1"),
        ("http://models:8000/", "http://models:8000/v1"),
        ("http://models:8000/v1/", "http://models:8000/v1"),
        ("https://models/llm/v1", "https://models/llm/v1"),
        ("https://models/llm?x=1", "https://models/llm/v1"),
    ],
)
def test_the_address_may_be_given_with_or_without_v1(url: str, path: str) -> None:
    assert LlmClient(settings_for(url)).url == path


async def test_several_models_need_a_name() -> None:
    async with scripted_model(["yes"]) as model:
        client = LlmClient(settings_for(model.url))
        client.endpoint.get = _two_models  # type: ignore[method-assign]
        with pytest.raises(ConfigurationError, match="serves 2 models \\(a, b\\)"):
            await client.model()


async def _two_models(path: str, *, seconds: float | None = None) -> dict[str, object]:
    return {"data": [{"id": "a"}, {"id": "b"}]}
