"""The corpus of the gateway's tests, searches of it, and its scores computed in memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from es_ttc.encoders.base import Encoder
from es_ttc.encoders.queries import word_means
from es_ttc.index.ingest import encode_documents
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.similarity import shown_similarity

ANIMALS = ("cat", "dog", "horse", "owl", "trout", "bee")
DEEDS = ("sleeps on the sofa", "hunts at night", "drinks milk", "runs in the snow", "sings before rain")


def corpus() -> list[dict[str, Any]]:
    """Sixty short texts in two fields, a group each for collapse and aggregations; two have no text."""
    texts = [
        {"title": f"The {animal}", "text": f"Our {animal} {deed}, and the {other} watches it for {number} hours."}
        for number, (animal, deed, other) in enumerate(
            ((animal, deed, other) for animal in ANIMALS for deed in DEEDS for other in ("farmer", "child")), 1
        )
    ]
    texts[7] = {"title": "", "text": ""}
    texts[21] = {"title": "แมวกินนม 🐈", "text": "القطة تشرب الحليب \x07 and the cat drinks milk."}
    return [
        {"_id": f"d{number}", "number": number, "group": f"g{number % 7}", "kind": "animal", **text}
        for number, text in enumerate(texts)
    ]


EVERYTHING = {"match": {"kind": "animal"}}
CATS = "which cat drinks milk?"
WITHOUT_TEXT = "d7"


def ttc_rescore(method: str = "spectral", **section: Any) -> dict[str, Any]:
    return {"window_size": 100, "ttc": {"method": method, "query_text": CATS, **section}}


def by_id(name: str) -> dict[str, Any]:
    return next(document for document in corpus() if document["_id"] == name)


def in_memory(encoder: Encoder, spec: IndexSpec, method: str, texts: Sequence[str], **params: Any) -> dict[str, float]:
    """Every document's score from the rescorer called directly."""
    documents = [document for document in corpus() if document["_id"] != WITHOUT_TEXT]
    features = encode_documents(documents, spec, encoder)
    tokens = [feature.tokens for feature in features]
    window = Window(
        ids=[document["_id"] for document in documents],
        first_pass=np.ones(len(documents), dtype=np.float32),
        pooled=np.stack([feature.pooled for feature in features if feature.pooled is not None]),
        tokens=[token.vectors for token in tokens if token is not None],
        norms=[token.norms for token in tokens if token is not None],
    )
    encoded = encoder.encode(texts, role="query")
    rescorer = registry.load(method)
    means = None if encoder.identity.averages else word_means(encoded)
    query = Query(texts[0], encoded.pooled, encoded.tokens[0], word_means=means)
    scores = rescorer.score(query, window, registry.parse_params(rescorer, params))
    return dict(zip(window.ids, shown_similarity(scores).tolist(), strict=True))
