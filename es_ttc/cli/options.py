"""Options that several commands share, and the types of their values."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click
import orjson


class JsonObjectType(click.ParamType[dict[str, Any]]):
    """A JSON object.

    Args:
        example: Shown where something else was given.
        nested: Whether every value must be an object too.
    """

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


class NamesType(click.ParamType[tuple[str, ...]]):
    """Names, joined by commas."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names, in the order given."""
        if not isinstance(value, str):
            return value
        names = tuple(part.strip() for part in value.split(","))
        if not all(names):
            self.fail(f"{value!r} holds an empty name", param, ctx)
        return names


class SpanGridType(click.ParamType[Any]):
    """Where spans are taken, as `scale=10,stride=5`; a stride that is left out is half the scale."""

    name = "scale=L,stride=S"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the grid."""
        from es_ttc.mappings.spec import SpanGrid
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


text_fields_flag = click.option(
    "--text-fields",
    type=NamesType(),
    metavar="FIELD,...",
    help="Fields that are encoded, in this order. Default: those of the index; title,text for a new one.",
)


def codec_option(default: str, what: str = "", also: Mapping[str, str] = MappingProxyType({})) -> Callable[..., Any]:
    """Return the option that says how token vectors are stored.

    Args:
        default: Unless told.
        what: Where, for the help.
        also: Further codecs, with what the help says of them.
    """
    more = "".join(f"; {name}: {told}" for name, told in also.items())
    return click.option(
        "--codec",
        type=click.Choice(["int8", "float16", *also]),
        default=default,
        show_default=True,
        help=f"Storage type of token vectors{what}: 1 or 2 bytes a component{more}.",
    )


def max_tokens_option(most: int, what: str = "") -> Callable[..., Any]:
    """Return the option that says where a document's token vectors end."""
    return click.option(
        "--max-tokens",
        type=click.IntRange(1, most),
        metavar="N",
        default=1024,
        show_default=True,
        help=f"Token vectors kept of one document{what}.",
    )


def first_pass_option(choices: Sequence[str], default: str, help: str) -> Callable[..., Any]:  # noqa: A002 - click's own name
    """Return the option that says what finds the documents that a rescorer puts into order."""
    return click.option("--first-pass", type=click.Choice(choices), default=default, show_default=True, help=help)
