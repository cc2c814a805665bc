"""JSON in what a model wrote: beside prose, in a code fence, broken off."""

import json
from typing import Any

_DECODER = json.JSONDecoder()


def first_json(text: str) -> Any | None:
    """Return the first JSON object or list that a text holds, or None where it holds none that is whole.

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
