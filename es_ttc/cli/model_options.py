"""Commands whose options are declared once: in the signatures of functions, or as fields of pydantic models."""

import inspect
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

_MAX_EXAMPLE = 73  # characters of a line of an example, beside its indentation and a backslash
MAX_SENTENCE = 300
ARGUMENTS_KEY = "es_ttc.arguments"  # key of a command's arguments in the context's `meta`


def model_options(
    title: str,
    model: Any,
    # The fields, each with its option; `outer__inner` is one of a nested model. The value of an option has the name of
    # its field.
    fields: Mapping[str, str],
    *,
    # Types of options that the annotation of their field does not give
    types: Mapping[str, click.ParamType[Any]] | None = None,
    defaults: Mapping[str, Any] | None = None,  # defaults of options that are other than those of their fields
    unset: bool = False,  # whether an option that is not given is None, so that a setting's other sources decide
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options for some fields of a model, below a title of their own in the help."""
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
        states_default = default is not None and not isinstance(default, bool)
        text, default = f"{text} Default: {default}." if states_default else text, None
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
        ctx.meta[ARGUMENTS_KEY] = list(args)
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


FILE_PATH = click.Path(dir_okay=False, path_type=Path)
FOLDER_PATH = click.Path(file_okay=False, path_type=Path)


def command(
    *lines: str, group: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function, with examples in its help.

    Positional-only parameters become arguments, the others options. The annotation of an option is ``Annotated`` with,
    in any order: its help; its flag and metavar (``"--as NAME"``; for an argument its metavar alone, ``"DATA..."``)
    where the parameter's name does not give them; bounds (pydantic's ``Field``); a type of click's. Or it is a
    decorator of click's that declares the option. A parameter whose type is a dataclass stands for the options that its
    fields declare in the same way. Options without ``Annotated`` are declared by decorators below.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        parameters = inspect.signature(function).parameters.values()
        arguments = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
        groups = {each.name: each.annotation for each in parameters if _fields(each.annotation)}

        @wraps(function)
        def callback(**values: Any) -> Any:
            positional = [values.pop(argument) for argument in arguments]
            for name, group in groups.items():
                own, values = parted(values, _fields(group))
                values[name] = group(**own)
            return function(*positional, **values)

        declared = options_of(function)(callback)
        made: click.Command = click.command(name, cls=ModelCommand, epilog=examples(*lines))(declared)
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _fields(kind: Any) -> Mapping[str, inspect.Parameter]:
    """Return the fields of a dataclass; none of another type."""
    return inspect.signature(kind).parameters if isinstance(kind, type) and is_dataclass(kind) else {}


def _declarations(parameter: inspect.Parameter) -> Iterator[Callable[..., Any]]:
    kind: Any = parameter.annotation
    declared: list[Any] = []
    for field in _fields(kind).values():
        yield from _declarations(field)
    if get_origin(kind) is Annotated:
        kind, *declared = get_args(kind)
    elif parameter.kind is not parameter.POSITIONAL_ONLY:
        return
    types = [one for one in declared if isinstance(one, click.ParamType)]
    if declared and not types and callable(declared[0]):
        yield declared[0]
        return
    texts = [one for one in declared if isinstance(one, str)]
    if parameter.kind is parameter.POSITIONAL_ONLY:
        yield click.argument(
            parameter.name, metavar=next(iter(texts), None), **_value(parameter, kind, declared, types)
        )
        return
    flag, _, metavar = next((text for text in texts if text.startswith("-")), "").partition(" ")
    names = flag.split("/") if flag else [f"--{parameter.name.strip('_').replace('_', '-')}"]
    help_text = next((text for text in texts if not text.startswith("-")), None)
    shared: dict[str, Any] = {"help": help_text, "metavar": metavar or None}
    if kind is bool:
        yield click.option(*names, parameter.name, is_flag=True, **shared)
        return
    value = _value(parameter, kind, declared, types)
    yield click.option(*names, parameter.name, show_default=value.get("default") is not None, **shared, **value)


def _value(parameter: inspect.Parameter, kind: Any, declared: list[Any], types: list[Any]) -> dict[str, Any]:
    """Return what click is told of a parameter's values: their type, bounds, number and default."""
    kind = without_none(kind)
    several = parameter.default == () or (parameter.kind is parameter.POSITIONAL_ONLY and get_origin(kind) is tuple)
    if several:
        kind = get_args(kind)[0]
    limits = bounds([limit for one in declared if isinstance(one, FieldInfo) for limit in one.metadata])
    if not types and get_origin(kind) is Literal:
        types = [click.Choice(get_args(kind))]
    elif not types and limits:
        types = [(click.IntRange if kind is int else click.FloatRange)(**limits)]
    elif not types:
        types = [click.Path(path_type=Path) if kind is Path else kind]
    is_required = parameter.default is parameter.empty
    value: dict[str, Any] = {"type": types[0], "required": is_required}
    if several:
        value |= {"nargs": -1} if parameter.kind is parameter.POSITIONAL_ONLY else {"multiple": True}
    elif not is_required:
        value["default"] = parameter.default
    return value


def options_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds the options in the signature of a function; see :func:`command`."""
    parameters = inspect.signature(function).parameters.values()
    return all_of([option for parameter in parameters for option in _declarations(parameter)])


def all_of(options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a decorator that adds several options, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def examples(*lines: str) -> str:
    """Return an epilog of command lines; those that are longer than a terminal go on in a further line."""
    return "\n".join(("\b", "Examples:", *(f"  {part}" for line in lines for part in _broken(line))))


def _broken(line: str) -> list[str]:
    """Break a command line before options, so that it can be copied from a terminal of 80 columns."""
    first, *options = re.split(r" (?=--)", line)
    parts = [first]
    for option in options:
        if len(parts[-1]) + len(option) < _MAX_EXAMPLE:
            parts[-1] += f" {option}"
        else:
            parts.append(f"    {option}")
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:]
