"""The folder of a trained encoder: weights, a card for programs, a page for readers; the card is written last."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors.numpy import save as packed

from es_ttc.common.files import replace_file
from es_ttc.encoders.base import EncoderIdentity, Role
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.heads import Head
from es_ttc.encoders.registry import on_backend
from es_ttc.encoders.trained import CARD, FORMAT_VERSION, HEADS, ROLES, ModelCard, trained_identity
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation.report import rendered
from es_ttc.rescorers.tuned import as_json

CHECKPOINT_FILE = "checkpoint.safetensors"
MODEL_CARD = "README.md"
TUNED = "nnn.json"  # file of the parameters of the method `nnn`, in the format of `es-ttc tune`
PACKAGES = ("es-ttc", "numpy", "torch", "safetensors", "sentence-transformers", "onnxruntime", "openvino")


def write_artefact(
    folder: Path,
    *,
    kind: str,
    base_name: str,
    base: EncoderIdentity,
    heads: Mapping[Role, Head],
    models: Sequence[Role],
    params: Mapping[str, Mapping[str, Any]],
    about: Mapping[str, Any],
    cache_dir: Path,
) -> EncoderIdentity:
    """Write a trained encoder, and return its identity."""
    arrays = {name: rows for role in ROLES for name, rows in heads[role].arrays(role).items()}
    # Heads without weights (a role that does not change) need a file too.
    replace_file(folder / HEADS, packed(arrays or {"empty": np.zeros(1, np.float32)}))
    content = {
        "version": FORMAT_VERSION,
        "kind": kind,
        "name": folder.resolve().name,
        "base": {"name": lasting(base_name), "identity": base.as_dict()},
        "heads": {role: heads[role].kinds for role in ROLES},
        "models": list(models),
        "params": params,
        **about,
        "versions": provenance.versions(PACKAGES),
        "machine": provenance.machine(),
        "date": provenance.timestamp(),
    }
    identity = trained_identity(folder, ModelCard.model_validate(content), FileHashes(cache_dir))
    content["identity"] = identity.key
    if "nnn" in params:
        tuned = {
            "method": "nnn",
            "params": params["nnn"],
            "data": about["data"]["name"],
            "split": about["data"]["valid"],
            "encoder": identity.key,
        }
        replace_file(folder / TUNED, as_json(tuned))
    page = rendered("trained.md.j2", **content, folder=folder, tuned=TUNED, file=CARD)
    replace_file(folder / MODEL_CARD, f"{page}\n".encode())
    replace_file(folder / CARD, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n")
    return identity


def lasting(name: str) -> str:
    """Return an encoder's name for a card: without the backend, which does not matter, and with full paths."""
    plain = on_backend(name, "")
    folder = Path(plain).expanduser()
    return str(folder.resolve()) if folder.is_dir() else plain


def claim(out: Path, mark: str, checkpoint: Path, *, resume: bool) -> None:
    """Refuse a folder that is neither new, without the file `mark`, nor of the training of a checkpoint."""
    if (out / mark).exists():
        raise InvalidRequest(f"[{out}] holds a trained encoder already: choose another --out, or delete it")
    if checkpoint.exists() and not resume:
        raise InvalidRequest(
            f"[{checkpoint}] is of a training that was stopped: go on with --resume, or choose another --out"
        )
    if not (checkpoint.exists() and checkpoint.parent == out):
        require_free(out)


def require_free(out: Path) -> None:
    """Raise an InvalidRequest for a path that holds something already."""
    if out.exists() and not out.is_dir():
        raise InvalidRequest(f"[{out}] is a file: choose another --out")
    if out.is_dir() and any(out.iterdir()):
        held = ", ".join(sorted(path.name for path in out.iterdir())[:5])
        raise InvalidRequest(f"[{out}] is no empty folder (it holds {held}): choose another --out")
