"""The committed reference pages are what the code says today."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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
