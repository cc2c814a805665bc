"""Rerankers that read texts: how they are named, called, and how they fail; endpoints and cross-encoders for real."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from es_ttc.common.caches import LruCache
from es_ttc.common.processors import instructions
from es_ttc.errors import ConfigurationError, DeadlineExceeded, InvalidRequest
from es_ttc.reranking.rerankers import (
    Cost,
    ListwiseCalls,
    Passage,
    PointwiseCalls,
    PointwiseReranker,
    Rerankers,
    RerankerSettings,
    charged_to,
)
from es_ttc.reranking.rerankers.base import RerankerError
from es_ttc.reranking.rerankers.cross_encoder import built_in
from es_ttc.reranking.strategies import PartialScores
from tests.support.servers import server_of

PASSAGES = [Passage(f"h{number}", "x" * number) for number in range(1, 11)]


class Lengths:
    """Scores a text by its length; a double, for what a real reranker does not do at will."""

    def __init__(self, **settings: Any) -> None:
        self.identity = "lengths"
        self.settings = RerankerSettings(**settings)
        self.calls: list[list[int]] = []
        self.at_once = self.most_at_once = 0

    async def scores(self, query: str, passages: Sequence[Passage]) -> Sequence[float]:
        self.calls.append([len(passage.text) for passage in passages])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        return [float(len(passage.text)) for passage in passages]

    async def close(self) -> None:
        pass


def calls(reranker: PointwiseReranker) -> PointwiseCalls:
    return PointwiseCalls(reranker, "mine", LruCache(1000))


async def test_texts_go_out_in_batches_few_at_once_and_never_twice() -> None:
    reranker = Lengths(batch=3, at_once=2, max_characters=7)
    asked = calls(reranker)
    assert await asked.scores("q", PASSAGES) == [1, 2, 3, 4, 5, 6, 7, 7, 7, 7]
    assert sorted(map(len, reranker.calls)) == [1, 3, 3, 3]
    assert reranker.most_at_once == 2
    assert await asked.scores("q", [*PASSAGES[4:2:-1], PASSAGES[4]]) == [5, 4, 5]
    assert len(reranker.calls) == 4
    await asked.scores("another query", PASSAGES[:1])
    assert len(reranker.calls) == 5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([1.0], "1 scores for 2 documents"),
        ([1.0, 2.0, 3.0], "3 scores for 2 documents"),
        ([1.0, math.nan], "not a finite number"),
        ([1.0, "2"], "not a finite number"),
        (RuntimeError("no line"), "failed: RuntimeError: no line"),
    ],
)
async def test_an_invalid_answer_fails_its_batch_and_other_batches_count(answer: Any, why: str) -> None:
    class Broken(Lengths):
        async def scores(self, query: str, passages: Sequence[Passage]) -> Sequence[float]:
            if passages[0].hash == "h3":
                if isinstance(answer, Exception):
                    raise answer
                return list(answer)
            return await super().scores(query, passages)

    reranker = Broken(batch=2)
    with pytest.raises(PartialScores, match=why) as caught:
        await calls(reranker).scores("q", PASSAGES[:6])
    assert caught.value.scores == {0: 1, 1: 2, 4: 5, 5: 6}
    assert isinstance(caught.value.cause, RerankerError)


async def test_a_call_that_is_late_is_given_up() -> None:
    class Slow(Lengths):
        async def scores(self, query: str, passages: Sequence[Passage]) -> Sequence[float]:
            await asyncio.sleep(30)
            return []

    with pytest.raises(PartialScores, match="longer than 50 ms") as late:
        await calls(Slow(timeout_ms=50)).scores("q", PASSAGES)
    assert isinstance(late.value.cause, RerankerError)
    with pytest.raises(PartialScores, match="time was over") as over:
        await calls(Slow()).scores("q", PASSAGES, seconds=0.05)
    assert isinstance(over.value.cause, DeadlineExceeded)


async def test_an_order_is_mended_kept_and_asked_for_once() -> None:
    class Odd:
        identity = "odd"
        settings = RerankerSettings()
        asked = 0

        async def order(self, query: str, passages: Sequence[Passage]) -> Sequence[int]:
            self.asked += 1
            return [3, 1, 1, 99, -1]

        async def close(self) -> None:
            pass

    reranker = Odd()
    asked = ListwiseCalls(reranker, "odd", LruCache(100))
    assert await asked.order("q", PASSAGES[:4]) == [3, 1, 0, 2]
    assert await asked.order("q", PASSAGES[:4]) == [3, 1, 0, 2]
    assert reranker.asked == 1


@dataclass
class Endpoint:
    """A small server of Cohere's shape that scores a text by its length, after some faults.

    Attributes:
        url: Its address.
        faults: Statuses, or whole answers, that the first requests get.
        requests: Bodies and headers that came in.
    """

    url: str = ""
    faults: list[Any] = field(default_factory=list)
    requests: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)


@asynccontextmanager
async def endpoint(*faults: Any) -> AsyncIterator[Endpoint]:
    state = Endpoint(faults=list(faults))

    async def rerank(request: web.Request) -> web.Response:
        body = await request.json()
        state.requests.append((body, {name.lower(): value for name, value in request.headers.items()}))
        fault = state.faults.pop(0) if state.faults else None
        if isinstance(fault, int):
            return web.json_response({"message": "not now"}, status=fault)
        if fault is not None:
            return web.json_response(fault)
        lengths = sorted(enumerate(map(len, body["documents"])), key=lambda pair: -pair[1])
        return web.json_response({"results": [{"index": at, "relevance_score": length} for at, length in lengths]})

    async with server_of(rerank) as url:
        state.url = f"{url}/v2/rerank"
        yield state


async def test_an_endpoint_is_asked_with_model_and_key_and_busy_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-1")
    async with endpoint(429, 503) as served:
        told = {"kind": "http", "url": served.url, "model": "rerank-3", "api_key_env": "MY_KEY", "batch": 4}
        rerankers = Rerankers({"cohere": told})
        found = rerankers.named("cohere")
        assert isinstance(found, PointwiseCalls)
        assert await found.scores("q", PASSAGES[:3]) == [1, 2, 3]
        assert len(served.requests) == 3
        body, headers = served.requests[-1]
        assert body == {"query": "q", "documents": ["x", "xx", "xxx"], "model": "rerank-3"}
        assert headers["authorization"] == "Bearer secret-1"
        assert rerankers.named("cohere") is found
        await rerankers.close()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (401, "answered with 401: not now"),
        ({"results": [{"index": 0, "relevance_score": 1}]}, "1 results for 2 documents"),
        ({"results": [{"index": 0, "relevance_score": 1}] * 2}, "or some twice"),
        ({"results": [{"index": 0, "relevance_score": "a"}, {"index": 1, "relevance_score": 1}]}, "not a finite"),
        ({"data": []}, r"no \[results\]"),
    ],
)
async def test_an_endpoint_that_refuses_or_answers_nonsense_fails(fault: Any, why: str) -> None:
    async with endpoint(fault) as served:
        rerankers = Rerankers({"mine": {"kind": "http", "url": served.url, "api_key": "secret-2"}})
        found = rerankers.named("mine")
        assert isinstance(found, PointwiseCalls)
        with pytest.raises(PartialScores, match=why) as caught:
            await found.scores("q", PASSAGES[:2])
        assert "secret-2" not in str(caught.value)
        await rerankers.close()


@pytest.mark.parametrize(
    ("says", "cost"),
    [
        ({"meta": {"billed_units": {"search_units": 1}}}, {"search_units": 1}),
        ({"meta": {"tokens": {"input_tokens": 7, "output_tokens": 2}}}, {"prompt_tokens": 7, "completion_tokens": 2}),
        ({"usage": {"total_tokens": 9, "prompt_tokens": 9}}, {"prompt_tokens": 9}),
        ({"usage": {"total_tokens": 9}}, {"prompt_tokens": 9}),
        ({"usage": {"total_tokens": -1, "prompt_tokens": "9"}, "meta": [1]}, {}),
    ],
)
async def test_the_cost_that_an_endpoint_reports_is_charged(says: dict[str, Any], cost: dict[str, int]) -> None:
    async with endpoint({"results": [{"index": 0, "relevance_score": 1}], **says}) as served:
        rerankers = Rerankers({"mine": {"kind": "http", "url": served.url}})
        found = rerankers.named("mine")
        assert isinstance(found, PointwiseCalls)
        with charged_to(Cost()) as account:
            await found.scores("q", PASSAGES[:1])
        assert account.as_dict() == {"calls": 1, **cost}
        await rerankers.close()


async def test_an_endpoint_that_is_not_there_fails_soon() -> None:
    rerankers = Rerankers({"mine": {"kind": "http", "url": "http://127.0.0.1:9/rerank"}})
    found = rerankers.named("mine")
    assert isinstance(found, PointwiseCalls)
    with pytest.raises(PartialScores, match="cannot be reached"):
        await found.scores("q", PASSAGES[:2])
    await rerankers.close()


def test_a_wrong_key_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Rerankers({"mine": {"kind": "http", "url": "http://x/", "api_key": ["secret-3"]}})
    assert "api_key" in str(caught.value)
    assert "secret-3" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="not both"):
        Rerankers({"a": {"kind": "http", "url": "http://x/", "api_key": "k", "api_key_env": "K"}}).named("a")
    with pytest.raises(ConfigurationError, match=r"\[NO_SUCH_KEY\]"):
        Rerankers({"a": {"kind": "http", "url": "http://x/", "api_key_env": "NO_SUCH_KEY"}}).named("a")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match=r"\[coher\].*\[cohere\]"):
        Rerankers({"cohere": {"kind": "http", "url": "http://x/"}}).named("coher")


@pytest.fixture(scope="session")
def tiny_cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of two small layers with weights made here."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("cross-encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "home"]]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made: Any = PreTrainedTokenizerFast
    made(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    configured: Any = BertConfig
    config = configured(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
async def test_a_cross_encoder_scores_pairs_and_is_loaded_when_it_is_asked(tiny_cross_encoder: Path) -> None:
    from sentence_transformers import CrossEncoder

    told = {"kind": "cross_encoder", "model": str(tiny_cross_encoder), "device": "cpu", "batch": 2}
    rerankers = Rerankers({"tiny": told, "absent": {**told, "model": "/no/such/folder"}})
    found, absent = rerankers.named("tiny"), rerankers.named("absent")
    assert isinstance(found, PointwiseCalls)
    assert isinstance(absent, PointwiseCalls)
    texts = ["the cat sat on a mat", "a dog ran", "home"]
    scores = await found.scores("the cat", [Passage(text, text) for text in texts])
    alone = CrossEncoder(str(tiny_cross_encoder), device="cpu").predict([("the cat", text) for text in texts])
    assert scores == pytest.approx(alone.tolist(), abs=1e-5)
    assert len(set(scores)) == 3
    with pytest.raises(PartialScores, match="cannot be loaded"):
        await absent.scores("q", PASSAGES[:1])
    await rerankers.close()


async def test_the_cross_encoder_of_a_package_needs_no_settings() -> None:
    """Scores seen with the model's own code at full precision; those of a pair do not depend on others of a call."""
    rerankers = Rerankers({}, built_in())
    calls = rerankers.named("msmarco-minilm")
    assert isinstance(calls, PointwiseCalls)
    query = "how many people live in berlin"
    texts = ["Berlin has 3.7 million inhabitants.", "New York is big", "Berlin " * 2000, ""]
    passages = [Passage(text[:9], text) for text in texts]
    scores = await calls.scores(query, passages)
    rounding = 0.1 if "avx512_vnni" in instructions() else 0.3  # of products of 8-bit integers
    assert scores[0] == pytest.approx(9.3, abs=rounding)
    assert scores[1] == pytest.approx(-11.3, abs=rounding)
    again = Rerankers({}, built_in()).named("msmarco-minilm")
    assert isinstance(again, PointwiseCalls)
    assert [(await again.scores(query, [passage]))[0] for passage in passages] == scores
    assert rerankers.default == "msmarco-minilm"
    assert Rerankers({"mine": {"kind": "http", "url": "http://x/"}}, built_in()).default == "mine"
    with pytest.raises(ConfigurationError, match=r"es-ttc\[cross-encoder\]"):
        Rerankers({}).named("msmarco-minilm")
    await rerankers.close()
    await again.close()
