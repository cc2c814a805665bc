"""The committed reference pages are what the code says today."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from es_ttc.encoders.models import MODELS

DOCS = Path(__file__).parents[2] / "docs"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(_generator().PAGES))
def test_page_is_current(page: str) -> None:
    committed = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert committed == _generator().PAGES[page](), "run `make docs`"


def test_table_of_encoders_is_current() -> None:
    lines = (DOCS / "how-to" / "choose-an-encoder.md").read_text(encoding="utf-8").splitlines()
    prompts = ("none", "of queries", "of both")
    for model in MODELS.values():
        if model.short == "colbert-small":  # on the page of late-interaction models
            continue
        [row] = (line for line in lines if line.startswith(f"| `{model.short}`"))
        _, public, extra, _, *rest = (cell.strip() for cell in row.strip("|").split("|"))
        assert (public, extra) == (model.public, f"`es-ttc[{model.extras[model.default_backend]}]`")
        pooling = "CLS" if model.pooling == "cls" else model.pooling
        assert rest == [str(model.max_length), pooling, prompts[len(model.prompts)], model.licence]
