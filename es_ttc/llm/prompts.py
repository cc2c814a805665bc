"""Prompts as files, with checked placeholders and a hash as the version; and the JSON in answers to them."""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from es_ttc.common.configuration_files import read_text
from es_ttc.errors import ConfigurationError

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}")
_MAX_LENGTH = 100_000  # characters; a prompt file is a page or two


@dataclass(frozen=True)
class Prompt:
    """A prompt with placeholders, written ``{{query}}``."""

    name: str
    text: str

    @cached_property
    def version(self) -> str:
        """A hash of the text: a changed text is another version."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def render(self, **values: str) -> str:
        """Return the text with its placeholders replaced; values are never read as placeholders."""
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.text)


def read_prompt(path: Path, placeholders: Collection[str]) -> Prompt:
    """Read a prompt from a file, in which each of the placeholders occurs, and no other."""
    return checked_prompt(path.name, read_text(path), placeholders)


def checked_prompt(name: str, text: str, placeholders: Collection[str]) -> Prompt:
    """Return a prompt with a text; see :func:`read_prompt`."""
    if len(text) > _MAX_LENGTH:
        raise ConfigurationError(f"the prompt [{name}] is longer than {_MAX_LENGTH:,} characters: shorten it")
    found = set(_PLACEHOLDER.findall(text))
    for missing in sorted(set(placeholders) - found):
        raise ConfigurationError(f"the prompt [{name}] lacks its placeholder: write {{{{{missing}}}}} where it belongs")
    for unknown in sorted(found - set(placeholders)):
        known = ", ".join(f"{{{{{one}}}}}" for one in sorted(placeholders))
        raise ConfigurationError(f"the prompt [{name}] has an unknown placeholder {{{{{unknown}}}}}: known are {known}")
    return Prompt(name, text)


_DECODER = json.JSONDecoder()


def first_json(text: str) -> Any | None:
    """Return the first complete JSON object or list in a text, or None.

    Examples:
        >>> first_json('Here you are: ```json {"phrases": ["aspirin"]} ```')
        {'phrases': ['aspirin']}
        >>> first_json('{"phrases": ["aspi') is None
        True
    """
    for start, char in enumerate(text):
        if char not in "{[":
            continue
        try:
            value, _ = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError:
            continue
        except RecursionError:
            return None
        return value
    return None
