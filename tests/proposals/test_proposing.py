import re
from typing import Any

import pytest
from aiohttp import web

from es_ttc.enrichment.proposals.filtering import filtered
from es_ttc.enrichment.proposals.plan import Plan, prompt_names, prompt_of
from es_ttc.enrichment.proposals.proposing import NoReadableProposal, propose_phrases
from es_ttc.errors import ConfigurationError
from es_ttc.llm import LlmClient, Usage
from es_ttc.rewriters.prompts import PromptApi, Prompts
from tests.support.llm import reply, scripted_model, settings_for


def plan(**changes: Any) -> Plan:
    return Plan(**{"prompt": "p", "text": "Of {{document}}:", "model": "scripted", "api": "completions", **changes})


async def test_an_answer_is_mended_once_and_all_its_tokens_count() -> None:
    async with scripted_model(["...", "heart attack, MI"]) as model, LlmClient(settings_for(model.url)) as llm:
        proposed = await propose_phrases(llm, plan(), "Aspirin\n\nhelps.")
        assert proposed.phrases == ("heart attack", "MI")
        assert proposed.usage == Usage(20, 4)
        assert [body["prompt"] for body in model.asked] == ["Of Aspirin helps.:"] * 2
        assert model.asked[0]["temperature"] < model.asked[1]["temperature"]


async def test_a_chat_model_is_held_to_a_schema_and_told_what_is_wrong() -> None:
    answers = ["No idea.. !!", '{"phrases": ["MI"]}']
    async with (
        scripted_model(lambda body: "..." if len(body["messages"]) == 1 else answers[1]) as model,
        LlmClient(settings_for(model.url, llm_api="chat")) as llm,
    ):
        assert (await propose_phrases(llm, plan(api="chat"), "Aspirin")).phrases == ("MI",)
        assert "json_schema" in str(model.asked[0]["response_format"])
        assert [turn["role"] for turn in model.asked[1]["messages"]] == ["user", "assistant", "user"]


async def test_whole_queries_are_neither_cut_nor_counted() -> None:
    nothing: Any = None  # no engine is asked
    queries = ["1. does aspirin help the heart in old age", "aspirin", "aspirin"]
    [found] = await filtered(nothing, nothing, plan(whole=True, most=5), [(queries, ["aspirin helps"])])
    assert found.kept == ("does aspirin help the heart in old age", "aspirin")
    assert plan(whole=True).key != plan().key


async def test_two_answers_without_phrases_are_a_failure_of_the_document() -> None:
    async with scripted_model(["... ---"]) as model, LlmClient(settings_for(model.url)) as llm:
        with pytest.raises(NoReadableProposal, match="holds no phrases") as failed:
            await propose_phrases(llm, plan(), "Aspirin")
        assert failed.value.usage == Usage(20, 4)


async def test_a_phrase_that_breaks_off_is_left_out() -> None:
    broken = web.json_response(reply("heart attack, myocard", chat=False, finish="length"))
    async with scripted_model([broken]) as model, LlmClient(settings_for(model.url)) as llm:
        assert (await propose_phrases(llm, plan(), "Aspirin")).phrases == ("heart attack",)


def test_a_plan_is_known_by_what_it_asks_and_by_what_it_keeps() -> None:
    first = plan()
    assert plan(prompt="renamed").key == first.key
    assert plan(text="About {{document}}:").asked != first.asked
    assert plan(tau=0.5).asked == first.asked
    assert plan(tau=0.5).key != first.key
    assert Plan.model_validate(first.model_dump(mode="json")).key == first.key


@pytest.mark.parametrize("name", prompt_names())
def test_every_prompt_that_comes_along_can_be_asked(name: str) -> None:
    prompt = prompt_of(name)
    question = plan(prompt=name, text=prompt.text).question("A document with {{most}} braces.")
    assert "A document with {{most}} braces." in question
    assert "{{document}}" not in question


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("name", ["claims", "duplicates", "general", "multihop", "questions"])
def test_a_prompt_for_vocabulary_of_a_query_forbids_a_guess(name: str, api: PromptApi) -> None:
    assert re.search(r"\b(Do not|No) (guess|answer)\b", Prompts().named(name, api).text)


@pytest.mark.parametrize(
    ("text", "says"), [("no place", "lacks its placeholder"), ("{{document}} {{x}}", "unknown placeholder")]
)
def test_a_prompt_with_other_placeholders_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        _ = plan(text=text).template
