"""Prompts as files: placeholders checked when they are read, a version by their content."""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from es_ttc.errors import ConfigurationError

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}")
_LONGEST = 100_000  # characters; a prompt file is a page or two


@dataclass(frozen=True)
class Prompt:
    """A prompt with places for what is asked about, written ``{{query}}``.

    Attributes:
        name: What it is called in messages and records.
        text: The whole of it.
    """

    name: str
    text: str

    @cached_property
    def version(self) -> str:
        """A hash of the text: another wording is another version."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def render(self, **values: str) -> str:
        """Return the text with its placeholders filled in; what a value holds is never read as a placeholder."""
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.text)


def read_prompt(path: Path, placeholders: Collection[str]) -> Prompt:
    """Read a prompt from a file.

    Args:
        path: A text file in UTF-8.
        placeholders: Names that must stand in it, each at least once, and no others.

    Raises:
        ConfigurationError: It cannot be read, or its placeholders are not these.
    """
    return checked_prompt(path.name, prompt_text(path), placeholders)


def prompt_text(path: Path) -> str:
    """Return the text of a prompt's file, its placeholders not yet checked.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the prompt [{path}] cannot be read: {error}") from error


def checked_prompt(name: str, text: str, placeholders: Collection[str]) -> Prompt:
    """Make a prompt of a text; see :func:`read_prompt`."""
    if len(text) > _LONGEST:
        raise ConfigurationError(f"the prompt [{name}] is longer than {_LONGEST:,} characters: shorten it")
    found = set(_PLACEHOLDER.findall(text))
    for missing in sorted(set(placeholders) - found):
        raise ConfigurationError(f"the prompt [{name}] lacks its placeholder: write {{{{{missing}}}}} where it belongs")
    for unknown in sorted(found - set(placeholders)):
        known = ", ".join(f"{{{{{one}}}}}" for one in sorted(placeholders))
        raise ConfigurationError(f"the prompt [{name}] has an unknown placeholder {{{{{unknown}}}}}: known are {known}")
    return Prompt(name, text)
