"""The wording of the messages that users see most: messages.json has it, beside what is wrong.

Other tests assert the type of an error and the `[field]` that it names. `ES_TTC_GOLDEN=write pytest tests/golden`
writes the file again; a new case is a row with an empty message.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from es_ttc.cli.app import run
from es_ttc.encoders import load_encoder
from es_ttc.errors import EsTtcError
from es_ttc.index.ingest import Inputs
from es_ttc.index.ingest.readers import open_source
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.evaluation.methods import resolve
from es_ttc.lab.evaluation.tuning import grid_candidates
from es_ttc.lab.judging import formats
from es_ttc.lab.learning.query_log import read_log
from es_ttc.reranking.rerankers import Rerankers
from es_ttc.rescorers.learned.fields import parse_fields
from es_ttc.rescorers.learned.model import read_models
from es_ttc.settings import EngineSettings
from tests.evaluation.test_datasets import write
from tests.ingest.test_prepare import prepared
from tests.rescorers.test_learned import stump, written
from tests.serving.client import call
from tests.serving.conftest import SearchStack

ON_ONE_ENGINE = True
FILE = Path(__file__).with_name("messages.json")
MESSAGES: dict[str, list[tuple[Any, str]]] = {
    kind: [(case, message) for case, message in rows] for kind, rows in json.loads(FILE.read_bytes()).items()
}


def read_settings(text: str) -> object:
    Path("es-ttc.toml").write_text(text)
    return EngineSettings()


def read_ranking_model(model: dict[str, Any]) -> object:
    """Read a file of a model with other trees, or with other keys beside them."""
    written(Path("models"), model.get("name", "mine"), {**stump(**model.get("trees", {})), **model.get("keys", {})})
    return read_models(Path("models"))


def read_table(header: str) -> object:
    Path("table.csv").write_text(f"{header}\n1,2,3\n")
    return list(Inputs([open_source("table.csv")]).records(0))


def read_judgements(form: str, content: str) -> object:
    Path("judgements").write_text(content)
    return formats.read_judgements(formats.Format(form), Path("judgements"), {"q1": "text"}, split="test", highest=None)


def read_query_log(name: str, content: str) -> object:
    Path(name).write_text(content)
    return read_log(Path(name))


CALLS: dict[str, Callable[[Any], object]] = {
    "model name": load_encoder,
    "settings file": read_settings,
    "ranking model": read_ranking_model,
    "numeric fields": parse_fields,
    "collection": lambda changes: load_collection(write(Path("collection"), **changes)),
    "document": lambda case: prepared(*case),
    "table header": read_table,
    "judgements file": lambda case: read_judgements(*case),
    "query log": lambda case: read_query_log(*case),
    "methods": lambda case: resolve(*case),
    "grid of a method": lambda case: grid_candidates(case[0], grid=case[1]),
    "reranker": lambda settings: Rerankers({"mine": settings}),
}
"""What each kind of case is given to; the working folder is empty."""


def check(kind: str, said: list[str]) -> None:
    """Compare messages with the file, or write them into it."""
    rows = [(case, message) for (case, _), message in zip(MESSAGES[kind], said, strict=True)]
    if os.environ.get("ES_TTC_GOLDEN") == "write":
        MESSAGES[kind] = rows
        lines = [
            f" {json.dumps(name)}: [\n  " + ",\n  ".join(json.dumps(row) for row in table) + "\n ]"
            for name, table in MESSAGES.items()
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert rows == MESSAGES[kind]
    assert not [message for message in said if "\n" in message or len(message) > 600]


@pytest.mark.parametrize("kind", CALLS)
def test_refused_values_have_the_golden_messages(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = []
    for number, (case, _) in enumerate(MESSAGES[kind]):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        with pytest.raises(EsTtcError) as caught:
            CALLS[kind](case)
        said.append(f"{type(caught.value).__name__}: {caught.value}".replace(str(folder), "FOLDER"))
    check(kind, said)


def test_refused_commands_have_the_golden_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("small set"))
    said = []
    for arguments, _ in MESSAGES["command"]:
        status = run(arguments)
        printed = capsys.readouterr()
        assert (printed.out, "Traceback" in printed.err) == ("", False)
        said.append(f"{status}: {printed.err.splitlines()[-1]}")
    check("command", said)


def test_refused_requests_have_the_golden_messages(stack: SearchStack) -> None:
    said = []
    for (target, body), _ in MESSAGES["request"]:
        reply = call(stack.gateway, "POST", f"/{stack.index}/_search" if target == "_search" else target, body)
        assert reply.status == 400, (body, reply.body)
        said.append(f"{reply.json()['error']['type']}: {reply.reason}")
    check("request", said)
