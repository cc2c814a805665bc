"""Find JSON in a model's output: inside prose, in a code fence, truncated."""

import json
from typing import Any

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
