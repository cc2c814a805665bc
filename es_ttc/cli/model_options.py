"""Options made of fields of pydantic models: one place for the help, the default and the bounds of a parameter."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import click

C = TypeVar("C", bound=Callable[..., Any])

MAX_SENTENCE = 300


@dataclass(frozen=True)
class ModelOptions:
    """Options of some fields of a model, below a title of their own in the help.

    Attributes:
        model: Module and name of the model, as ``package.module:Model``; it is imported when its command is used.
        fields: The fields, each with its option; `outer__inner` is one of a nested model. The value of an option
            has the name of its field.
        types: Types of options that the annotation of their field does not give.
        defaults: Defaults of options that are other than those of their fields.
        unset: Whether an option that is not given is None, so that a setting's other sources decide.
    """

    title: str
    model: str
    fields: Mapping[str, str]
    types: Mapping[str, click.ParamType[Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unset: bool = False

    def options(self) -> list[click.Option]:
        """Return the options."""
        module, _, name = self.model.partition(":")
        model = getattr(import_module(module), name)
        return [self._option(model, path, flag) for path, flag in self.fields.items()]

    def _option(self, model: Any, path: str, flag: str) -> click.Option:
        *outer, name = path.split("__")
        for step in outer:
            model = model.__pydantic_fields__[step].annotation
        info = model.__pydantic_fields__[name]
        default = self.defaults.get(path, None if info.is_required() or info.default_factory else info.get_default())
        shared: dict[str, Any] = {"help": info.description, "default": default}
        if self.unset:
            told = default is not None and not isinstance(default, bool)
            shared = {"help": f"{info.description} Default: {default}." if told else info.description, "default": None}
        kind, limits = without_none(info.annotation), bounds(info.metadata)
        if kind is bool:
            return _TitledOption(self.title, [flag, path], is_flag=True, **shared)
        if path in self.types:
            shared["type"] = self.types[path]
        elif get_origin(kind) is Literal:
            shared["type"] = click.Choice(get_args(kind))
        elif kind in (int, float):
            ranges = {int: click.IntRange, float: click.FloatRange}
            shared |= {"type": ranges[kind](**limits) if limits else kind, "metavar": "N"}
        return _TitledOption(self.title, [flag, path], show_default=shared["default"] is not None, **shared)

    def __call__(self, command: C) -> C:
        """Add the options to a command, which must be a :class:`ModelCommand`."""
        vars(command).setdefault("__click_params__", []).append(self)
        return command


class ModelCommand(click.Command):
    """A command that may have :class:`ModelOptions`."""

    _params: list[click.Parameter | ModelOptions]

    @property
    def params(self) -> list[click.Parameter]:
        """The parameters; models are imported here, so that the help of other commands does not wait for them."""
        if any(isinstance(param, ModelOptions) for param in self._params):
            self._params = [
                option
                for param in self._params
                for option in (param.options() if isinstance(param, ModelOptions) else [param])
            ]
        return cast("list[click.Parameter]", self._params)

    @params.setter
    def params(self, params: list[Any]) -> None:
        self._params = params

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
    def __init__(self, title: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = title


def parted(values: Mapping[str, Any], names: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of some names, and the others."""
    own = {name: value for name, value in values.items() if name in names}
    return own, {name: value for name, value in values.items() if name not in names}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of :class:`ModelOptions` as the object that the model validates."""
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
