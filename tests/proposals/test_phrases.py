import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.proposals.document_frequency import Frequencies, by_frequency, document_frequencies
from es_ttc.enrichment.proposals.phrases import (
    MAX_PHRASE_WORDS,
    DroppedPhrase,
    DropReason,
    Phrase,
    analyse,
    candidate_phrases,
    contains,
    screen,
)
from es_ttc.errors import InvalidRequest

ENGLISH = {"type": "text", "analyzer": "english"}


@pytest.fixture
async def index(engine: Engine, index_name: str) -> str:
    properties = {"title": ENGLISH, "text": ENGLISH, "plain": {"type": "text"}}
    await engine.create_index(
        index_name,
        {"settings": {"number_of_replicas": 0, "number_of_shards": 2}, "mappings": {"properties": properties}},
    )
    documents = [
        {"title": "Heart attacks", "text": "Aspirin lowers the risk of a heart attack."},
        {"title": "Attack", "text": "The army began its attack with heart."},
        {"title": "Aspirin", "text": "A drug against pain."},
        {"title": "Nothing", "text": "else"},
    ]
    for number, document in enumerate(documents):
        await engine.request("PUT", f"/{index_name}/_doc/{number}", body=document)
    await engine.refresh(index_name)
    return index_name


def test_list_signs_quotes_and_blanks_are_taken_off() -> None:
    proposals = ["- Heart  attack", "2) “cardiac arrest”", "* heart attack.", "(c) MI", "", "  ...  ", "a) stroke"]
    assert candidate_phrases(proposals) == ["Heart attack", "cardiac arrest", "MI", "stroke"]


def test_a_longer_proposal_is_cut_into_windows_and_a_sentence_is_none() -> None:
    assert candidate_phrases(["risk of heart attack"]) == ["risk of heart", "of heart attack"]
    assert candidate_phrases(["this is a whole sentence about all the risks of attacks"]) == []
    assert candidate_phrases(["a b c", "d"], limit=1) == ["a b c"]


@given(st.lists(st.text(max_size=60), max_size=20))
def test_whatever_a_model_writes_phrases_are_short_clean_and_different(proposals: list[str]) -> None:
    found = candidate_phrases(proposals)
    assert all(1 <= len(phrase.split()) <= MAX_PHRASE_WORDS and phrase == " ".join(phrase.split()) for phrase in found)
    assert len({phrase.casefold() for phrase in found}) == len(found)


def test_screening_says_why() -> None:
    kept, dropped = screen(
        ["Cars", "car", "the", "fast car", "red car"],
        [("car",), ("car",), (), ("fast", "car"), ("red", "car")],
        [("a", "fast", "car", "drive")],
    )
    assert kept == [Phrase("red car", ("red", "car"))]
    assert dropped == [
        DroppedPhrase("Cars", DropReason.IN_TEXT),
        DroppedPhrase("car", DropReason.IN_TEXT),
        DroppedPhrase("the", DropReason.NOTHING_LEFT),
        DroppedPhrase("fast car", DropReason.IN_TEXT),
    ]
    assert screen(["a", "A"], [("a",), ("a",)], [])[1] == [DroppedPhrase("A", DropReason.REPEATED)]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
def test_containing_is_what_a_search_for_the_joined_tokens_finds(sequence: list[str], phrase: list[str]) -> None:
    assert contains(tuple(sequence), tuple(phrase)) == ("".join(phrase) in "".join(sequence))


async def test_texts_are_analysed_as_the_field_is(engine: Engine, index: str) -> None:
    texts = ["Heart attacks", "", "the", "🫀 Running dogs 𝔘", "naïve café"]
    assert await analyse(engine, index, "text", texts) == [
        ("heart", "attack"),
        (),
        (),
        ("🫀", "run", "dog", "𝔘"),
        ("naïv", "café"),
    ]
    assert (await analyse(engine, index, "plain", ["Heart attacks"])) == [("heart", "attacks")]
    assert await analyse(engine, index, "text", []) == []


async def test_long_texts_lose_no_token_and_no_order(engine: Engine, index: str) -> None:
    words = [f"w{number}" for number in range(12_000)]
    long, short = " ".join(words), "short one"
    assert await analyse(engine, index, "plain", [short, long, short]) == [
        ("short", "one"),
        tuple(words),
        ("short", "one"),
    ]
    # Scripts without blanks have a token a character.
    assert await analyse(engine, index, "plain", ["漢" * 20_001]) == [("漢",) * 20_001]


async def test_frequencies_are_those_of_a_search_for_each_phrase(engine: Engine, index: str) -> None:
    phrases = ["heart attack", "Attacks", "aspirin", "the", "zebra", "attack heart", "heart attack"]
    found = await document_frequencies(engine, index, ["title", "text"], phrases)
    assert found.documents == 4
    assert found.counts == {"heart attack": 1, "Attacks": 2, "aspirin": 2, "the": 0, "zebra": 0, "attack heart": 0}
    for phrase, count in found.counts.items():
        query = {"bool": {"should": [{"match_phrase": {field: phrase}} for field in ("title", "text")]}}
        assert await engine.count(index, query) == count
    assert (await document_frequencies(engine, index, ["text"], [])).documents == 4


async def test_more_phrases_than_one_search_takes(engine: Engine, index: str) -> None:
    phrases = [*(f"zebra{number}" for number in range(2_100)), "aspirin"]
    found = await document_frequencies(engine, index, ["title", "text"], phrases)
    assert len(found.counts) == 2_101
    assert found.counts["aspirin"] == 2


def test_the_filter_is_the_papers() -> None:
    phrases = [Phrase(name, (name,)) for name in ("new", "rare", "limit", "common")]
    frequencies = Frequencies(100, {"new": 0, "rare": 1, "limit": 10, "common": 11})
    kept, dropped = by_frequency(phrases, frequencies, tau=0.1, present=False)
    assert [phrase.text for phrase in kept] == ["new", "rare", "limit"]
    assert dropped == [DroppedPhrase("common", DropReason.TOO_COMMON, 11)]
    kept, dropped = by_frequency(phrases, frequencies, tau=0.1, present=True)
    assert [phrase.text for phrase in kept] == ["rare", "limit"]
    assert dropped[0] == DroppedPhrase("new", DropReason.ABSENT, 0)


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan")])
def test_a_tau_that_is_no_share_is_refused(tau: float) -> None:
    with pytest.raises(InvalidRequest, match=r"\[tau\]"):
        by_frequency([], Frequencies(1, {}), tau=tau, present=False)
