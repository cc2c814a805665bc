"""Models and adapters by their hub name: from the local hub cache, or downloaded if the hub may be used."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from es_ttc.errors import ConfigurationError

_COMMON = ("*.json", "*.txt", "*.model", "artifact.metadata")
_TORCH = (*_COMMON, "*.safetensors")
_PATTERNS = {
    "torch": _TORCH,
    "onnx": (*_COMMON, "onnx/model.onnx*", "model.onnx*", "*_Dense/model.safetensors"),
    "vllm": _TORCH,  # the weights are part of the identity
}
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_LOOK_SECONDS = 5.0
_IGNORED = ("openvino/*", "*.ot", "*.h5", "*.msgpack")


def snapshot(name: str, backend: str, short_names: Sequence[str]) -> Path:
    """Return the folder with the files of a hub model for a backend; a bare name is sentence-transformers'.

    Hugging Face's own variables apply: ``HF_HUB_OFFLINE=1`` uses only the local cache, ``HF_TOKEN`` authenticates.
    """
    repository = _repository(name)
    with _from_the_hub(_what(name, short_names)):
        folder = _download(repository, _PATTERNS[backend])
        if _PATTERNS[backend] is _TORCH and not any(folder.rglob("*.safetensors")):
            folder = _download(repository, (*_COMMON, "pytorch_model*.bin"))
    return folder


def require_on_hub(name: str, short_names: Sequence[str]) -> None:
    """Raise an error for a model that certainly does not exist, not where the hub is late or wants a token."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repository = _repository(name)
    with _from_the_hub(_what(name, short_names)):
        try:
            snapshot_download(repository, local_files_only=True)
        except _errors():
            if constants.HF_HUB_OFFLINE:
                raise
            try:
                HfApi().model_info(repository, timeout=_LOOK_SECONDS)
            except GatedRepoError:
                return
            except RepositoryNotFoundError:
                raise
            except _errors():
                return


def adapter(name: str) -> Path:
    """Return the folder with the files of an adapter on the hub, ``organisation/adapter``."""
    with _from_the_hub(f"adapter [{name}] is none of the model's own, no folder"):
        return _download(name, _ADAPTER)


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors of huggingface_hub and of the HTTP library that it uses: its own one derives from that."""
    from huggingface_hub.errors import HfHubHTTPError

    return OSError, ValueError, *(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")


def _repository(name: str) -> str:
    return name if "/" in name else f"sentence-transformers/{name}"


def _what(name: str, short_names: Sequence[str]) -> str:
    return f"encoder [{name}] is no short name ({', '.join(short_names)}), no folder"


def _download(repository: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repository, allow_patterns=list(patterns), ignore_patterns=list(_IGNORED)))


@contextmanager
def _from_the_hub(what: str) -> Iterator[None]:
    from huggingface_hub import constants

    try:
        yield
    except _errors() as error:
        offline = " (the hub is switched off by HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else ""
        raise ConfigurationError(
            f"{what}, and could not be loaded from the model hub{offline}: {' '.join(str(error).split())}"
        ) from error
