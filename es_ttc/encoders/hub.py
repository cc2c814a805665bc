"""Models by their hub name: taken from the local hub cache, and fetched where the hub may be used."""

from pathlib import Path

from es_ttc.errors import ConfigurationError

_COMMON = ("*.json", "*.txt", "*.model")
_PATTERNS = {"torch": (*_COMMON, "*.safetensors"), "onnx": (*_COMMON, "onnx/model.onnx*", "model.onnx*")}
_IGNORED = ("openvino/*", "*.ot", "*.h5", "*.msgpack")


def snapshot(name: str, backend: str) -> Path:
    """Return the folder with a hub model's files.

    Huggingface's own variables apply: ``HF_HUB_OFFLINE=1`` keeps to the local cache, ``HF_TOKEN`` signs in.

    Args:
        name: ``organisation/model``; a bare name is one of the sentence-transformers organisation.
        backend: ``torch`` or ``onnx``: only that backend's weights are fetched.

    Raises:
        ConfigurationError: There is no such model, or it can't be had.
    """
    from huggingface_hub import constants, snapshot_download

    repository = name if "/" in name else f"sentence-transformers/{name}"
    try:
        patterns = list(_PATTERNS[backend])
        folder = Path(snapshot_download(repository, allow_patterns=patterns, ignore_patterns=list(_IGNORED)))
        if backend == "torch" and not any(folder.rglob("*.safetensors")):
            folder = Path(snapshot_download(repository, allow_patterns=[*_COMMON, "pytorch_model*.bin"]))
    except (OSError, ValueError) as error:  # huggingface_hub's errors are all one or the other
        offline = " (the hub is switched off by HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else ""
        raise ConfigurationError(
            f"encoder [{name}] is no short name (minilm, mpnet), no folder, and could not be had from the model "
            f"hub{offline}: {' '.join(str(error).split())}"
        ) from error
    return folder
