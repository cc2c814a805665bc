"""Options of the trainings, from which the command line makes its own; nothing here imports torch."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

Precision = Literal["float32", "bfloat16"]
Family = Literal["whiten", "linear", "low-rank", "mlp"]
Tune = Literal["adapters", "encoder"]

_HIDDEN = "Width of the adapters."
_METRIC = (
    "Metric that selects the epoch: comp@k (all relevant documents in the top k), recall@k or ndcg@k; with several "
    "collections its mean over them."
)
_TUNE = (
    "Trained part: small networks over frozen vectors, or a copy of the encoder with all its weights, for accelerators "
    "(learning rate about 1e-5, small batch)."
)


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """Options of the loop, for all kinds of training."""

    epochs: int = Field(default=20, ge=1, description="Maximum number of epochs.")
    batch: int = Field(default=64, ge=2, description="Number of examples per step.")
    learning_rate: float = Field(default=1e-3, gt=0, description="Learning rate of AdamW.")
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay of AdamW.")
    patience: int = Field(
        default=3, ge=1, description="Number of epochs without a better validation after which training ends."
    )
    seed: int = Field(default=0, ge=0, description="Seed of all random choices.")
    precision: Precision = Field(default="float32", description="Precision of matrix products outside the solver.")
    device: str = Field(default="cpu", description="Device: auto (CUDA if available), cpu, cuda, cuda:1...")
    threads: int | None = Field(default=None, ge=1, description="Number of processor threads. Default: torch's own.")
    save_seconds: float = Field(default=30.0, description="Seconds between two checkpoints.")


@dataclass(frozen=True, slots=True)
class DenseOptions:
    """Options of the dense baseline."""

    tune: Tune = Field(default="adapters", description=_TUNE)
    hidden: int = Field(default=768, ge=1, description=_HIDDEN)
    temperature: float = Field(default=0.05, gt=0, description="Temperature of InfoNCE.")
    metric: str = Field(default="comp@5", description=_METRIC)


@dataclass(frozen=True, slots=True)
class NnnOptions:
    """Options of NNN-Tr; defaults that the paper does not state were chosen on train queries of ToolLens."""

    tune: Tune = Field(default="adapters", description=_TUNE)
    l1: float = Field(
        default=0.1, ge=0, le=1, description="l1 of the method nnn. Default: chosen on validation queries."
    )
    l2: float = Field(default=0.1, ge=0, le=1000, description="l2 of the method nnn. Give both or neither.")
    steps: int = Field(default=20, ge=1, description="Number of steps of the unrolled solver.")
    decode_steps: int = Field(default=100, ge=1, description="Number of solver steps in validation.")
    margin: float = Field(default=1.2, ge=1, description="Factor by which relevant documents must exceed the others.")
    temperature: float = Field(
        default=0.02, gt=0, description="Temperature of the smooth minimum and maximum in the loss."
    )
    slack: float = Field(
        default=1.0,
        ge=0,
        description="Weight of the distance of an unselected relevant document from being selected; 0 gives it no "
        "gradient, as in the paper.",
    )
    hidden: int = Field(default=768, ge=1, description=_HIDDEN)
    dictionary: int = Field(
        default=4096,
        ge=1,
        description="Maximum corpus size for which all documents compete in each step; above, those nearest to the "
        "queries.",
    )
    nearest: int = Field(default=50, ge=1, description="Number of nearest documents per query.")
    metric: str = Field(default="comp@5", description=_METRIC)


@dataclass(frozen=True, slots=True)
class ColtOptions:
    """Options of COLT; the defaults are those of its published configuration for ToolLens."""

    layers: int = Field(default=1, ge=0, le=8, description="Number of layers of the graph convolution.")
    balance: float = Field(default=0.04, ge=0, description="Weight of the contrastive loss.")
    temperature: float = Field(default=0.1, gt=0, description="Temperature of the contrastive loss.")
    listed: int = Field(
        default=10, ge=2, description="Number of documents in a query's list: the relevant ones and random others."
    )
    dropped: float = Field(
        default=0.2, ge=0, le=0.99, description="Share of each graph's edges that is dropped in an epoch."
    )
    scenes: Literal["initial", "current"] = Field(
        default="initial",
        description="Vectors of sets of documents: means of their initial vectors, as published, or of their current "
        "ones.",
    )
    metric: str = Field(default="comp@5", description=_METRIC)


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """Options of a head."""

    family: Family = Field(
        default="linear",
        description="Kind of map: a whitening (uses no labels), a matrix, a residual low-rank matrix, a residual "
        "network.",
    )
    rank: int = Field(default=64, ge=1, description="Rank of low-rank.")
    hidden: int = Field(default=768, ge=1, description=_HIDDEN)
    temperature: float = Field(default=0.05, gt=0, description="Temperature of InfoNCE.")
    metric: str = Field(default="ndcg@10", description=_METRIC)


@dataclass(frozen=True, slots=True)
class LateShape:
    """What a late-interaction model is built with, besides its backbone."""

    dimensions: int = Field(default=128, ge=1, description="Components of a token vector.")
    query_length: int = Field(default=64, ge=4, description="Maximum number of tokens of a query.")
    document_length: int | None = Field(
        default=None,
        ge=4,
        description="Maximum number of tokens of a document, for serving too. Default: the backbone's own.",
    )


@dataclass(frozen=True, slots=True)
class LateOptions:
    """Options of the training of a late-interaction model, besides those of the loop."""

    shape: LateShape = LateShape()
    negatives: int = Field(
        default=1,
        ge=0,
        le=50,
        description="Number of mined negatives of each query in a step, drawn from BM25's first 50 documents that are "
        "not judged relevant.",
    )
    train_length: int = Field(
        default=128, ge=4, description="Maximum number of tokens of a document in training only: shorter is faster."
    )
    temperature: float = Field(default=1.0, gt=0, description="Temperature of the loss, over sums of cosines.")
    metric: str = Field(default="ndcg@10", description="Metric that selects the epoch.")
    pool: int = Field(
        default=500,
        ge=2,
        description="Number of documents that the validation queries rank: their relevant ones, and BM25's first.",
    )
    layers: int | None = Field(
        default=None,
        ge=1,
        description="Number of the backbone's last layers that are trained, with the projection. Default: all.",
    )
    queries: int | None = Field(
        default=None, ge=2, description="Number of train queries, sampled at random. Default: all."
    )
