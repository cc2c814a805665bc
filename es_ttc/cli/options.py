"""Options shared by several commands, the types of their values, and examples for the help."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import click
import orjson
from click.core import ParameterSource
from pydantic import Field

from es_ttc.cli.model_options import options_of
from es_ttc.vectors.codecs import PROFILES, STORED_CODECS, Profile, SkipTokens


class JsonObjectType(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "JSON"

    def __init__(self, example: str, *, nested: bool = False) -> None:
        self._example = example
        self._nested = nested

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the decoded object."""
        if not isinstance(value, str):
            return value
        try:
            found = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(found, dict) or (self._nested and not all(isinstance(one, dict) for one in found.values())):
            self.fail(f"{value!r} must be an object such as {self._example}", param, ctx)
        return found


class FilterType(JsonObjectType):
    """A query of the engine as JSON, or comparisons such as ``price<=100``, joined by ``and``."""

    name = "FILTER"
    _COMPARISON = re.compile(r"\s*([^<>=!\s]+)\s*([<>=!]+)\s*(.+?)\s*")
    _JOINT = re.compile(r"""\s+and\s+(?=[^<>=!\s"']+\s*[<>=!])(?=(?:[^"]*"[^"]*")*[^"]*$)""", re.IGNORECASE)
    _RANGES = MappingProxyType({"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"})
    _MEANT = MappingProxyType({"=<": "<=", "=>": ">=", "==": "="})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the query."""
        if not isinstance(value, str) or value.lstrip().startswith("{"):
            return super().convert(value, param, ctx)
        clauses = []
        for part in self._JOINT.split(value):
            match = self._COMPARISON.fullmatch(part)
            if match is None:
                self.fail(f"{part!r} is neither a comparison such as price<=100 nor JSON", param, ctx)
            field, operator, text = match.groups()
            if operator != "=" and operator not in self._RANGES:
                near = self._MEANT.get(operator)
                fix = f"did you mean [{near}]?" if near else "take one of [=, <, <=, >, >=], or a query as JSON"
                self.fail(f"{part!r} has an unknown operator [{operator}]: {fix}", param, ctx)
            try:
                operand = orjson.loads(text)
            except orjson.JSONDecodeError:
                operand = text
            bound = self._RANGES.get(operator)
            clauses.append({"range": {field: {bound: operand}}} if bound else {"match": {field: operand}})
        return clauses[0] if len(clauses) == 1 else {"bool": {"filter": clauses}}


class NamesType(click.ParamType[tuple[str, ...]]):
    """Names, joined by commas."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names, in the given order."""
        if not isinstance(value, str):
            return value
        names = tuple(part.strip() for part in value.split(","))
        if not all(names):
            self.fail(f"{value!r} holds an empty name", param, ctx)
        return names


