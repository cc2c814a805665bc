"""Rerankers by name, as in the settings."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.common.caches import LruCache
from es_ttc.common.validation import Fault, FaultKind, did_you_mean, read_json, unknown_field
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.reranking.rerankers.base import PointwiseReranker, Reranker, RerankerKind, RerankerSettings
from es_ttc.reranking.rerankers.calls import CallKey, ListwiseCalls, PointwiseCalls
from es_ttc.reranking.strategies.methods import MSMARCO_MINILM

GROUP = "es_ttc.rerankers"

_SCORES_KEPT = 200_000
_POSITIONS_KEPT = 200_000

Calls = PointwiseCalls | ListwiseCalls


def kinds() -> list[str]:
    """Return the names of all installed kinds of rerankers; nothing is imported."""
    return _GROUP.names()


@lru_cache(maxsize=64)
def kind(name: str) -> RerankerKind:
    """Return a kind of reranker."""
    return _GROUP.load(name)


class Rerankers:
    """The rerankers that a request may name; each is created at its first use."""

    def __init__(
        self,
        configured: Mapping[str, Mapping[str, Any]],
        built_in: Mapping[str, Callable[[], Reranker]] | None = None,
    ) -> None:
        self._built_in = {name: make for name, make in (built_in or {}).items() if name not in configured}
        self._settings = {name: _read(name, table) for name, table in configured.items()}
        self._scores: LruCache[CallKey, float] = LruCache(_SCORES_KEPT)
        self._orders: LruCache[CallKey, tuple[int, ...]] = LruCache(_POSITIONS_KEPT)
        self._made: dict[str, Calls] = {}

    @property
    def names(self) -> list[str]:
        """The names, in alphabetical order."""
        return sorted([*self._settings, *self._built_in])

    @property
    def default(self) -> str | None:
        """The reranker of a request that names none: the only one of the settings, else the installed cross-encoder."""
        if len(self._settings) == 1:
            return next(iter(self._settings))
        return MSMARCO_MINILM if not self._settings and MSMARCO_MINILM in self._built_in else None

    def named(self, name: str) -> Calls:
        """Return a reranker; the same object at every call."""
        if name in self._made:
            return self._made[name]
        if name in self._settings:
            found, settings = self._settings[name]
            reranker = found.make(settings)
        elif name in self._built_in:
            reranker = self._built_in[name]()
        elif name == MSMARCO_MINILM:
            raise ConfigurationError(
                f"reranker [{MSMARCO_MINILM}] is not installed: pip install 'es-ttc[cross-encoder]'"
            )
        else:
            raise InvalidRequest(f"unknown reranker [{name}]{did_you_mean(name, self.names)}")
        self._made[name] = self.calls(reranker, name)
        return self._made[name]

    def calls(self, reranker: Reranker, name: str) -> Calls:
        """Return the calls of a reranker, with the shared cache of answers."""
        if isinstance(reranker, PointwiseReranker):
            return PointwiseCalls(reranker, name, self._scores)
        return ListwiseCalls(reranker, name, self._orders)

    async def close(self) -> None:
        """Close all rerankers that were created."""
        for calls in self._made.values():
            await calls.close()
        self._made.clear()


def _read(name: str, table: Mapping[str, Any]) -> tuple[RerankerKind, RerankerSettings]:
    where = f"rerankers.{name}"
    if not isinstance(table.get("kind"), str):
        raise ConfigurationError(f"[{where}.kind] is missing: name one of [{', '.join(kinds())}]")
    rest = {key: value for key, value in table.items() if key != "kind"}
    try:
        found = kind(table["kind"])
    except InvalidRequest:
        raise ConfigurationError(f"[{where}.kind] is {table['kind']}{did_you_mean(table['kind'], kinds())}") from None
    try:
        return found, read_json(found.Settings, rest)
    except Fault as fault:  # the value is omitted: it may be a key
        if fault.kind is FaultKind.UNKNOWN:
            raise ConfigurationError(str(unknown_field(fault.path[0], fault.known, where))) from None
        problem = fault.problem if fault.kind is FaultKind.MISSING else f"is wrong: {fault.problem}"
        raise ConfigurationError(f"[{'.'.join((where, *fault.path))}] {problem}") from None


def _is_kind(made: object) -> TypeGuard[RerankerKind]:
    return isinstance(made, RerankerKind)


_GROUP: entry_points.EntryPointGroup[RerankerKind] = entry_points.EntryPointGroup(
    GROUP,
    "kind of reranker",
    _is_kind,
    (
        (
            "Settings",
            lambda value: isinstance(value, type) and issubclass(value, RerankerSettings),
            "must be a subclass of RerankerSettings",
        ),
        ("make", callable, "must be a method"),
    ),
)
