"""Commands whose options and arguments are declared once, in the signatures of their functions."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from es_ttc.cli.model_options import ModelCommand, bounds, without_none
from es_ttc.cli.options import all_of, examples

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def command(
    *lines: str, group: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function, with examples in its help.

    Positional-only parameters become arguments, the others options. The annotation of an option is ``Annotated`` with,
    in any order: its help; its flag and metavar (``"--as NAME"``; for an argument its metavar alone, ``"DATA..."``)
    where the parameter's name does not give them; bounds (pydantic's ``Field``); a type of click's. Or it is a
    decorator of click's that declares the option. Options without ``Annotated`` are declared by decorators below.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        parameters = inspect.signature(function).parameters.values()
        arguments = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]

        @wraps(function)
        def callback(**values: Any) -> Any:
            positional = [values.pop(argument) for argument in arguments]
            return function(*positional, **values)

        declared = all_of([option for parameter in parameters for option in _declarations(parameter)])(callback)
        made: click.Command = click.command(name, cls=ModelCommand, epilog=examples(*lines))(declared)
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _declarations(parameter: inspect.Parameter) -> Iterator[Callable[..., Any]]:
    """Yield the decorators that declare a parameter."""
    kind: Any = parameter.annotation
    told: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *told = get_args(kind)
    elif parameter.kind is not parameter.POSITIONAL_ONLY:
        return
    types = [one for one in told if isinstance(one, click.ParamType)]
    if told and not types and callable(told[0]):
        yield told[0]
        return
    texts = [one for one in told if isinstance(one, str)]
    if parameter.kind is parameter.POSITIONAL_ONLY:
        yield click.argument(parameter.name, metavar=next(iter(texts), None), **_value(parameter, kind, told, types))
        return
    flag, _, metavar = next((text for text in texts if text.startswith("-")), "").partition(" ")
    names = flag.split("/") if flag else [f"--{parameter.name.strip('_').replace('_', '-')}"]
    help_text = next((text for text in texts if not text.startswith("-")), None)
    shared: dict[str, Any] = {"help": help_text, "metavar": metavar or None}
    if kind is bool:
        yield click.option(*names, parameter.name, is_flag=True, **shared)
        return
    value = _value(parameter, kind, told, types)
    yield click.option(*names, parameter.name, show_default=value.get("default") is not None, **shared, **value)


def _value(parameter: inspect.Parameter, kind: Any, told: list[Any], types: list[Any]) -> dict[str, Any]:
    """Return what click is told of a parameter's values: their type, bounds, number and default."""
    kind = without_none(kind)
    several = parameter.default == () or (parameter.kind is parameter.POSITIONAL_ONLY and get_origin(kind) is tuple)
    if several:
        kind = get_args(kind)[0]
    limits = bounds([limit for one in told if isinstance(one, FieldInfo) for limit in one.metadata])
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
