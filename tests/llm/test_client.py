"""The client against a real server (llama.cpp): `make test-vllm` runs the same against vLLM."""

import json

import pytest

from es_ttc.errors import ConfigurationError, LlmError, LlmFailure
from es_ttc.llm import JsonSchema, LlmClient, Message, first_json
from es_ttc.settings import LlmSettings
from tests.support.llm import settings_for

KEYWORDS = JsonSchema(
    "keywords",
    {
        "type": "object",
        "properties": {"phrases": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2}},
        "required": ["phrases"],
        "additionalProperties": False,
    },
)

pytestmark = pytest.mark.llm


async def test_a_text_is_continued_and_its_tokens_are_counted(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url)) as client:
        reply = await client.ask("One, two, three,", max_tokens=4)
    assert reply.text
    assert reply.usage.completion_tokens == 4
    assert reply.usage.prompt_tokens >= 4
    assert reply.finish == "length"
    assert not reply.held
    assert reply.seconds > 0


async def test_the_same_question_has_the_same_answer(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url)) as client:
        first, second = [await client.ask("Title: Aspirin\nKeywords:", max_tokens=6, seed=7) for _ in range(2)]
    assert first.text == second.text


async def test_an_answer_ends_where_it_is_told(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url)) as client:
        long = await client.ask("One, two, three,", max_tokens=6)
        stop = long.text.strip()[0]
        cut = await client.ask("One, two, three,", max_tokens=6, stop=[stop])
    assert stop not in cut.text
    assert cut.finish == "stop"


async def test_a_continued_text_is_held_to_a_schema(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url)) as client:
        reply = await client.ask("Keywords as JSON:", max_tokens=60, schema=KEYWORDS)
    assert reply.held
    assert _is_held(reply.text, reply.finish)


async def test_a_chat_is_held_to_a_schema(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url, llm_api="chat")) as client:
        free = await client.chat([Message("system", "Be brief."), Message("user", "Hello.")], max_tokens=3)
        reply = await client.ask("Give two keywords.", max_tokens=60, schema=KEYWORDS)
    assert free.usage.completion_tokens <= 3
    assert reply.held
    assert _is_held(reply.text, reply.finish)


async def test_the_only_model_needs_no_name(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url)) as client:
        [served] = await client.models()
        assert await client.model() == served
        assert (await client.ask("a", max_tokens=1)).model == served


async def test_a_question_longer_than_the_model_reads_is_refused_at_once(llm_url: str) -> None:
    async with LlmClient(settings_for(llm_url)) as client:
        with pytest.raises(LlmError, match="answered \\[completions\\] with 400") as raised:
            await client.ask("heart attack " * 5000, max_tokens=1)
    assert raised.value.failure is LlmFailure.REFUSED
    assert raised.value.upstream_status == 400
    assert "heart attack" not in str(raised.value)


def test_without_an_address_it_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="ES_TTC_LLM_URL"):
        LlmClient(LlmSettings(llm_url=None))


def _is_held(text: str, finish: str) -> bool:
    """Whether a text is of the form, or was on the way to it when its tokens were spent."""
    if finish == "length":
        return text.lstrip().startswith("{")
    found = first_json(text)
    return json.loads(text) == found and isinstance(found, dict) and list(found) == ["phrases"]
