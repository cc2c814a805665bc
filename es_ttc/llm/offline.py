"""A language model inside this process, by vLLM's offline batches: for large corpora, without a server.

:class:`OfflineLlm` has the same methods as :class:`~es_ttc.llm.client.LlmClient`, one request per call. Requests that
wait at the same time go to vLLM as one batch, and those that arrive meanwhile form the next one. The model is loaded
once per process, at its first call, and stays loaded.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import orjson

from es_ttc.errors import ConfigurationError, LlmError, LlmFailure
from es_ttc.llm.base import JsonSchema, Message, Reply, Usage
from es_ttc.settings import LlmSettings

logger = logging.getLogger(__name__)

_GATHER_SECONDS = 0.05  # time after the first request of a batch in which further ones join it
_IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"


class Generator(Protocol):
    """The used part of ``vllm.LLM``."""

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool) -> list[Any]:
        """Continue texts."""

    def chat(self, messages: Any, sampling_params: Any, *, use_tqdm: bool, chat_template_kwargs: Any) -> list[Any]:
        """Answer conversations."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model; exceptions other than `refusals` mean that it is broken."""

    generator: Generator
    sampling: Callable[[Mapping[str, Any], JsonSchema | None], Any]
    refusals: tuple[type[Exception], ...] = (ValueError,)


@dataclass(slots=True)
class _Question:
    """One request that waits for its batch."""

    asked: str | list[dict[str, str]]
    params: Any
    held: bool
    begun: float
    answer: "asyncio.Future[Reply]"

    @property
    def kind(self) -> Literal["generate", "chat"]:
        """The method of vLLM for it."""
        return "generate" if isinstance(self.asked, str) else "chat"


