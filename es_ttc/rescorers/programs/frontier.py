"""The twelve programs of the paper's frontier (appendix B), each built on the ones before it."""

import numpy as np

from es_ttc.rescorers.programs.channels import Coverage, Hybrid, recorded
from es_ttc.rescorers.programs.interface import CLASSIFICATION, MATCHING, PASSAGE, QUERY, Context
from es_ttc.rescorers.programs.primitives.anchors import central, diverse, hardest_negative, momentum
from es_ttc.rescorers.programs.primitives.discriminant import fisher, rank_stability
from es_ttc.rescorers.programs.primitives.feedback import contrast
from es_ttc.rescorers.programs.primitives.fusion import ranks, reciprocal_rank_fusion
from es_ttc.rescorers.programs.primitives.matching import max_sim
from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.rescorers.programs.primitives.standardise import along_documents, along_queries
from es_ttc.rescorers.programs.rounds import RoundSearch, each
from es_ttc.vectors.chunks import Granularity
from es_ttc.vectors.tokens import Float32

BOTH: tuple[Granularity, ...] = ("paragraphs", "sentences")
VIEWS = (QUERY, MATCHING, CLASSIFICATION, PASSAGE)
FEEDBACK = ("rocchio", "residual", "consensus", "contrast", "graph contrast")


