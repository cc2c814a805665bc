"""Encoders behind a vLLM server: only the tokenizer runs in this process, so neither torch nor a GPU is needed.

Texts are cut into windows here, as for every backend, and sent as token ids: pooled vectors come from
``/v1/embeddings``, token vectors from vLLM's ``/pooling``. The model's folder is needed here too: for its tokenizer,
and for the identity of its files, so an index written with any backend can be queried through this one.
"""

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from es_ttc.encoders.base import Role
from es_ttc.encoders.kind import max_length_of, read_model_file
from es_ttc.encoders.options import LoadOptions, identity_of
from es_ttc.encoders.packages import ModelFiles
from es_ttc.encoders.text_encoder import TextEncoder, WindowVectors
from es_ttc.encoders.windows import InputWindow, Reader, prompts_differ, role_prompts
from es_ttc.errors import ConfigurationError, EncoderError, LlmError
from es_ttc.llm.endpoint import Endpoint, EndpointSettings, api_base
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

T = TypeVar("T")

_BATCH = 32  # windows of one request
_PROBE_SECONDS = 30.0
_STUCK_SECONDS = 3600.0


def load_served(files: ModelFiles, settings: Settings, options: LoadOptions) -> TextEncoder:
    """Return an encoder whose model runs behind ``encoder_url``; see :func:`es_ttc.encoders.load_encoder`."""
    if settings.encoder_url is None:
        raise ConfigurationError(
            f"encoder [{files.model}@vllm] runs behind a server: set ES_TTC_ENCODER_URL (encoder_url) to its address, "
            "such as http://127.0.0.1:8000/v1"
        )
    config = read_model_file(files.folder / "config_sentence_transformers.json")
    prompts = role_prompts(config.get("prompts") or {}, config.get("default_prompt_name"))
    url = api_base(settings.encoder_url, "encoder_url")
    model = VllmModel(EndpointSettings(url=url, api_key=settings.encoder_api_key), files.model)
    own = files.dims or int(read_model_file(files.folder / "config.json").get("hidden_size", 0))
    served = model.dims()
    if own and own != served:
        raise ConfigurationError(
            f"the server at [{settings.encoder_url}] gives vectors of {served} dimensions, and encoder [{files.model}] "
            f"has {own}: it serves another model"
        )
    identity = identity_of(
        files,
        options,
        own_dims=served,
        own_max_length=files.max_length or max_length_of(files.folder),
        prompts=prompts,
        usual_dims=config.get("truncate_dim"),
    )
    tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    reader = Reader(tokenizer, max_length=identity.max_length, prompts=prompts)
    return TextEncoder(identity, "vllm, over http", reader, model, distinguishes_roles=prompts_differ(prompts))


class VllmModel:
    """A model behind a server; see :class:`es_ttc.encoders.text_encoder.WindowModel`.

    Requests run in an event loop of the model's own, whatever the calling thread.
    """

    def __init__(self, settings: EndpointSettings, name: str) -> None:
        self._name = name
        self._endpoint = Endpoint(settings)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name="es-ttc-vllm", daemon=True).start()
        weakref.finalize(self, _end, self._endpoint, self._loop)

    def dims(self) -> int:
        """Return the number of components of its vectors, by requesting one."""
        try:
            return len(self._await(self._pooled([[0]], _PROBE_SECONDS))[0])
        except (LlmError, EncoderError) as error:
            raise ConfigurationError(f"no encoder answers behind [encoder_url]: {error}") from error

    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:  # noqa: ARG002
        """Return the vectors of every window."""
        try:
            return self._await(self._run([list(window.ids) for window in windows], tokens=tokens))
        except LlmError as error:
            raise EncoderError(f"texts could not be encoded: {error}") from error

    async def _run(self, ids: Sequence[list[int]], *, tokens: bool) -> list[WindowVectors]:
        batches = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
        pooled = await asyncio.gather(*(self._pooled(batch) for batch in batches))
        rows: list[Float32 | None] = [None] * len(ids)
        if tokens:
            found = await asyncio.gather(*(self._rows(batch) for batch in batches))
            rows = [one for batch in found for one in batch]
            for window, matrix in zip(ids, rows, strict=True):
                if matrix is None or len(matrix) != len(window):
                    raise EncoderError(
                        f"the server at [{self._endpoint.url}] gave another number of token vectors than tokens: serve "
                        "the model with a pooler of all tokens (--pooler-config.task token_embed)"
                    )
        vectors = [one for batch in pooled for one in batch]
        return [WindowVectors(vector, matrix) for vector, matrix in zip(vectors, rows, strict=True)]

    async def _pooled(self, ids: Sequence[list[int]], seconds: float | None = None) -> list[Float32]:
        body = {"model": self._name, "input": [*ids], "encoding_format": "float"}
        answer = await self._endpoint.post("embeddings", body, seconds=seconds)
        return self._arrays(answer, "embedding", len(ids), 1)

    async def _rows(self, ids: Sequence[list[int]]) -> list[Float32]:
        body = {"model": self._name, "input": [*ids], "task": "token_embed", "encoding_format": "float"}
        return self._arrays(await self._endpoint.post("../pooling", body), "data", len(ids), 2)

    def _arrays(self, answer: Any, key: str, expected: int, axes: int) -> list[Float32]:
        try:
            listed = sorted(answer["data"], key=lambda one: one["index"])
            arrays = [np.asarray(one[key], np.float32) for one in listed]
        except (KeyError, TypeError, ValueError):
            arrays = []
        if len(arrays) != expected or any(array.ndim != axes for array in arrays):
            raise EncoderError(f"the server at [{self._endpoint.url}] gave no vectors in the form of vLLM's answers")
        return arrays

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_STUCK_SECONDS)
        except FutureTimeout as error:
            raise EncoderError("the encoder's server has not answered for an hour") from error


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
    """Close the connections of a model that is not referenced any more, and end its thread."""

    async def close() -> None:
        await endpoint.close()
        loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
