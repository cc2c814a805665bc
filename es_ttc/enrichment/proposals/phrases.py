"""Candidate phrases from a model's proposals: cleaned, cut into 1-3 words, analysed as the field analyses them.

Two phrases are the same, and a phrase occurs in a text, if the field's analyzer gives the same tokens: phrases that
differ only in case or ending match the same documents. Pure functions, and one call of the engine's `_analyze`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from es_ttc.engine.protocol import SearchApi

MAX_PHRASE_WORDS = 3  # words of a phrase; SIRA's code has 2, its paper speaks of n-grams (section 3.2)
MAX_PROPOSAL_WORDS = 8  # words of a proposal that is cut into phrases; a longer one is a sentence
_PIECE = 8_000
"""Maximum number of characters per `_analyze`: an index allows 10,000 tokens (``index.analyze.max_token_count``), of at
least 1 character each."""

_LIST_SIGN = re.compile(r"^\s*(?:[-*•·–—]+|\(?(?:\d{1,3}|[a-zA-Z])[.):])\s+")  # noqa: RUF001 - dashes
_EDGES = " \t\r\n.,;:!?\"'`´‘’“”«»()[]{}<>|*_#=~"  # noqa: RUF001 - quotation marks that models write

Tokens = tuple[str, ...]  # the tokens of a text, in order


class DropReason(StrEnum):
    """Why a phrase is dropped; each is the end of a sentence."""

    NOTHING_LEFT = "the analyzer leaves nothing of it"
    TOO_LONG = "it is a sentence, no phrase"
    REPEATED = "it is proposed twice"
    IN_TEXT = "it stands in the text already"
    TOO_COMMON = "too many documents have it"
    ABSENT = "no document has it"
    UNLIKE = "the encoder finds it unlike the document"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A candidate phrase."""

    text: str
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class DroppedPhrase:
    """A dropped phrase."""

    text: str
    reason: DropReason
    documents: int | None = None
    similarity: float | None = None


def candidate_phrases(
    proposals: Iterable[str], *, most_words: int = MAX_PHRASE_WORDS, limit: int | None = None
) -> list[str]:
    """Return phrases of 1 to ``most_words`` words, without list signs and quotes, each once, in order.

    A longer proposal is cut into all its windows of ``most_words`` words; one of more than eight words is dropped.
    """
    found: dict[str, str] = {}
    for proposal in proposals:
        words = clean_phrase(proposal).split()
        if not words or len(words) > MAX_PROPOSAL_WORDS:
            continue
        for start in range(max(1, len(words) - most_words + 1)):
            phrase = clean_phrase(" ".join(words[start : start + most_words]))
            if phrase:
                found.setdefault(phrase.casefold(), phrase)
    return list(found.values())[:limit]


def clean_phrase(proposal: str) -> str:
    """Return a proposal without list sign, without quotes and punctuation at its ends, with single spaces."""
    return " ".join(_LIST_SIGN.sub("", proposal).strip(_EDGES).split())


def screen(
    texts: Sequence[str], analysed: Sequence[Tokens], own: Sequence[Tokens]
) -> tuple[list[Phrase], list[DroppedPhrase]]:
    """Drop phrases that are empty, repeated, or in the text already."""
    kept: dict[Tokens, Phrase] = {}
    dropped: list[DroppedPhrase] = []
    for text, tokens in zip(texts, analysed, strict=True):
        if not tokens:
            dropped.append(DroppedPhrase(text, DropReason.NOTHING_LEFT))
        elif tokens in kept:
            dropped.append(DroppedPhrase(text, DropReason.REPEATED))
        elif any(contains(sequence, tokens) for sequence in own):
            dropped.append(DroppedPhrase(text, DropReason.IN_TEXT))
        else:
            kept[tokens] = Phrase(text, tokens)
    return list(kept.values()), dropped


def contains(sequence: Tokens, phrase: Tokens) -> bool:
    """Return whether a phrase's tokens are adjacent in a sequence; tokens that an analyzer drops are ignored."""
    if len(phrase) == 1:
        return phrase[0] in sequence
    first, length = phrase[0], len(phrase)
    return any(token == first and sequence[at : at + length] == phrase for at, token in enumerate(sequence))


async def analyse(engine: SearchApi, index: str, field: str, texts: Sequence[str]) -> list[Tokens]:
    """Return the tokens of texts by a field's analyzer.

    Short texts are sent together, long ones in parts cut at spaces, so that neither the number of calls nor the number
    of tokens per call grows with them.
    """
    found: list[list[str]] = [[] for _ in texts]
    pieces = [(position, piece) for position, text in enumerate(texts) for piece in _pieces(text)]
    for batch in _batches(pieces):
        body = {"field": field, "text": [piece for _, piece in batch]}
        answer = await engine.request("POST", f"/{quote(index, safe='')}/_analyze", body=body)
        # The engine counts characters of the texts in one row, one apart, in UTF-16.
        ends = []
        end = 0
        for _, piece in batch:
            end += _utf16_length(piece) + 1
            ends.append(end)
        at = 0
        for token in answer["tokens"]:
            while token["start_offset"] >= ends[at]:
                at += 1
            found[batch[at][0]].append(token["token"])
    return [tuple(tokens) for tokens in found]


def _pieces(text: str) -> Iterable[str]:
    """Cut a text at spaces into parts for one call each; a longer word is cut inside."""
    start = 0
    while len(text) - start > _PIECE:
        cut = text.rfind(" ", start, start + _PIECE)
        cut = start + _PIECE if cut <= start else cut
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _batches(pieces: Sequence[tuple[int, str]]) -> Iterable[list[tuple[int, str]]]:
    batch: list[tuple[int, str]] = []
    size = 0
    for piece in pieces:
        if batch and size + len(piece[1]) > _PIECE:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece[1]) + 1
    if batch:
        yield batch


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
