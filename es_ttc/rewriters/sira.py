"""SIRA's query side: a model proposes vocabulary, document frequencies filter it, and one query is built.

Section 3.2 of *Superintelligent Retrieval Agent*: the model predicts vocabulary that relevant documents would use and
the query lacks; a phrase is kept if 0 < DF <= tau |C|; the kept phrases are searched in addition to the query. The
model receives no passage. The answer may be a whole retrieval program (:mod:`es_ttc.rewriters.program`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, ClassVar, Literal

from pydantic import Field

from es_ttc.enrichment.proposals.document_frequency import DEFAULT_TAU, by_frequency
from es_ttc.enrichment.proposals.parsing import proposals
from es_ttc.enrichment.proposals.phrases import Phrase, candidate_phrases, screen
from es_ttc.errors import InvalidRequest
from es_ttc.rewriters import program
from es_ttc.rewriters.atomic import as_entries
from es_ttc.rewriters.base import Corpus, Expansion, Fields, Term
from es_ttc.rewriters.prompts import EXPANSION_SCHEMA
from es_ttc.rewriters.weighted import FieldParams, WeightedRewriter

_MAX_TEXT_LENGTH = 2000  # characters of the text for the model
_TOKENS_A_PHRASE = 8  # maximum number of tokens per phrase of the model's answer, punctuation included
_TOKENS_OF_A_PROGRAM = 24  # the same where each phrase has alternatives and a weight
_EXCERPT = 100
_DEMOTED = 0.5  # factor of the score of a document that an exclusion matches
_INSTRUCTIONS = files("es_ttc.rewriters").joinpath("sketches", "program.txt")


class SiraParams(FieldParams):
    """Parameters of :class:`SiraRewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {
        "weight": (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
        "tau": (0.01, 0.02, 0.05, 0.1, 1.0),
    }

    prompt: str = Field(
        "general",
        pattern=r"^[a-z][a-z0-9_-]{0,50}$",
        description="Name of the prompt: a built-in one, or a file in the gateway's folder of prompts.",
    )
    tau: float = Field(
        DEFAULT_TAU,
        ge=0,
        le=1,
        description="Maximum share of the documents that may contain a phrase; 1 for no filter.",
    )
    phrases: int = Field(10, ge=1, le=50, description="Maximum number of proposed phrases.")
    words: bool = Field(True, description="Whether the single words of a phrase are also filtered and searched.")
    phrase_score: Literal["words", "atomic"] = Field(
        "words",
        description="`words`: a phrase scores the sum of its words' BM25 in each field, as the engine computes it. "
        "`atomic`: phrases and words are entries of one BM25 index, with the IDF of the documents that have them in "
        "any field (SIRA, equation 2).",
    )
    program: bool = Field(
        False,
        description="Whether the model is also asked for weights of its phrases, alternatives, and exclusions. Not for "
        "base models.",
    )
    exclusions: Literal["demote", "remove", "ignore"] = Field(
        "demote",
        description="Documents with a phrase that the model excludes: halve their score, remove them, or keep them.",
    )


class SiraRewriter(WeightedRewriter):
    """Build one weighted BM25 query: the text, and vocabulary that a language model expects in relevant documents.

    The model is called once for each text. Then document frequencies are read with the caller's credentials, and
    phrases are dropped that no document or more than a share `tau` of all documents contain. If the model fails or is
    late, the plain query is used, and the response contains the reason.
    """

    name: ClassVar[str] = "sira"
    Params: ClassVar[type[SiraParams]] = SiraParams
    asks_model: ClassVar[bool] = True

    async def expand(self, text: str, corpus: Corpus, params: SiraParams) -> Expansion:
        """Request proposals, and keep those that pass the document frequency filter."""
        if params.weight == 0 and (params.phrase_score == "words" or not corpus.fields.enrichment):
            return Expansion()
        if params.weight == 0:
            return Expansion(own=(await as_entries(text, (), corpus))[0])
        prompt = corpus.prompt(params.prompt)
        question = prompt.render(query=" ".join(text.split())[:_MAX_TEXT_LENGTH], most=str(params.phrases))
        if params.program:
            if corpus.continues:
                raise InvalidRequest(
                    "parameter [program] of method [sira] needs a model that follows instructions, and the gateway's "
                    "continues texts (ES_TTC_LLM_API=completions): leave it out"
                )
            question = f"{question.rstrip()}\n\n{_INSTRUCTIONS.read_text(encoding='utf-8')}"
        answer = await corpus.ask(
            question,
            max_tokens=params.phrases * (_TOKENS_OF_A_PROGRAM if params.program else _TOKENS_A_PHRASE),
            stop=("\n",) if corpus.continues else (),
            schema=None if corpus.continues else program.PROGRAM_SCHEMA if params.program else EXPANSION_SCHEMA,
        )
        asked = _asked(answer, params)
        if not asked.marks:
            note = f"the model's answer holds no phrases: {' '.join(answer.split())[:_EXCERPT]!r}"
            return Expansion(summary={"prompt": prompt.version, "note": note})
        return await _filtered(text, asked, corpus, params, prompt.version)

    def query(
        self, text: str, fields: Fields, expansion: Expansion | None, params: FieldParams, *, named: bool
    ) -> dict[str, Any]:
        """Return BM25(text) + w BM25(expansion), without or with less of what is excluded."""
        found = super().query(text, fields, expansion, params, named=named)
        mode = params.exclusions if isinstance(params, SiraParams) else "ignore"
        if expansion is None or not expansion.excluded or mode == "ignore" or params.weight == 0:
            return found
        unwanted = [_anywhere(term, fields) for term in expansion.excluded]
        if mode == "remove":
            return {"bool": {"must": [found], "must_not": unwanted}}
        return {"boosting": {"positive": found, "negative": {"bool": {"should": unwanted}}, "negative_boost": _DEMOTED}}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The candidates of an answer, cut into phrases of up to three words before they are counted."""

    marks: Mapping[str, tuple[float, int | None]]  # weight and group of each candidate
    excluded: Sequence[str] = ()  # candidates that speak against a document


def _asked(answer: str, params: SiraParams) -> _Asked:
    if not params.program:
        proposed = candidate_phrases(proposals(answer)[: params.phrases])
        texts = [*proposed, *_single_words(proposed)] if params.words else proposed
        return _Asked(dict.fromkeys(texts, (1.0, None)))
    read = program.retrieval_program(answer)
    marks: dict[str, tuple[float, int | None]] = {}
    words: dict[str, tuple[float, int | None]] = {}
    for place, one in enumerate(read.phrases[: params.phrases]):
        mark = (one.weight, place if len(one.alternatives) > 1 else None)
        cut = candidate_phrases(one.alternatives)
        for phrase in cut:
            marks.setdefault(phrase, mark)
        for word in _single_words(cut) if params.words else ():
            words.setdefault(word, mark)
    # A word that is also a phrase by itself keeps the phrase's place.
    return _Asked(
        {**marks, **{word: mark for word, mark in words.items() if word not in marks}}, candidate_phrases(read.excluded)
    )


async def _filtered(text: str, asked: _Asked, corpus: Corpus, params: SiraParams, version: str) -> Expansion:
    texts = list(asked.marks)
    own, *analysed = await corpus.tokens([text, *texts, *asked.excluded])
    distinct, dropped = screen(texts, analysed[: len(texts)], [own])
    wanted = {phrase.tokens for phrase in distinct}
    unwanted = [
        Phrase(one, tokens)
        for one, tokens in zip(asked.excluded, analysed[len(texts) :], strict=True)
        if tokens and tokens not in wanted
    ]
    frequencies = await corpus.frequencies([phrase.text for phrase in (*distinct, *unwanted)])
    kept, judged = by_frequency(distinct, frequencies, tau=params.tau, present=True)
    against, spared = by_frequency(unwanted, frequencies, tau=params.tau, present=True)
    terms = [
        Term(phrase.text, asked.marks[phrase.text][0], frequencies.counts[phrase.text], asked.marks[phrase.text][1])
        for phrase in kept
    ]
    expansion = Expansion(
        tuple(terms),
        (*dropped, *judged, *spared),
        {"prompt": version, "documents": frequencies.documents},
        tuple(Term(phrase.text, documents=frequencies.counts[phrase.text]) for phrase in against),
    )
    if params.phrase_score == "words":
        return expansion
    words, entries = await as_entries(text, terms, corpus)
    return replace(expansion, terms=entries, own=words)


def _anywhere(term: Term, fields: Fields) -> dict[str, Any]:
    """Return the clause that matches documents with a phrase in one of the text fields: enrichment excludes nothing."""
    return {"multi_match": {"query": term.text, "type": "phrase", "fields": [*fields.names]}}


def _single_words(phrases: Sequence[str]) -> list[str]:
    return [word for phrase in phrases if " " in phrase for word in phrase.split()]
