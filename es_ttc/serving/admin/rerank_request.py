"""Rerank requests in the forms that clients send, and their responses: Cohere's and Jina's, and that of Hugging Face.

`documents` is the form of Cohere (v1 and v2) and of Jina, `texts` that of text-embeddings-inference (TEI). What these
clients send and the gateway has no use for is accepted; an unknown key is an error.
"""

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from es_ttc.common.validation import validated
from es_ttc.serving.admin.model_body import MAX_CHARACTERS
from es_ttc.serving.request.response import shortest
from es_ttc.vectors.tokens import Float32

KIND = "rerank"
_DEFAULT_MODEL = "spectral"
_UNUSED = frozenset(
    {
        "max_chunks_per_doc", "max_tokens_per_doc", "priority",  # Cohere's
        "return_embeddings", "truncation",  # Jina's
        "truncate", "truncation_direction",  # TEI's
        "user",
    }
)  # fmt: skip
"""Keys of the clients that change nothing here: texts are always cut at the encoder's length."""


def _with_unused(schema: dict[str, Any]) -> None:
    """Add the unused keys to the JSON Schema of a request."""
    schema["properties"] |= {key: {"description": "Accepted, not used."} for key in sorted(_UNUSED)}


class RerankDocument(BaseModel):
    """A text as an object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(max_length=MAX_CHARACTERS, description="The text.")


class RerankRequest(BaseModel):
    """A rerank request in Cohere's and Jina's form."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_with_unused)

    query: str = Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S", description="The query's text.")
    documents: tuple[str | RerankDocument, ...] = Field(
        min_length=1, description='The texts to be scored, each a string or {"text": ...}.'
    )
    top_n: int | None = Field(None, ge=1, description="Results that are returned, the best ones; all where left out.")
    return_documents: bool = Field(False, description="Whether a result holds its text again.")
    model: str = Field(_DEFAULT_MODEL, min_length=1, max_length=100, description="Name of the method.")

    @property
    def passages(self) -> list[str]:
        """The texts, in the order of the request."""
        return [one if isinstance(one, str) else one.text for one in self.documents]

    @property
    def field(self) -> str:
        """Name of the key that holds the texts."""
        return "documents"

    def answer(self, scores: Float32) -> dict[str, object]:
        """Return the best results, best first; equal ones in the order of the request."""
        found: list[dict[str, object]] = []
        texts = self.passages
        for place in best_first(scores)[: self.top_n]:
            result: dict[str, object] = {"index": place, "relevance_score": shortest(scores[place])}
            if self.return_documents:
                result["document"] = {"text": texts[place]}
            found.append(result)
        return {"id": str(uuid.uuid4()), "model": self.model, "results": found}


class TextsRequest(BaseModel):
    """A rerank request in the form of text-embeddings-inference."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_with_unused)

    query: str = Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S", description="The query's text.")
    texts: tuple[str, ...] = Field(min_length=1, description="The texts to be scored.")
    raw_scores: bool = Field(False, description="Accepted; scores are the method's own either way.")
    return_text: bool = Field(False, description="Whether a result holds its text again.")

    @property
    def passages(self) -> list[str]:
        """The texts, in the order of the request."""
        return list(self.texts)

    @property
    def field(self) -> str:
        """Name of the key that holds the texts."""
        return "texts"

    @property
    def model(self) -> str:
        """Name of the method: this form has none."""
        return _DEFAULT_MODEL

    def answer(self, scores: Float32) -> list[dict[str, object]]:
        """Return all results, best first; equal ones in the order of the request."""
        found: list[dict[str, object]] = []
        for place in best_first(scores):
            result: dict[str, object] = {"index": place, "score": shortest(scores[place])}
            found.append(result | {"text": self.texts[place]} if self.return_text else result)
        return found


def parsed(body: Mapping[str, Any]) -> RerankRequest | TextsRequest:
    """Return a request in the form that its keys show.

    Raises:
        InvalidRequest: A key is unknown, or a value is not valid.
    """
    used = {key: value for key, value in body.items() if key not in _UNUSED}
    if "texts" in used and "documents" not in used:
        return validated(TextsRequest, used, KIND)
    return validated(RerankRequest, used, KIND)


def best_first(scores: Float32) -> list[int]:
    """Return the places of scores from the greatest to the least; equal ones keep their order."""
    places: list[int] = np.argsort(-scores, kind="stable").tolist()
    return places
