"""The channels that the programs from CoverageTriple on share, for any set of query vectors."""

from es_ttc.rescorers.programs.interface import PASSAGE, QUERY, TOPIC_LENGTH, Chunks, Context
from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
from es_ttc.rescorers.programs.primitives.matching import max_sim, top_mean_sim
from es_ttc.rescorers.programs.primitives.vectors import debias
from es_ttc.vectors.chunks import GRANULARITIES
from es_ttc.vectors.tokens import Float32

Channels = dict[str, Float32]  # by name, `(q, n)` scores


class Coverage:
    """The eight channels of CoverageTriple (B.4): the documents' side is prepared once, for all query vectors.

    Each channel's vectors lose their mean and are made unit again; queries are left as they are.
    """

    def __init__(self, documents: Float32, context: Context) -> None:
        topics = context.view(documents, PASSAGE, TOPIC_LENGTH)
        self._whole = {"document": debias(documents), "topic": debias(topics)}
        self._chunked = {name: _debiased(context.chunks(name)) for name in GRANULARITIES}

    def __call__(self, queries: Float32) -> Channels:
        """Return for every document two channels a granularity, one for the topic, one for the whole."""
        channels: Channels = {name: queries @ vectors.T for name, vectors in self._whole.items()}
        for name, chunks in self._chunked.items():
            similarities = queries @ chunks.vectors.T
            channels[f"{name}.max"] = max_sim(similarities, chunks.starts)
            channels[f"{name}.mean"] = top_mean_sim(similarities, chunks.starts)
        return channels


class Hybrid:
    """The channels of LexicalHybridRRF (B.5) and, with all four lexical ones, of CrossRoundRRF (B.6) and beyond.

    Coverage's eight; the cosine with the document read under the query adapter (B.1: the paper's cost of B.5 is B.4's
    plus this one pass over the documents); lexical channels, which stay the same for refined queries; with `cross` the
    queries read under the passage adapter (B.8).
    """

    def __init__(self, documents: Float32, context: Context, *, all_lexical: bool, cross: bool = False) -> None:
        self._coverage = Coverage(documents, context)
        self._reversed = context.view(documents, QUERY)
        self._fixed = lexical(context, all_of_them=all_lexical)
        if cross:
            as_passages = context.encode_fn(context.query_texts, adapter=PASSAGE)
            self._fixed["cross"] = as_passages @ documents.T

    def __call__(self, queries: Float32) -> Channels:
        """Return the channels for some query vectors, one a query of the batch."""
        return {**self._coverage(queries), "reversed": queries @ self._reversed.T, **self._fixed}

    def round(self, queries: Float32) -> Float32:
        """Return one round's ranking of the documents: all channels fused by reciprocal rank."""
        return reciprocal_rank_fusion(list(self(queries).values()))


def lexical(context: Context, *, all_of_them: bool) -> Channels:
    """Return the lexical channels: the engine's scores where the context has them, else the paper's two or four."""
    if context.lexical_scores is not None:
        return {"bm25": context.lexical_scores}
    index, texts = context.lexicon(), context.query_texts
    channels = {"words": index.overlap(texts), "bigrams": index.bigrams(texts)}
    if all_of_them:
        channels |= {"coverage": index.coverage(texts), "rare": index.rare(texts)}
    return channels


def recorded(channels: Channels, context: Context) -> Channels:
    """Show channels to whoever records them."""
    for name, channel in channels.items():
        context.note(name, channel)
    return channels


def _debiased(chunks: Chunks) -> Chunks:
    return Chunks(debias(chunks.vectors), chunks.starts, chunks.texts)
