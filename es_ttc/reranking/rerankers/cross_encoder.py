"""A cross-encoder of sentence-transformers: it reads query and text together and returns one score."""

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
    revision: str | None = Field(None, description="Revision of a model from a hub.")
    device: str | None = Field(None, description="Device: cpu, cuda, mps... Default: the best one available.")
    max_length: int | None = Field(
        None, ge=8, description="Maximum number of tokens of query and text together. Default: the model's own."
    )
    at_once: int = Field(1, ge=1, le=16, description="Maximum number of concurrent calls, of all searches together.")


class CrossEncoderKind:
    """A cross-encoder that runs in this process."""

    name: ClassVar[str] = "cross_encoder"
    Settings: ClassVar[type[RerankerSettings]] = CrossEncoderSettings

    def make(self, settings: CrossEncoderSettings) -> "CrossEncoderReranker":
        """Return a reranker that loads its model at the first call."""
        return CrossEncoderReranker(settings)


class CrossEncoderReranker:
    """Scores texts by a cross-encoder, in a thread of its own.

    A cancelled call runs to its end, because a thread cannot be stopped; the next call waits for it.
    """

    def __init__(self, settings: CrossEncoderSettings) -> None:
        self.settings: RerankerSettings = settings
        self.identity = (
            f"cross_encoder:{settings.model}:{settings.revision or ''}:{settings.max_length or ''}:"
            f"{settings.max_characters}"
        )
        self._settings = settings
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="es-ttc-cross-encoder")

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return the model's scores.

        Raises:
            ConfigurationError: The model cannot be loaded.
        """
        return await asyncio.wrap_future(self._thread.submit(self._scores, query, [one.text for one in passages]))

    async def close(self) -> None:
        """Release the model without waiting for a running call."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        if self._model is None:
            self._model = _loaded(self._settings)
        found = self._model.predict(
            [(query, text) for text in texts], batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
        )
        if found.ndim != 1:
            raise ConfigurationError(
                f"cross-encoder [{self._settings.model}] gives {found.shape[-1]} values a text: take one that gives one"
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
    except Exception as error:  # transformers may raise any exception
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"cross-encoder [{settings.model}] cannot be loaded: {reason}") from error
