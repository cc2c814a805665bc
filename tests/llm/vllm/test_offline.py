"""vLLM's offline batches in a worker's own process, for real: only `make test-vllm` has an environment with vLLM."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.llm import LlmClient
from tests.llm.test_client import KEYWORDS
from tests.support import vllm
from tests.support.jobs import JobSetup, connected, make_index, worker_at
from tests.support.llm import settings_for

pytestmark = pytest.mark.llm
COUNT = 12
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def python() -> str:
    return os.environ[vllm.VARIABLE]


@pytest.fixture(scope="module")
def model(python: str) -> Iterator[str]:
    with vllm.made_model(python) as folder:
        yield folder


def answers(python: str, model: str, folder: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask the model in a process of vLLM's environment, all questions at the same time."""
    asked, answered = folder / "questions.json", folder / "answers.json"
    asked.write_text(json.dumps(questions))
    command = [python, "-m", vllm.__name__, "answer", model, str(asked), str(answered)]
    done = subprocess.run(
        command, env=os.environ | vllm.ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(answered.read_text())
    return found


async def test_offline_vllm_answers_as_the_server_does(python: str, model: str, tmp_path: Path, llm_url: str) -> None:
    texts = ["One, two, three,", "Title: Aspirin\nKeywords:"]
    plain: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}
    questions = [
        *({"text": text, **plain} for text in texts),
        {"chat": "Give two keywords.", "schema": KEYWORDS.schema, "max_tokens": 60, "temperature": 0.0},
        {"text": "heart attack " * 500, **plain},
    ]
    first, second, held, refused = await asyncio.to_thread(answers, python, model, tmp_path, questions)
    async with LlmClient(settings_for(llm_url)) as client:
        served = [await client.complete(text, **plain) for text in texts]
    assert [first["text"], second["text"]] == [reply.text for reply in served]
    assert [first["usage"], second["usage"]] == [
        {"prompt_tokens": reply.usage.prompt_tokens, "completion_tokens": 6} for reply in served
    ]
    assert first["finish"] == "length"
    assert held["held"] is True
    assert held["text"].lstrip().startswith("{")
    assert refused["failure"] == "refused"
    assert "heart" not in refused["told"]


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)
async def test_a_worker_enriches_with_a_model_of_its_own(
    engine_url: str, index_name: str, python: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_TTC_LLM_OFFLINE_OPTIONS", json.dumps(vllm.OPTIONS))
    monkeypatch.setenv("ES_TTC_LLM_OFFLINE", model)
    for name, value in vllm.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    more = {"ES_TTC_JOBS_TURN_SECONDS": "60", "ES_TTC_LLM_MODEL": "tiny-llama"}
    job_setup = JobSetup(engine_url, index_name, "http://127.0.0.1:9/v1", tmp_path, more=more, python=python)
    engine = await connected(engine_url)
    try:
        await make_index(engine, index_name, COUNT)
        wanted = JobRequest(index=index_name, prompt_text="{{document}}", answer_tokens=32, lanes=1, parallel=8)
        job = (await submission.submit_job(engine, job_setup.settings, wanted)).job
        assert (job.plan.model, job.plan.api) == ("tiny-llama", "completions")
        with worker_at(job_setup, processes=1) as worker:
            deadline = time.monotonic() + 600
            while (shown := await commands.shown_job(engine, job_setup.settings, job.id)).state == "running":
                assert time.monotonic() < deadline, worker.log.read_text(errors="replace")[-3000:]
                await asyncio.sleep(1)
        assert shown.state == "completed", shown.job.reason
        assert (shown.progress.done, shown.progress.failed) == (COUNT, 0)
        assert shown.progress.read > 30 * COUNT  # its tokens are bytes
        assert shown.progress.written >= COUNT
    finally:
        await engine.close()