def bidirzscore(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return the sum of the column z-scores of S and of S', the cosines with documents encoded as queries.

    Mean and deviation of the z-scores are computed over queries. For a single query, ``ctx.calibration`` (a stored
    sample of queries) replaces the batch. Without a sample, a single query gets the sum of both cosines, because
    z-scores of one value are meaningless. With an encoder that does not distinguish roles S' equals S, and the program
    is the z-score.
    """
    reversed_documents = ctx.view(D, QUERY)
    sample = ctx.calibration or (Moments.of(Q) if len(Q) > 1 else None)
    total = np.zeros(S.shape, np.float32)
    for name, documents in (("cosine", D), ("reversed", reversed_documents)):
        scores = ctx.note(name, Q @ documents.T)
        total += scores if sample is None else along_queries(scores, documents, sample)
    return total


def sentmaxsim(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the greatest cosine of the query with any sentence of the document."""
    sentences = ctx.chunks("sentences")
    return ctx.note("sentences", max_sim(Q @ sentences.vectors.T, sentences.starts))


def adaptgran(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the element-wise maximum of both MaxSim channels, each z-scored along the documents of a query.

    The paper does not state the axis. Along documents, both channels get the same scale for a query, as a maximum
    requires, and the result does not depend on other queries.
    """
    channels = []
    for granularity in BOTH:
        chunks = ctx.chunks(granularity)
        channels.append(along_documents(ctx.note(granularity, max_sim(Q @ chunks.vectors.T, chunks.starts))))
    return np.maximum(*channels)


def covtriple(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the sum of the eight channels, each z-scored along the documents of a query.

    The paper does not say how B.4 combines its channels. Sums of z-scores are the method of B.1; reciprocal ranks begin
    with B.5. On SciFact's train queries the sum of z-scores (nDCG@10 .860) and of plain cosines (.861) are on a par,
    reciprocal ranks and the maximum z-score are a point lower (`benchmarks.programs_constants` at commit cf4207f0).
    """
    channels = recorded(Coverage(D, ctx)(Q), ctx)
    total: Float32 = np.sum([along_documents(channel) for channel in channels.values()], axis=0, dtype=np.float32)
    return total


def lexhybridrrf(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the reciprocal rank fusion of nine embedding channels and two lexical ones: words and word bigrams."""
    return reciprocal_rank_fusion(list(recorded(Hybrid(D, ctx, all_lexical=False)(Q), ctx).values()))


def crossroundrrf(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return ``RRF(rank_R1, rank_R2, rank_R3)``: the plain query, its Rocchio update, its residual."""
    return RoundSearch.begin(Q, D, ctx).fused()


def diversedualctx(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return CrossRoundRRF's rounds fused with two expansions: by the best and the least similar top document."""
    search = RoundSearch.begin(Q, D, ctx)
    dual_context(search)
    return search.fused()


def dual_context(search: RoundSearch) -> Float32:
    """Add both expansions' rounds and return the queries expanded by the dominant anchor, ``(q, d)``."""
    orders = search.orders()
    dominant = search.expanded(orders[:, 0], QUERY)
    unlike = search.expanded(each(lambda order: diverse(order, search.documents), orders), QUERY)
    search.add_expansion("dominant", dominant)
    search.add_expansion("diverse", unlike)
    return dominant


def consensusrocchio(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return DiverseDualCtx with queries also encoded as passages, and a round of consensus feedback."""
    search, _ = consensus_search(Q, D, ctx)
    return search.fused()


def consensus_search(Q: Float32, D: Float32, ctx: Context) -> tuple[RoundSearch, Float32]:
    """Return the program's rounds, and the queries expanded by their dominant anchors."""
    search = RoundSearch.begin(Q, D, ctx, cross=True)
    dominant = dual_context(search)
    search.add_consensus(search.orders())
    return search, dominant


def negcontrastive(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return ConsensusRocchio with one more round: ``normalise(q_pos - q_neg)`` of two expansions."""
    search, dominant = consensus_search(Q, D, ctx)
    negative = search.expanded(search.orders()[:, -1], QUERY)
    search.add("contrast", search.hybrid.round(contrast(dominant, negative)))
    return search.fused()


def momentumprog(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return NegContrastive with anchors by momentum, and expansions under four adapters.

    Momentum is the change of rank from the plain cosine to the first refinement (Rocchio). The document that rose most
    replaces the dominant anchor, the one that fell most the bottom-ranked one. Encoder passes over the queries: four
    positive expansions, the diverse one, the negative one, and queries as passages: 7, as in the paper's costs.
    """
    return momentum_search(Q, D, S, ctx).fused()


def momentum_search(Q: Float32, D: Float32, S: Float32, ctx: Context) -> RoundSearch:
    """Return the program's rounds."""
    search = RoundSearch.begin(Q, D, ctx, cross=True)
    orders = search.orders()
    before, after = ranks(S), ranks(search.rounds["rocchio"])
    pairs = [momentum(*row) for row in zip(orders, before, after, strict=True)]
    risen, fallen = np.array(pairs, np.intp).T
    expansions = {adapter: search.expanded(risen, adapter) for adapter in VIEWS}
    unlike = search.expanded(each(lambda order: diverse(order, D), orders), QUERY)
    for adapter, expanded in expansions.items():
        search.add_expansion(f"momentum.{adapter}", expanded)
    search.add_expansion("diverse", unlike)
    search.add_consensus(search.orders())
    opposed = contrast(expansions[QUERY], search.expanded(fallen, QUERY))
    search.add("contrast", search.hybrid.round(opposed))
    return search


def graphcentrality(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return MomentumProg with rounds from the most central top document and the hardest negative.

    The paper's costs allow three passes over the queries for the additions: the central anchor, the hardest negative
    (contrasted with it), and a third one that the text does not name; here, the best document of the ranking so far.
    """
    return graph_search(Q, D, S, ctx).fused()


def graph_search(Q: Float32, D: Float32, S: Float32, ctx: Context) -> RoundSearch:
    """Return the program's rounds."""
    search = momentum_search(Q, D, S, ctx)
    orders = search.orders()
    positive = search.expanded(each(lambda order: central(order, D), orders), QUERY)
    negative = search.expanded(each(lambda order: hardest_negative(order, D), orders), QUERY)
    leading = search.expanded(orders[:, 0], QUERY)
    search.add_expansion("central", positive)
    search.add_expansion("leading", leading)
    search.add("graph contrast", search.hybrid.round(contrast(positive, negative)))
    return search


def fisherstability(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return the reciprocal rank fusion of 22 channels; 19 with `lexical: engine`, for one lexical channel of four.

    The paper states the number 22 but not the list. Here the channels are: the 14 of the plain query (eight of B.4,
    documents encoded as queries, queries encoded as passages, four lexical), five feedback rounds (Rocchio, residual,
    consensus, both contrasts), a last contrast, Fisher's direction and rank stability. The last contrast uses the three
    passes that remain of the paper's costs: the best, the least similar and the worst document of GraphCentrality's
    ranking; its positive side is the mean of the first two.
    """
    search = graph_search(Q, D, S, ctx)
    orders = search.orders()
    leading = search.expanded(orders[:, 0], QUERY)
    unlike = search.expanded(each(lambda order: diverse(order, D), orders), QUERY)
    worst = search.expanded(orders[:, -1], QUERY)
    search.add("last contrast", search.hybrid.round(contrast(np.float32(0.5) * (leading + unlike), worst)))
    channels = {**search.hybrid(Q), **{name: search.rounds[name] for name in (*FEEDBACK, "last contrast")}}
    channels["fisher"] = ctx.note("fisher", fisher(D, *search.extremes(orders, 1 / 4)))
    channels["stability"] = ctx.note("stability", rank_stability(list(channels.values())))
    return reciprocal_rank_fusion(list(channels.values()))