class OfflineLlm:
    """One model in this process. Use as an async context manager, in one event loop."""

    def __init__(self, settings: LlmSettings, load: Callable[[str, bytes], Loaded] | None = None) -> None:
        if settings.llm_offline is None:
            raise ConfigurationError("no model to load is set: set ES_TTC_LLM_OFFLINE (llm_offline) to one")
        self.api: Literal["chat", "completions"] = settings.llm_api
        self._path = settings.llm_offline
        self._name = settings.llm_model or settings.llm_offline
        self._options = orjson.dumps(settings.llm_offline_options, option=orjson.OPT_SORT_KEYS)
        self._extra = dict(settings.llm_extra_body)
        self._template = self._extra.pop("chat_template_kwargs", None)
        self._load = load or load_vllm
        self._loading: asyncio.Task[Loaded] | None = None
        self._waiting: list[_Question] = []
        self._working: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The model's name in messages, in place of an endpoint's address."""
        return f"vllm:{self._name}"

    async def __aenter__(self) -> "OfflineLlm":
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._working is not None:  # a batch cannot be cancelled; its callers may have ended
            await asyncio.gather(self._working, return_exceptions=True)

    async def models(self, *, seconds: float | None = None) -> list[str]:
        """Return the model's name."""
        return [await self.model(seconds=seconds)]

    async def model(self, *, seconds: float | None = None) -> str:
        """Return the model's name, without loading the model."""
        del seconds
        return self._name

    async def complete(
        self, prompt: str, *, schema: JsonSchema | None = None, seconds: float | None = None, **asked: Any
    ) -> Reply:
        """Return the model's continuation of a text; ``asked`` are vLLM's sampling parameters."""
        del seconds  # a batch has no timeout
        return await self._answer_to(prompt, schema, asked)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonSchema | None = None,
        seconds: float | None = None,
        **asked: Any,
    ) -> Reply:
        """Return the model's answer as an assistant; see :meth:`complete`."""
        del seconds
        return await self._answer_to(
            [{"role": message.role, "content": message.content} for message in messages], schema, asked
        )

    async def _answer_to(
        self, asked: str | list[dict[str, str]], schema: JsonSchema | None, params: Mapping[str, Any]
    ) -> Reply:
        begun = time.monotonic()
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load, self._path, self._options))
        loaded = await asyncio.shield(self._loading)  # for all callers, also if this one is cancelled
        try:
            sampling = loaded.sampling({**self._extra, **params}, schema)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"vLLM's sampling does not take [llm_extra_body] as it is: {error}") from error
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Question(asked, sampling, schema is not None, begun, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(loaded))
        return await answer

    async def _work(self, loaded: Loaded) -> None:
        """Answer waiting requests, batch after batch, until none is left."""
        while self._waiting:
            await asyncio.sleep(_GATHER_SECONDS)
            batch, self._waiting = self._waiting, []
            for kind in ("generate", "chat"):
                questions = [question for question in batch if question.kind == kind]
                if questions:
                    await self._answer(loaded, questions)

    async def _answer(self, loaded: Loaded, questions: Sequence[_Question]) -> None:
        try:
            outputs = await asyncio.to_thread(self._outputs, loaded.generator, questions)
        except loaded.refusals as error:
            # A rejected request (longer than the model's limit) ends the batch: each is sent alone.
            if len(questions) > 1:
                for question in questions:
                    await self._answer(loaded, [question])
            else:
                reason = f"the model [{self._name}] refuses a question: {type(error).__name__}"
                _fail(questions, LlmError(reason, LlmFailure.REFUSED))
        except Exception as error:  # noqa: BLE001 - after any exception of vLLM or a driver, the callers must get it
            logger.warning("a batch of %s questions failed: %s", len(questions), type(error).__name__)
            self._loading = None
            load_vllm.cache_clear()  # a failed model is not called again
            reason = f"the model [{self._name}] failed: {type(error).__name__}; its worker's log may say more"
            _fail(questions, LlmError(reason, LlmFailure.SERVER))
        else:
            for question, output in zip(questions, outputs, strict=True):
                if not question.answer.done():
                    question.answer.set_result(self._reply(question, output))

    def _outputs(self, generator: Generator, questions: Sequence[_Question]) -> list[Any]:
        asked, params = [question.asked for question in questions], [question.params for question in questions]
        if questions[0].kind == "generate":
            outputs = generator.generate(asked, params, use_tqdm=False)
        else:
            outputs = generator.chat(asked, params, use_tqdm=False, chat_template_kwargs=self._template)
        if len(outputs) != len(questions):  # the answers cannot be assigned
            raise RuntimeError(f"{len(outputs)} answers to {len(questions)} questions")
        return outputs

    def _reply(self, question: _Question, output: Any) -> Reply:
        answer = output.outputs[0]
        return Reply(
            text=answer.text,
            finish=str(answer.finish_reason or "stop"),
            usage=Usage(len(output.prompt_token_ids or ()), len(answer.token_ids)),
            model=self._name,
            held=question.held,
            seconds=time.monotonic() - question.begun,
        )


def _fail(questions: Sequence[_Question], error: LlmError) -> None:
    for question in questions:
        if not question.answer.done():
            question.answer.set_exception(error)


@lru_cache(maxsize=1)
def load_vllm(path: str, options: bytes) -> Loaded:
    """Load a model by vLLM; the same object for the same arguments."""
    # The model runs in this process: if the worker is killed, no other process keeps the GPU.
    os.environ.setdefault(_IN_PROCESS, "0")
    try:
        from vllm import LLM, SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import StructuredOutputsParams
    except ImportError as error:
        raise ConfigurationError(
            "a model in the worker's own process needs vLLM: pip install 'es-ttc[vllm,worker]' in an environment of "
            "its own, or ask an endpoint by ES_TTC_LLM_URL"
        ) from error

    def sampling(asked: Mapping[str, Any], schema: JsonSchema | None) -> Any:
        held = {} if schema is None else {"structured_outputs": StructuredOutputsParams(json=dict(schema.schema))}
        return SamplingParams(**asked, **held)

    begun = time.monotonic()
    try:
        generator = LLM(model=path, **orjson.loads(options))
    except Exception as error:  # vLLM, the hub's client or a driver may raise any exception
        raise ConfigurationError(
            f"vLLM cannot load the model [{path}], see [llm_offline] and [llm_offline_options]: "
            f"{type(error).__name__}: {error}"
        ) from error
    logger.info("vLLM has loaded the model in %.0f s", time.monotonic() - begun)
    return Loaded(generator, sampling, (ValueError, VLLMValidationError))
