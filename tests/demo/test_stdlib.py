"""The running Python's library as a collection."""

import subprocess
import sys
from pathlib import Path

import pytest

from es_ttc.lab.demo import stdlib
from es_ttc.lab.demo.files import read_rows
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from tests.support.beir import write_collection


@pytest.fixture(scope="module")
def collection() -> Collection:
    return stdlib.generate()


@pytest.fixture(scope="module")
def texts(collection: Collection) -> dict[str, str]:
    return {document.id: document.text for document in collection.documents}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("math", r"ceil(x, /): Return the ceiling of x as an Integral."),
        ("builtins", "sorted(iterable, /, *, key=None, reverse=False): Return a new list"),
        ("shutil", "rmtree(path"),
        ("time", "sleep("),
        ("itertools", "permutations"),
        ("urllib.parse", "urlsplit(url"),
        ("collections", "deque"),
        ("datetime", "timedelta"),
        ("pathlib", "Path.glob(self"),
        ("os", "listdir("),
        ("csv", "DictReader"),
        ("unittest.mock", "patch("),
    ],
)
def test_a_module_is_told_by_its_members_signatures_and_docstrings(
    texts: dict[str, str], module: str, line: str
) -> None:
    assert line in texts[module]


def test_compiled_functions_are_described_as_the_interpreter_describes_them(texts: dict[str, str]) -> None:
    (line,) = [line for line in texts["time"].splitlines() if line.startswith("sleep(")]
    assert "Delay execution" in line
    assert "$module" not in "".join(texts.values())


def test_no_document_is_empty_private_or_left_out(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        assert text.strip()
        assert not any(part.startswith("_") for part in name.split("."))
        assert name.split(".")[0] not in stdlib.LEFT_OUT


def test_questions_name_modules_of_this_python(collection: Collection, texts: dict[str, str]) -> None:
    written = read_rows("stdlib_questions.tsv")
    assert len(written) >= 60
    assert len(collection.queries) > 0.9 * len(written)
    assert all(set(judged) <= set(texts) for judged in collection.qrels.values())
    assert len({question for question, _ in written}) == len(written)


def test_a_question_without_an_answer_here_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib, "LEFT_OUT", stdlib.LEFT_OUT | {"csv", "sqlite3"})
    kept = set(stdlib.generate().queries.values())
    asked = dict(read_rows("stdlib_questions.tsv"))
    assert set(asked) - kept == {question for question, answers in asked.items() if answers in ("csv", "sqlite3")}


def test_modules_with_side_effects_are_read_without_being_run() -> None:
    program = "import sys; from es_ttc.lab.demo import stdlib; stdlib.generate(); print(*sys.modules)"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"this", "antigravity", "idlelib", "tkinter", "turtle", "curses"} & set(outcome.stdout.split())


def test_stdlib_collection_is_read_back_from_its_folder(collection: Collection, tmp_path: Path) -> None:
    assert load_collection(write_collection(collection, tmp_path)) == collection
