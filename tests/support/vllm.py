"""A real vLLM server with a tiny Llama of random weights, from an environment of its own (`make test-vllm`).

Run by that environment's Python with a folder, this file makes the model there; imported, it starts the server.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "ES_TTC_TEST_VLLM"
"""Names the Python of the environment that has vLLM."""
CONTEXT = 1024
_START_SECONDS = 900
_CHAT = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}assistant:"
_NAME = "all-MiniLM-L6-v2"  # what an encoder of that name asks for; clients of the other server take what there is
_FLAGS = ("--enforce-eager", "--dtype", "float32", "--max-num-seqs", "8")


def make_model(folder: str) -> None:
    """Write a Llama of two layers and random weights, with a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped: Any = PreTrainedTokenizerFast
    fast = wrapped(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=_CHAT)
    fast.save_pretrained(folder)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@contextmanager
def vllm(python: str) -> Iterator[str]:
    """Make a tiny model, serve it, and give the base URL.

    Args:
        python: Of the environment that has vLLM.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "tiny-llama")
        subprocess.run([python, __file__, model], check=True, capture_output=True)
        with serving(python, model, "--max-model-len", str(CONTEXT)) as url:
            yield url


@contextmanager
def serving(python: str, model: str, *flags: str) -> Iterator[str]:
    """Serve a model, and give the base URL.

    Args:
        python: Of the environment that has vLLM.
        model: The model's folder.
        flags: Further ones of the server.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", _NAME, *_FLAGS, *flags]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True) as server,
    ):
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", server, Path(log.name))
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"vLLM does not start: {log.read_text(errors='replace')[-3000:]}")


if __name__ == "__main__":
    make_model(sys.argv[1])
