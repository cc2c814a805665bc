"""A real vLLM with a tiny Llama of random weights, from an environment of its own (`make test-vllm`).

Run by that environment's Python, this file makes the model, or asks it in that very process; imported, it starts the
first, or a server.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

VARIABLE = "ES_TTC_TEST_VLLM"
"""Names the Python of the environment that has vLLM."""
CONTEXT = 1024
_START_SECONDS = 900
_CHAT = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}assistant:"
_NAME = "all-MiniLM-L6-v2"  # what an encoder of that name asks for; clients of the other server take what there is
_FLAGS = ("--enforce-eager", "--dtype", "float32", "--max-num-seqs", "8")
OPTIONS = {"max_model_len": CONTEXT, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 8}
"""The same for a model in the worker's own process."""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Of its processes."""


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


def answer(folder: str, questions: str, answers: str) -> None:
    """Ask the model in this process, all questions of a file at the same time, and write the answers to another."""
    from es_ttc.errors import LlmError
    from es_ttc.llm.base import JsonSchema, Message, Reply
    from es_ttc.llm.offline import OfflineLlm
    from es_ttc.settings import LlmSettings

    async def one(llm: OfflineLlm, question: dict[str, Any]) -> dict[str, Any]:
        schema = JsonSchema("answer", question.pop("schema")) if "schema" in question else None
        try:
            if "chat" in question:
                turns = [Message("user", question.pop("chat"))]
                reply: Reply = await llm.chat(turns, schema=schema, **question)
            else:
                reply = await llm.complete(question.pop("text"), schema=schema, **question)
        except LlmError as error:
            return {"failure": error.failure, "told": str(error)}
        return asdict(reply)

    asked = json.loads(Path(questions).read_text())

    async def everything() -> list[dict[str, Any]]:
        async with OfflineLlm(LlmSettings(llm_offline=folder, llm_offline_options=OPTIONS)) as llm:
            return await asyncio.gather(*(one(llm, question) for question in asked))

    Path(answers).write_text(json.dumps(asyncio.run(everything())))


@contextmanager
def made_model(python: str) -> Iterator[str]:
    """Make a tiny model and give its folder.

    Args:
        python: Of the environment that has vLLM.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "tiny-llama")
        subprocess.run([python, __file__, "make", model], check=True, capture_output=True)
        yield model


@contextmanager
def vllm(python: str) -> Iterator[str]:
    """Make a tiny model, serve it, and give the base URL.

    Args:
        python: Of the environment that has vLLM.
    """
    with made_model(python) as model, serving(python, model, "--max-model-len", str(CONTEXT)) as url:
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
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
        ) as server,
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
    if sys.argv[1] == "make":
        make_model(sys.argv[2])
    else:
        answer(*sys.argv[2:])
