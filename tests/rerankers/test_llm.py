"""A language model as a reranker: a real one, and every way in which an answer can be wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from es_ttc.errors import ConfigurationError, LlmError
from es_ttc.reranking.rerankers import Cost, Passage, PointwiseReranker, Rerankers, charged_to
from es_ttc.reranking.rerankers.base import RerankerError
from es_ttc.reranking.rerankers.llm import (
    ListwiseLlm,
    Llm,
    LlmRerankerSettings,
    PointwiseLlm,
    ranked_positions,
    rating,
    reranker_of,
)
from es_ttc.settings import LlmSettings
from tests.support.llm import scripted_model, settings_for

PASSAGES = [Passage(str(number), f"passage number {number}") for number in range(1, 5)]


def score(value: float) -> float:
    return (value + 1) / 101


def made(url: str, form: str = "pointwise", *, api: str = "chat", **settings: Any) -> Any:
    model = settings_for(url, llm_api=api, llm_attempts=1)
    return reranker_of(LlmRerankerSettings.model_validate({"form": form, **settings}), model)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"score": 80}', 80), ("80", 80), ("Rating: 80/100.", 80), ("```json\n{\"score\": 7}\n```", 7), ("99.5", 99.5),
        ('{"score": "80"}', 80), ('{"score": true}', None), ("", None), ("very relevant", None), ("-5", None),
        ('{"score": 500}', None), ("NaN", None), ('{"score": null}', None), ("1" * 400, None), ('{"score": 10', 10),
    ],
)  # fmt: skip
def test_ratings_are_read_with_tolerance(text: str, value: float | None) -> None:
    assert rating(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"order": [2, 1, 3]}', [1, 0, 2]), ("[2] > [1] > [3]", [1, 0, 2]), ("[2, 1, 3]", [1, 0, 2]),
        ("2 2 2 2", [1]), ("[9] > [1]", [0]), ("0 > 1", [0]), ("none of them", []), ("", []),
        ('{"order": [2', [1]), ('{"order": ["3", 1, null, {}]}', [2, 0]), ("1" * 400, []),
    ],
)  # fmt: skip
def test_orders_are_read_with_tolerance(text: str, value: list[int]) -> None:
    assert ranked_positions(text, 3) == value


async def test_a_passage_without_a_rating_comes_after_those_that_have_one() -> None:
    def answer(body: Mapping[str, Any]) -> str:
        asked = str(body["messages"])
        return {"1": "no idea", "2": '{"score": 0}', "3": "90", "4": "200"}[asked.partition("passage number ")[2][0]]

    async with scripted_model(answer) as model:
        reranker = made(model.url)
        assert await reranker.scores("q", PASSAGES) == [0, score(0), score(90), 0]
        await reranker.close()
    assert all(body["response_format"]["json_schema"]["name"] == "rating" for body in model.asked)


async def test_an_order_may_be_short_and_is_asked_for_twice_at_most() -> None:
    async with scripted_model(["I cannot decide", "[3]"]) as model:
        reranker = made(model.url, "listwise")
        assert await reranker.order("q", PASSAGES) == [2]
        await reranker.close()
    assert [body["temperature"] for body in model.asked] == [0, 0.5]
    async with scripted_model(["I cannot decide"]) as model:
        reranker = made(model.url, "listwise")
        with pytest.raises(RerankerError, match="without an order"):
            await reranker.order("q", PASSAGES)
        await reranker.close()
    assert len(model.asked) == 2


async def test_long_passages_share_a_listwise_question() -> None:
    async with scripted_model(["[1]"]) as model:
        reranker = made(model.url, "listwise", prompt_characters=1000)
        await reranker.order("q", [Passage(str(number), "x" * 900) for number in range(10)])
        await reranker.close()
    assert str(model.asked[0]["messages"]).count("x") < 1050


async def test_a_placeholder_in_a_passage_is_not_filled() -> None:
    async with scripted_model(["50"]) as model:
        reranker = made(model.url)
        await reranker.scores("the query", [Passage("1", "{{query}} \n\n Search: another")])
        await reranker.close()
    assert "{{query}} Search: another" in model.asked[0]["messages"][0]["content"]


async def test_a_model_that_fails_is_an_error() -> None:
    async with scripted_model([500]) as model:
        reranker = made(model.url)
        with pytest.raises(LlmError, match="with 500"):
            await reranker.scores("q", PASSAGES[:1])
        await reranker.close()


def test_the_prompt_is_part_of_the_identity(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("{{query}} {{document}} 0-100?")
    built_in, own = made("http://127.0.0.1:9"), made("http://127.0.0.1:9", prompt=str(mine))
    assert isinstance(built_in, PointwiseLlm)
    assert built_in.identity != own.identity
    assert isinstance(made("http://127.0.0.1:9", "listwise"), ListwiseLlm)
    with pytest.raises(ConfigurationError, match=r"\{\{passages\}\}"):
        made("http://127.0.0.1:9", "listwise", prompt=str(mine))


def test_without_a_model_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ES_TTC_LLM_URL", raising=False)
    with pytest.raises(ConfigurationError, match="ES_TTC_LLM_URL"):
        Llm().make(LlmRerankerSettings())
    with pytest.raises(ConfigurationError, match="ES_TTC_LLM_URL"):
        reranker_of(LlmRerankerSettings(), LlmSettings(llm_url=None))


def test_llm_is_a_kind_of_reranker_by_name() -> None:
    rerankers = Rerankers({"mine": {"kind": "llm", "url": "http://127.0.0.1:9", "form": "pointwise", "model": "m"}})
    assert isinstance(rerankers.named("mine").reranker, PointwiseReranker)


@pytest.mark.llm
@pytest.mark.parametrize("form", ["pointwise", "listwise"])
async def test_a_real_model_judges(llm_url: str, form: str) -> None:
    reranker = made(llm_url, form, api="completions")
    passages = [Passage("1", "Bees keep warm in winter by moving their wings."), Passage("2", "Steel is an alloy.")]
    try:
        with charged_to(Cost()) as cost:
            if form == "pointwise":
                assert all(0 <= one <= 1 for one in await reranker.scores("how do bees survive winter", passages))
            else:
                assert set(await reranker.order("how do bees survive winter", passages)) <= {0, 1}
        assert cost.prompt_tokens > 50
        assert cost.completion_tokens > 0
    finally:
        await reranker.close()
