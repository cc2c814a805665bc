"""Options made of fields of pydantic models: one place for the help, the default and the bounds of a parameter."""

from collections.abc import Callable, Container, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click

from es_ttc.cli.options import all_of

MAX_SENTENCE = 300
ARGUMENTS = "es_ttc.arguments"
"""Key of a command's arguments in the context's `meta`."""


def model_options(
    title: str,
    model: Any,
    fields: Mapping[str, str],
    *,
    types: Mapping[str, click.ParamType[Any]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    unset: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options for some fields of a model, below a title of their own in the help.

    Args:
        fields: The fields, each with its option; `outer__inner` is one of a nested model. The value of an option has
            the name of its field.
        types: Types of options that the annotation of their field does not give.
        defaults: Defaults of options that are other than those of their fields.
        unset: Whether an option that is not given is None, so that a setting's other sources decide.
    """
    return all_of(
        [
            _option(title, _field(model, path), path, flag, types or {}, defaults or {}, unset=unset)
            for path, flag in fields.items()
        ]
    )


def flags(*names: str) -> dict[str, str]:
    """Return the options of fields that have the fields' names."""
    return {name: f"--{name.replace('_', '-')}" for name in names}


def _field(model: Any, path: str) -> Any:
    """Return a field of a model or of a nested one."""
    *outer, name = path.split("__")
    for step in outer:
        model = model.__pydantic_fields__[step].annotation
    return model.__pydantic_fields__[name]


def _option(
    title: str,
    info: Any,
    path: str,
    flag: str,
    types: Mapping[str, click.ParamType[Any]],
    defaults: Mapping[str, Any],
    *,
    unset: bool,
) -> Callable[..., Any]:
    default = defaults.get(path, None if info.is_required() or info.default_factory else info.get_default())
    text, kind, limits = info.description, without_none(info.annotation), bounds(info.metadata)
    if unset:
        told = default is not None and not isinstance(default, bool)
        text, default = f"{text} Default: {default}." if told else text, None
    shared: dict[str, Any] = {"cls": _TitledOption, "title": title, "help": text, "default": default}
    if kind is bool:
        return click.option(flag, path, is_flag=True, **shared)
    if path in types:
        shared["type"] = types[path]
    elif get_origin(kind) is Literal:
        shared["type"] = click.Choice(get_args(kind))
    elif kind in (int, float):
        ranges = {int: click.IntRange, float: click.FloatRange}
        shared |= {"type": ranges[kind](**limits) if limits else kind, "metavar": "N"}
    return click.option(flag, path, show_default=default is not None, **shared)


class ModelCommand(click.Command):
    """A command whose help shows its options by title, and which keeps the arguments that it was called with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by title."""
        by_title: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                by_title.setdefault(getattr(param, "title", "Options"), []).append(record)
        for title, records in sorted(by_title.items(), key=lambda item: item[0] == "Options"):
            with formatter.section(title):
                formatter.write_dl(records)


class CommandGroup(click.Group):
    """A group whose help shows the whole first sentence of each command's help."""

    command_class = ModelCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(MAX_SENTENCE)) for name in sorted(self.commands)]
            )


class _TitledOption(click.Option):
    def __init__(self, *args: Any, title: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = title


def parted(values: Mapping[str, Any], names: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of some names, and the others."""
    own = {name: value for name, value in values.items() if name in names}
    return own, {name: value for name, value in values.items() if name not in names}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of :func:`model_options` as the object that the model validates."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *outer, name = path.split("__")
        place = found
        for step in outer:
            place = place.setdefault(step, {})
        place[name] = value
    return found


def without_none(annotation: Any) -> Any:
    """Return the type of a field without None."""
    if get_origin(annotation) in (Union, UnionType):
        [annotation] = [kind for kind in get_args(annotation) if kind is not NoneType]
    return annotation


def bounds(metadata: list[Any]) -> dict[str, Any]:
    """Return the bounds of a field as click's ranges take them."""
    limits: dict[str, Any] = {}
    for limit in metadata:
        for name, bound, is_open in (
            ("ge", "min", False),
            ("gt", "min", True),
            ("le", "max", False),
            ("lt", "max", True),
        ):
            if hasattr(limit, name):
                limits |= {bound: getattr(limit, name), **({f"{bound}_open": True} if is_open else {})}
    return limits
