"""The grammar: every operation with its type, the types of its parts, its constants, and its Python.

Types: ``scores (q, n)``, ``queries (q, d)``, ``documents (n, d)``, ``chunks``, ``order (q, n)`` positions, best first,
``anchors (q,)`` positions, ``channels`` a function from queries to one round's channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Type = Literal["scores", "queries", "documents", "chunks", "order", "anchors", "channels"]
Constant = float | int | str | bool | None

SHARES = (0.1, 0.25, 0.5)
MAX_PARTS = 14


@dataclass(frozen=True, slots=True)
class GrammarOperation:
    """One production."""

    gives: Type
    takes: tuple[Type, ...]
    code: str
    imports: tuple[str, ...] = ()
    constants: tuple[tuple[Constant, ...], ...] = ()
    more: bool = False
    weight: float = 1.0


_GRANULARITIES = ("sentences", "pairs", "paragraphs")

_OPERATIONS: dict[str, GrammarOperation] = {
    # inputs
    "S": GrammarOperation("scores", (), "S"),
    "Q": GrammarOperation("queries", (), "Q", weight=4),
    "D": GrammarOperation("documents", (), "D", weight=3),
    # other views of documents
    "topic": GrammarOperation("documents", (), "ctx.view(D, PASSAGE, TOPIC_LENGTH)", ("PASSAGE", "TOPIC_LENGTH")),
    "reversed": GrammarOperation("documents", (), "ctx.view(D, QUERY)", ("QUERY",)),
    "debias": GrammarOperation("documents", ("documents",), "debias({0})", ("debias",)),
    "chunks": GrammarOperation("chunks", (), 'ctx.chunks("{a}")', constants=(_GRANULARITIES,), weight=2),
    "debiased": GrammarOperation(
        "chunks", ("chunks",), "Chunks(debias({0}.vectors), {0}.starts, {0}.texts)", ("Chunks", "debias")
    ),
    # scores
    "cosine": GrammarOperation("scores", ("queries", "documents"), "{0} @ {1}.T", weight=2),
    "best": GrammarOperation(
        "scores", ("queries", "chunks"), "max_sim({0} @ {1}.vectors.T, {1}.starts)", ("max_sim",), weight=2
    ),
    "topmean": GrammarOperation(
        "scores", ("queries", "chunks"), "top_mean_sim({0} @ {1}.vectors.T, {1}.starts)", ("top_mean_sim",)
    ),
    "words": GrammarOperation("scores", (), "ctx.lexicon().overlap(ctx.query_texts)", weight=1.5),
    "bigrams": GrammarOperation("scores", (), "ctx.lexicon().bigrams(ctx.query_texts)"),
    "coverage": GrammarOperation("scores", (), "ctx.lexicon().coverage(ctx.query_texts)"),
    "rare": GrammarOperation("scores", (), "ctx.lexicon().rare(ctx.query_texts)"),
    "fisher": GrammarOperation(
        "scores",
        ("order",),
        "best_{out} = np.stack([D[top(order, {a})].mean(axis=0) for order in {0}])\n"
        "worst_{out} = np.stack([D[bottom(order, {a})].mean(axis=0) for order in {0}])\n"
        "fisher(D, best_{out}, worst_{out})",
        ("fisher", "top", "bottom"),
        (SHARES,),
    ),
    # scores of scores
    "zscore": GrammarOperation("scores", ("scores",), "along_documents({0})", ("along_documents",), weight=0.5),
    "rank": GrammarOperation("scores", ("scores",), "np.float32(1) / ranks({0})", ("ranks",), weight=0.5),
    "rrf": GrammarOperation(
        "scores",
        ("scores", "scores"),
        "reciprocal_rank_fusion([{parts}])",
        ("reciprocal_rank_fusion",),
        more=True,
        weight=3,
    ),
    "rrf60": GrammarOperation(
        "scores",
        ("scores", "scores"),
        "np.sum([np.float32(1) / ({a} + ranks(one)) for one in ({parts})], axis=0, dtype=np.float32)",
        ("ranks",),
        ((10, 60),),
        more=True,
    ),
    "zsum": GrammarOperation(
        "scores",
        ("scores", "scores"),
        "np.sum([along_documents(one) for one in ({parts})], axis=0, dtype=np.float32)",
        ("along_documents",),
        more=True,
        weight=3,
    ),
    "zmax": GrammarOperation(
        "scores",
        ("scores", "scores"),
        "np.maximum(along_documents({0}), along_documents({1}))",
        ("along_documents",),
    ),
    "mix": GrammarOperation(
        "scores",
        ("scores", "scores"),
        "np.float32({a}) * along_documents({0}) + np.float32(1 - {a}) * along_documents({1})",
        ("along_documents",),
        ((0.25, 0.5, 0.75),),
        weight=2,
    ),
    "stability": GrammarOperation(
        "scores",
        ("scores", "scores", "scores"),
        "rank_stability([{parts}])",
        ("rank_stability",),
        more=True,
        weight=0.5,
    ),
    "gated": GrammarOperation(
        "scores",
        ("queries", "scores", "scores"),
        'np.where(np.einsum("ij,ij->i", Q, {0})[:, None] >= {a}, {1}, {2})',
        (),
        ((0.5,),),
        weight=0.5,
    ),
    "substantial": GrammarOperation(
        "scores",
        ("queries", "scores", "scores"),
        "np.where(np.linalg.norm({0}, axis=1, keepdims=True) >= {a}, {1}, {2})",
        (),
        ((0.1,),),
        weight=0.25,
    ),
    # rounds over all of the paper's channels
    "hybrid": GrammarOperation(
        "channels", (), "Hybrid(D, ctx, all_lexical={a}, cross={b})", ("Hybrid",), ((True, False), (False, True))
    ),
    "round": GrammarOperation("scores", ("channels", "queries"), "{0}.round({1})", weight=1.5),
    # changed queries
    "rocchio": GrammarOperation(
        "queries",
        ("queries", "scores"),
        "above_{out}, below_{out} = around_median({1})\n"
        "rocchio({0}, centroids(D, above_{out}), centroids(D, below_{out}))",
        ("around_median", "rocchio", "centroids"),
        weight=2,
    ),
    "residual": GrammarOperation(
        "queries",
        ("queries", "scores"),
        "above_{out}, _ = around_median({1})\nresidual({0}, centroids(D, above_{out}))",
        ("around_median", "residual", "centroids"),
    ),
    "feedback": GrammarOperation(
        "queries",
        ("queries", "scores"),
        "interpolate({0}, top_centroid(D, {1}, {a}, {c}), {b})",
        ("interpolate", "top_centroid"),
        ((2, 3, 5, 10), (0.3, 0.5, 0.7), (None, 0.05)),
        weight=2,
    ),
    "contrast": GrammarOperation("queries", ("queries", "queries"), "contrast({0}, {1})", ("contrast",)),
    "between": GrammarOperation("queries", ("queries", "queries"), "normalise({0} + {1})", ("normalise",)),
    "agreeing": GrammarOperation(
        "queries",
        ("queries", "order"),
        "parts_{out} = [consensus(order, D) for order in {1}]\n"
        "core_{out} = np.stack([D[core].mean(axis=0) for core, _ in parts_{out}])\n"
        "rest_{out} = np.stack([D[rest].mean(axis=0) for _, rest in parts_{out}])\n"
        "rocchio({0}, core_{out}, rest_{out})",
        ("consensus", "rocchio"),
    ),
    "passages": GrammarOperation(
        "queries", (), "ctx.encode_fn(ctx.query_texts, adapter=PASSAGE)", ("PASSAGE",), weight=0.5
    ),
    "expanded": GrammarOperation(
        "queries", ("queries", "anchors"), "ctx.expand({0}, {1}, {a})", ("QUERY",), (("QUERY",),), weight=1.5
    ),
    # documents
    "order": GrammarOperation("order", ("scores",), "order_of({0}, S)", ("order_of",)),
    "first": GrammarOperation("anchors", ("order",), "{0}[:, 0]", weight=2),
    "last": GrammarOperation("anchors", ("order",), "{0}[:, -1]"),
    "diverse": GrammarOperation(
        "anchors", ("order",), "np.array([diverse(order, D) for order in {0}], np.intp)", ("diverse",)
    ),
    "central": GrammarOperation(
        "anchors", ("order",), "np.array([central(order, D) for order in {0}], np.intp)", ("central",)
    ),
    "hardest": GrammarOperation(
        "anchors",
        ("order",),
        "np.array([hardest_negative(order, D) for order in {0}], np.intp)",
        ("hardest_negative",),
    ),
}

GRAMMAR: Final[Mapping[str, GrammarOperation]] = MappingProxyType(_OPERATIONS)

PRIMITIVE_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("PASSAGE", "QUERY", "TOPIC_LENGTH", "Chunks"), "interface"),
        "Hybrid": "channels",
        **dict.fromkeys(("bottom", "central", "consensus", "diverse", "hardest_negative", "top"), "primitives.anchors"),
        **dict.fromkeys(("fisher", "rank_stability"), "primitives.discriminant"),
        **dict.fromkeys(
            ("around_median", "centroids", "contrast", "interpolate", "residual", "rocchio", "top_centroid"),
            "primitives.feedback",
        ),
        **dict.fromkeys(("order_of", "ranks", "reciprocal_rank_fusion"), "primitives.fusion"),
        **dict.fromkeys(("max_sim", "top_mean_sim"), "primitives.matching"),
        "along_documents": "primitives.standardise",
        **dict.fromkeys(("debias", "normalise"), "primitives.vectors"),
    }
)
"""The module of each primitive, below ``es_ttc.rescorers.programs``."""


def of_type(gives: Type, *, leaves: bool = False) -> list[str]:
    """Return the names of the operations of a type; on request only leaves."""
    return [name for name, one in GRAMMAR.items() if one.gives == gives and not (leaves and one.takes)]
