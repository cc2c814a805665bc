"""Text of HTML at the same offsets: what is markup becomes blank, so positions still point into the stored text."""

import html
import re

_MARKUP = re.compile(
    r"<!--.*?-->"
    r"|<(script|style)\b[^<>]*>.*?</\1\s*>"
    r"|</?[a-zA-Z][^<>]*>"
    r"|<![a-zA-Z][^<>]*>",
    re.DOTALL | re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
SOFT_HYPHEN = "\N{SOFT HYPHEN}"  # fills up an entity: tokenizers drop it, so `caf&eacute;s` stays one word


def blanked(text: str) -> str:
    """Return a text of the same length with tags, comments, scripts and styles as spaces, and entities as characters.

    An entity that stands for white space, or for more characters than it has, is blank.
    """
    if "<" in text:
        text = _MARKUP.sub(lambda match: " " * len(match[0]), text)
    return _ENTITY.sub(_character, text) if "&" in text else text


def has_markup(text: str) -> bool:
    """Return whether a text has a tag, a comment or an entity."""
    return bool(_MARKUP.search(text) or any(html.unescape(match[0]) != match[0] for match in _ENTITY.finditer(text)))


def _character(match: re.Match[str]) -> str:
    entity = match[0]
    character = html.unescape(entity)
    if character == entity:  # a name that HTML does not have, such as a parameter of a URL
        return entity
    if character.isspace() or len(character) > len(entity):
        return " " * len(entity)
    return character + SOFT_HYPHEN * (len(entity) - len(character))
