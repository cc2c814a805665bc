"""A cross-encoder of sentence-transformers: query and text read together, one score each."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.errors import ConfigurationError
from es_ttc.reranking.rerankers.base import Passage, RerankerSettings


class CrossEncoderSettings(RerankerSettings):
    """Settings of a cross-encoder."""

    model: str = Field(description="Name or folder of a model that sentence-transformers' CrossEncoder loads.")
    revision: str | None = Field(None, description="Its revision, where it comes from a hub.")
    device: str | None = Field(None, description="cpu, cuda, mps...; what there is where left out.")
    max_length: int | None = Field(None, ge=8, description="Tokens of query and text together; the model's own.")
    at_once: int = Field(1, ge=1, le=16, description="Calls at the same time, of all searches together.")


class CrossEncoderKind:
    """A cross-encoder in this process."""

    name: ClassVar[str] = "cross_encoder"
    Settings: ClassVar[type[RerankerSettings]] = CrossEncoderSettings

    def make(self, settings: CrossEncoderSettings) -> "CrossEncoderReranker":
        """Return a reranker that loads its model when it is first asked."""
        return CrossEncoderReranker(settings)


class CrossEncoderReranker:
    """Scores texts by a cross-encoder, on a thread of its own.

    A call that is given up on runs to its end all the same, for no thread can be stopped; the next one waits for it.

    Args:
        settings: The model, and how it is called.
    """

    def __init__(self, settings: CrossEncoderSettings) -> None:
        self.settings: RerankerSettings = settings
        self.identity = (
            f"cross_encoder:{settings.model}:{settings.revision or ''}:{settings.max_length or ''}:"
            f"{settings.max_characters}"
        )
        self._wanted = settings
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="es-ttc-cross-encoder")

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return the model's scores.

        Raises:
            ConfigurationError: The model cannot be loaded.
        """
        return await asyncio.wrap_future(self._thread.submit(self._scores, query, [one.text for one in passages]))

    async def close(self) -> None:
        """Let go of the model; what runs is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        if self._model is None:
            self._model = _loaded(self._wanted)
        found = self._model.predict(
            [(query, text) for text in texts], batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
        )
        if found.ndim != 1:
            raise ConfigurationError(
                f"cross-encoder [{self._wanted.model}] gives {found.shape[-1]} values a text: take one that gives one"
            )
        return [float(score) for score in found]


def _loaded(settings: CrossEncoderSettings) -> Any:
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise ConfigurationError(
            "a cross-encoder needs the package sentence-transformers: pip install 'es-ttc[torch]'"
        ) from error
    try:
        return CrossEncoder(
            settings.model,
            revision=settings.revision,
            device=settings.device,
            max_length=settings.max_length,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},  # weights in pickles are code
        )
    except Exception as error:  # transformers raises whatever comes
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"cross-encoder [{settings.model}] cannot be loaded: {reason}") from error
