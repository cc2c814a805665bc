"""Batches of questions to a model in this process: which go together, and what a batch that fails leaves behind.

The model is a double that fails on demand; `make test-vllm` has the real one (`tests/llm/vllm`).
"""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from es_ttc.errors import ConfigurationError, LlmError, LlmFailure
from es_ttc.llm import JsonSchema, Message
from es_ttc.llm.offline import Loaded, OfflineLlm
from es_ttc.settings import LlmSettings

SCHEMA = JsonSchema("words", {"type": "object"})


@dataclass
class _Text:
    text: str
    finish_reason: str = "length"
    token_ids: tuple[int, ...] = (1, 2)


@dataclass
class _Output:
    outputs: list[_Text]
    prompt_token_ids: tuple[int, ...] = (1, 2, 3)


@dataclass
class Double:
    """Answers in capitals; a text with "long" is refused, one with "broken" ends the model."""

    batches: list[list[Any]] = field(default_factory=list)
    params: list[Any] = field(default_factory=list)
    loads: int = 0
    held_up: threading.Event = field(default_factory=threading.Event)

    def load(self, path: str, options: bytes) -> Loaded:
        assert (path, options) == ("folder/model", b'{"max_model_len":8}')
        self.loads += 1
        return Loaded(self, self.sampling)

    def sampling(self, asked: Mapping[str, Any], schema: JsonSchema | None) -> Any:
        if "wrong" in asked:
            raise TypeError("Unexpected keyword argument 'wrong'")
        return {**asked, "schema": schema}

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.batches.append(prompts)
        self.params += sampling_params
        self.held_up.wait(10)
        for word, error in (("long", ValueError("longer than the model reads")), ("broken", RuntimeError("no GPU"))):
            if any(word in prompt for prompt in prompts):
                raise error
        return [_Output([_Text(prompt.upper())]) for prompt in prompts]

    def chat(self, messages: Any, sampling_params: Any, *, use_tqdm: bool, chat_template_kwargs: Any) -> list[Any]:
        assert chat_template_kwargs == {"enable_thinking": False}
        return self.generate([turns[-1]["content"] for turns in messages], sampling_params, use_tqdm=use_tqdm)


@pytest.fixture
def double() -> Double:
    found = Double()
    found.held_up.set()
    return found


def offline(double: Double, **settings: Any) -> OfflineLlm:
    told = {
        "llm_offline": "folder/model",
        "llm_offline_options": {"max_model_len": 8},
        "llm_api": "completions",
        "llm_model": None,
        "llm_extra_body": {"chat_template_kwargs": {"enable_thinking": False}, "top_p": 0.9},
    }
    return OfflineLlm(LlmSettings(**(told | settings)), double.load)


async def test_questions_that_come_together_are_one_batch_and_later_ones_the_next(double: Double) -> None:
    double.held_up.clear()
    async with offline(double) as llm, asyncio.TaskGroup() as group:
        first = [group.create_task(llm.complete(f"a{number}", max_tokens=2)) for number in range(3)]
        while not double.batches:  # noqa: ASYNC110 - the double tells nobody
            await asyncio.sleep(0.01)
        later = [group.create_task(llm.complete(f"b{number}", max_tokens=2)) for number in range(2)]
        talk = group.create_task(llm.chat([Message("user", "c")], schema=SCHEMA, max_tokens=2))
        await asyncio.sleep(0.1)
        double.held_up.set()
    assert double.batches == [["a0", "a1", "a2"], ["b0", "b1"], ["c"]]
    assert [task.result().text for task in (*first, *later, talk)] == ["A0", "A1", "A2", "B0", "B1", "C"]
    assert double.loads == 1
    assert double.params[0] == {"top_p": 0.9, "max_tokens": 2, "schema": None}
    reply = talk.result()
    assert double.params[-1]["schema"] is SCHEMA
    assert (reply.held, reply.finish, reply.model) == (True, "length", "folder/model")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 2)


async def test_offline_refused_question_leaves_others_of_its_batch(double: Double) -> None:
    async with offline(double) as llm:
        asked = [llm.complete(text) for text in ("a", "a long secret", "b")]
        a, refused, b = await asyncio.gather(*asked, return_exceptions=True)
    assert not isinstance(a, BaseException)
    assert not isinstance(b, BaseException)
    assert (a.text, b.text) == ("A", "B")
    assert isinstance(refused, LlmError)
    assert refused.failure is LlmFailure.REFUSED
    assert "secret" not in str(refused)


async def test_a_model_that_breaks_is_told_and_loaded_again(double: Double) -> None:
    async with offline(double) as llm:
        with pytest.raises(LlmError, match="RuntimeError") as raised:
            await llm.complete("broken")
        assert raised.value.failure is LlmFailure.SERVER
        assert (await llm.complete("a")).text == "A"
    assert double.loads == 2


async def test_an_invalid_setting_is_named(double: Double) -> None:
    async with offline(double, llm_extra_body={"wrong": 1}) as llm:
        with pytest.raises(ConfigurationError, match=r"\[llm_extra_body\]"):
            await llm.complete("a")
    async with OfflineLlm(LlmSettings(llm_offline="nowhere")) as llm:
        with pytest.raises(ConfigurationError, match=r"pip install 'es-ttc\[vllm,worker\]'"):
            await llm.complete("a")
