"""LoRA adapters by name: their folders, roles and identities. This module does not import torch."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from es_ttc.common.validation import did_you_mean
from es_ttc.encoders import hub
from es_ttc.encoders.base import Role
from es_ttc.encoders.hashing import ADAPTER_CONFIG, DIGITS, FileHashes
from es_ttc.errors import ConfigurationError

WEIGHTS = "adapter_model.safetensors"
_SHIPPED_IN = "adapters"
_QUERY = (".query",)
_DOCUMENT = (".document", ".passage")  # suffixes of the name of an adapter that consists of one for each role
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter, or a pair of adapters for the two roles: its folder by role, and a SHA-256 prefix of all files."""

    name: str
    revision: str
    folders: dict[Role, Path]

    @property
    def identity(self) -> str:
        """The value of :attr:`es_ttc.encoders.base.EncoderIdentity.adapter`."""
        return f"{self.name}@{self.revision}"


def shipped(model: Path) -> list[str]:
    """Return the names of the adapters in a model's folder, in alphabetical order.

    A pair for the two roles (``retrieval.query`` with ``retrieval.passage`` or ``retrieval.document``) also counts as
    ``retrieval``.
    """
    folders = (path.parent.relative_to(model) for path in model.rglob(ADAPTER_CONFIG) if path.parent != model)
    names = {folder.as_posix().removeprefix(f"{_SHIPPED_IN}/") for folder in folders}
    stems = {name.removesuffix(_QUERY[0]) for name in names if name.endswith(_QUERY)}
    return sorted(names | {stem for stem in stems if any(stem + ending in names for ending in _DOCUMENT)})


def find_adapter(model: Path, name: str, hashes: FileHashes) -> Adapter:
    """Return an adapter by name."""
    own = shipped(model)
    if name in own:
        folders = _by_role(model / _SHIPPED_IN / name) or _by_role(model / name)
        public = name
    else:
        path = Path(name).expanduser()
        folders = _by_role(path)
        if not folders and _HUB_NAME.fullmatch(name):
            path = hub.adapter(name)
            folders = {"query": path, "document": path}
        public = (Path(name) if _HUB_NAME.fullmatch(name) else path.absolute()).name
    if not folders:
        known = did_you_mean(name, own) if own else ": the model ships none, so name a folder or a repository"
        raise ConfigurationError(f"adapter [{name}] is no folder with {ADAPTER_CONFIG} and none of the model's{known}")
    return Adapter(public, _revision(folders, hashes), folders)


def _by_role(base: Path) -> dict[Role, Path]:
    """Return the folder for each role: ``base`` itself, or those with the role's suffix; {} if there is neither."""
    if _is_adapter(base):
        return {"query": base, "document": base}
    if not base.name:
        return {}
    query, document = (
        next((folder for ending in endings if _is_adapter(folder := base.with_name(base.name + ending))), None)
        for endings in (_QUERY, _DOCUMENT)
    )
    return {"query": query, "document": document} if query and document else {}


def _is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()


def _revision(folders: dict[Role, Path], hashes: FileHashes) -> str:
    total = hashlib.sha256()
    for folder in dict.fromkeys(folders.values()):
        if not (folder / WEIGHTS).is_file():
            raise ConfigurationError(
                f"adapter folder [{folder}] has no {WEIGHTS}: pickled weights (.bin) are not read, for they can run "
                "code; save the adapter as safetensors"
            )
        for file in (ADAPTER_CONFIG, WEIGHTS):
            total.update(f"{file} {hashes.sha256(folder / file)}\n".encode())
    return total.hexdigest()[:DIGITS]