class SpanGridType(click.ParamType[Any]):
    """Positions of spans, as `scale=10,stride=5`; the default stride is half the scale."""

    name = "scale=L,stride=S"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the grid."""
        from es_ttc.index.mappings.spec import SpanGrid
        from es_ttc.rescorers.spectral.params import MAX_SCALE

        if not isinstance(value, str):
            return value
        parts = dict(part.strip().partition("=")[::2] for part in value.split(","))
        try:
            scale = float(parts.pop("scale"))
            stride = int(parts.pop("stride", "") or max(1, round(scale / 2)))
        except (KeyError, ValueError, OverflowError):
            scale, stride = 0.0, 0
        if parts or stride < 1 or not 1 <= scale <= MAX_SCALE:
            self.fail(f"{value!r} is no grid of spans: give scale=L,stride=S in tokens, such as scale=10", param, ctx)
        return SpanGrid(scale, stride)


TextFields = Annotated[
    tuple[str, ...] | None,
    "--text-fields FIELD,...",
    NamesType(),
    "Fields to encode, in this order. Default: those of the index; title,text for a new index.",
]


def params_option(help: str, example: str, *, nested: bool = False) -> Callable[..., Any]:  # noqa: A002 - click's own name
    """Return the option for parameters as JSON."""
    return click.option("--params", type=JsonObjectType(example, nested=nested), default="{}", help=help)


Filter = Annotated[
    dict[str, Any] | None,
    "--filter",
    FilterType('{"term": {"group": "news"}}'),
    "What every hit must match: 'price<=100 and brand=Acme', or a query of the engine as JSON.",
]
GatewayUrl = Annotated[str | None, "--gateway URL", "URL of a running gateway. Default: a temporary one."]


def codec_help(what: str = "") -> str:
    """Return the help of the option for the storage of token vectors."""
    return f"Codec of token vectors{what}: int2, int4 and int8 take 2, 4 and 8 bits per component, float16 takes 16."


CODEC_CHOICE = click.Choice(STORED_CODECS)
STORAGE_HELP = (
    "How token vectors are stored. exact: in 8 bits per component, scores equal those of float32 to the third digit. "
    "default: in 4 bits. small: in 2 bits, and none for punctuation and stop words; a third of the default's bytes."
)
SKIP_HELP = (
    "Tokens that get no vector, in place of the storage's. stop_words: also the most frequent words of the encoder's "
    "languages; their neighbours' vectors stand for them. repeated_words: also words that the document has had before, "
    "for long texts that are read whole (--max-tokens)."
)
StripHtml = Annotated[
    Literal["auto", "yes", "no"],
    "Leave HTML out of what is encoded; auto: if most of the first documents have some. Positions of passages still "
    "point into the stored text.",
]
RankingModels = Annotated[
    Path | None,
    "--ranking-models FOLDER",
    click.Path(file_okay=False, exists=True, path_type=Path),
    "Folder of models written by `es-ttc train rank`; the method `learned` serves them by name.",
]


def first_pass_option(choices: Sequence[str], default: str, help: str) -> Callable[..., Any]:  # noqa: A002 - click's own name
    """Return the option for the first pass of a rescorer."""
    return click.option("--first-pass", type=click.Choice(choices), default=default, show_default=True, help=help)


class ScalesType(click.ParamType[tuple[float, ...]]):
    """Scales joined by commas, numbers from 1 or ``mean``."""

    name = "L,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the scales; ``mean`` is the infinite one."""
        return tuple(self._scale(part.strip(), param, ctx) for part in value.split(","))

    def _scale(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "mean":
            return math.inf
        try:
            scale = float(value)
        except ValueError:
            scale = math.nan
        if not 1 <= scale < math.inf:
            self.fail(f"[{value}] is no scale: give numbers from 1, or mean", param, ctx)
        return scale


@options_of
def feature_options(
    *,
    dims: Annotated[int | None, Field(ge=1), "Number of leading dimensions to keep (Matryoshka models)."] = None,
    tokens: Annotated[
        Literal["packed", "nested", "rank_vectors", "none"],
        "Storage of token vectors. packed: one blob per document. nested: one nested vector per token (large and slow, "
        "but plain engine features). rank_vectors: Elasticsearch's own (Enterprise licence). none: pooled vectors "
        "only.",
    ] = "packed",
    storage: Annotated[Profile | None, STORAGE_HELP] = None,
    codec: Annotated[str | None, CODEC_CHOICE, codec_help(" in a blob, in place of the storage's")] = None,
    skip_tokens: Annotated[SkipTokens | None, SKIP_HELP] = None,
    scales: Annotated[
        tuple[float, ...] | None,
        "--scales L,...",
        ScalesType(),
        "Scales for which norms are stored; may include `mean`. Default: 1,3,5,7,10,15,20,30,mean.",
    ] = None,
    spans: Annotated[
        tuple[Any, ...],
        "--spans scale=L,stride=S",
        SpanGridType(),
        "Spans to store as nested vectors, for passage-level kNN in the engine: width L, every S tokens (default: half "
        "of L). May be given several times.",
    ] = (),
    chunks: Annotated[
        bool,
        "Store vectors of sentences, pairs of sentences and paragraphs, for programs; with an encoder that "
        "distinguishes roles also each document as a query. Encodes about four times as much.",
    ] = False,
    text_fields: TextFields = None,
    max_tokens: Annotated[
        int, "--max-tokens N", Field(ge=1, le=65_536), "Maximum number of token vectors per document."
    ] = 1024,
) -> None:
    """Options for the features of an index."""


def check_storage(context: click.Context, tokens: str) -> None:
    """Raise an error for options of packed token vectors together with another storage of them."""
    for name in explicit_options(context, dict.fromkeys(("storage", "codec", "skip_tokens"))):
        if tokens != "packed" and (name != "skip_tokens" or tokens == "none"):
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} goes with --tokens packed, not with {tokens}: leave it out")


def with_storage(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of features with codec and skipped tokens in place of the name of their storage."""
    given = {name: value for name, value in options.items() if value is not None and name != "storage"}
    profile = options.get("storage")
    return given if profile is None else PROFILES[profile]._asdict() | given


def explicit_options(context: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some options that were given explicitly."""
    return {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    }
