"""Methods that packages register under entry points: find them by name, check their contract, read their parameters."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from pydantic import BaseModel

from es_ttc.common.validation import Fault, FaultKind, did_you_mean, read_json, shown
from es_ttc.errors import ConfigurationError, InvalidRequest

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Checks = tuple[tuple[str, Callable[[Any], bool], str], ...]  # attribute, predicate, requirement for messages


_HOOKS = {"es_ttc.rescorers": "rescore.ttc", "es_ttc.retrievers": "knn.ttc", "es_ttc.rewriters": "query.ttc"}
_STRATEGIES = ("gar", "llm_pick", "rgs", "rr", "slidegar")  # built-in methods of `rescore.ttc` without an entry point


def _elsewhere(name: str) -> str:
    """Return where in a request a method belongs that was named in a place that does not have it; "" if nowhere."""
    path = tuple(sys.path)
    hooks = [hook for group, hook in _HOOKS.items() if name in _entry_points(group, path).names]
    hooks += ["rescore.ttc"] if name in _STRATEGIES else []
    if name == "bm25":
        return "method [bm25] is the engine's own ranking: leave the section [ttc] out"
    return f"method [{name}] belongs in [{'] or ['.join(hooks)}]" if hooks else ""


@lru_cache(maxsize=64)
def _entry_points(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Return a group's entry points of all packages on a path: to read them takes 6 ms."""
    return entry_points(group=group)


@dataclass(frozen=True, slots=True)
class EntryPointGroup(Generic[T]):
    """One entry-point group."""

    name: str
    kind: str
    is_member: Callable[[object], TypeGuard[T]]
    checks: Checks
    usual: tuple[str, ...] = ()  # members that an error lists first

    def names(self) -> list[str]:
        """Return the names of all members that are installed, in alphabetical order; nothing is imported."""
        return sorted({point.name for point in self._points()})

    def load(self, name: str) -> T:
        """Import a member and create it."""
        found = [point for point in self._points() if point.name == name]
        if not found:
            meant = did_you_mean(name, self.names(), self.usual)
            raise InvalidRequest(_elsewhere(name) or f"unknown method [{name}]{meant}")
        if len({point.value for point in found}) > 1:
            values = ", ".join(sorted(f"[{point.value}]" for point in found))
            raise ConfigurationError(
                f"{self.kind} [{name}] is registered by several packages ({values}): uninstall all but one"
            )
        return self._instance(found[0])

    def _points(self) -> EntryPoints:
        """Return the members' entry points, of all packages on the path."""
        return _entry_points(self.name, tuple(sys.path))

    def _instance(self, point: EntryPoint) -> T:
        try:
            made: object = point.load()()
        except Exception as error:  # code of another package may raise any exception
            raise ConfigurationError(
                f"{self.kind} [{point.name}] ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        broken = self._broken(point.name, made)
        if broken or not self.is_member(made):
            raise ConfigurationError(f"{self.kind} [{point.name}] ({point.value}) breaks the contract: {broken}")
        return made

    def _broken(self, name: str, made: object) -> str:
        """Return the violated part of the contract, or an empty string."""
        named: Checks = (
            ("name", lambda value: value == name and name == name.lower(), f"must be [{name}], in lower case"),
        )
        for attribute, holds, requirement in named + self.checks:
            if not hasattr(made, attribute):
                return f"[{attribute}] is missing"
            if not holds(getattr(made, attribute)):
                return f"[{attribute}] {requirement}"
        return ""


class NamedMethod(Protocol):
    """A method of a request: a name, and a model of its parameters."""

    @property
    def name(self) -> str:
        """The name in a request's ``method``."""

    @property
    def Params(self) -> type[BaseModel]:  # noqa: N802 - the attribute's name
        """The model that validates a request's ``params``."""


A = TypeVar("A", bound=NamedMethod)


class MethodGroup(Generic[A, M]):
    """A group of methods, each created once."""

    def __init__(
        self,
        name: str,
        kind: str,
        is_member: Callable[[object], TypeGuard[A]],
        params: type[M],
        checks: Checks,
        usual: tuple[str, ...] = (),
    ) -> None:
        requirement = "must be a subclass of Params in which every field has a default"
        has_params: Checks = (("Params", lambda value: has_defaults(value, params), requirement),)
        group = EntryPointGroup(name, kind, is_member, has_params + checks, usual)
        self.names = group.names
        self.load = lru_cache(maxsize=256)(group.load)  # the same object at every call

    def problems(self) -> dict[str, str]:
        """Load every member and return name and reason for each that cannot be used."""
        found = {}
        for name in self.names():
            try:
                self.load(name)
            except ConfigurationError as error:
                found[name] = str(error)
        return found

    def parse_params(self, method: A, raw: Mapping[str, Any], served: Mapping[str, Any] | None = None) -> M:
        """Parse a member's parameters from the decoded JSON of a request's ``params``; see :func:`parse_params`."""
        model: type[M] = method.Params  # type: ignore[assignment]  # checked when it was loaded
        return parse_params(model, raw, method.name, served)


def parse_params(model: type[M], raw: Mapping[str, Any], method: str, served: Mapping[str, Any] | None = None) -> M:
    """Parse a method's parameters from the decoded JSON of a request's ``params``.

    Types are JSON's own: a number is not read from a string, nor a boolean from a number. What a gateway or an
    evaluation serves under names (models, promoted programs) is the context of the model's validators.
    """
    try:
        return read_json(model, raw, served)
    except Fault as fault:
        raise InvalidRequest(_sentence(method, fault)) from fault


def has_defaults(model: object, base: type[BaseModel]) -> bool:
    """Return whether an object is a model of parameters in which every field has a default."""
    if not (isinstance(model, type) and issubclass(model, base)):
        return False
    return not any(field.is_required() for field in model.model_fields.values())


def _sentence(method: str, fault: Fault) -> str:
    """Return the message about an invalid parameter: method, parameter, value and requirement."""
    where = ".".join(fault.path)
    if fault.kind is FaultKind.UNREADABLE:
        return f"the parameters of method [{method}] are not JSON: {fault.problem}"
    if fault.kind is FaultKind.UNKNOWN:
        return f"unknown parameter [{where}] of method [{method}]{did_you_mean(where, fault.known)}"
    if not where:
        return f"parameters of method [{method}]: {fault.problem}"
    return f"parameter [{where}] of method [{method}] is {shown(fault.value)}: {fault.problem}"
