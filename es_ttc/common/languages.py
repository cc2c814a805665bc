"""The language of a text: by its script, and by frequent words where the script is Latin."""

import re
from collections import Counter
from collections.abc import Sequence

_SCRIPTS = {
    "Japanese": re.compile("[\u3040-\u30ff]"),
    "Korean": re.compile("[\u1100-\u11ff\uac00-\ud7af]"),
    "Chinese": re.compile("[\u3400-\u9fff\uf900-\ufaff]"),
    "Cyrillic": re.compile("[\u0400-\u052f]"),
    "Greek": re.compile("[\u0370-\u03ff]"),
    "Hebrew": re.compile("[\u0590-\u05ff]"),
    "Arabic": re.compile("[\u0600-\u06ff\u0750-\u077f]"),
    "Indic": re.compile("[\u0900-\u0dff]"),
    "Thai": re.compile("[\u0e00-\u0e7f]"),
    "Latin": re.compile("[A-Za-z\u00c0-\u024f]+"),
}
"""Letters; a Latin word counts once, because one character of the other scripts may be a word."""
_FREQUENT = {
    "English": "the of and to is that for with this from are on at you we",
    "German": "der die das und ist mit nicht ein eine für von auf",
    "French": "le les et des est une du dans pour sur avec",
    "Spanish": "el los las y del que una por para con",
    "Italian": "il che è per della gli con una sono nel",
    "Portuguese": "os que não uma para com do da em as",
    "Dutch": "het een en van niet met voor zijn op aan",
    "Swedish": "och att det som är av för med till inte",
    "Danish": "og at det er som af har med til ikke",
    "Norwegian": "og at det er som av har med til ikke",
    "Finnish": "ja ei se että oli hän mutta ovat kun tai",
    "Polish": "w nie się że jest jak przez dla oraz są",
    "Czech": "v se je že na jsou ale jako při není",
    "Hungarian": "az és hogy nem egy van meg vagy csak",
    "Romanian": "și în cu este pe care nu din sau să",
    "Turkish": "ve bir bu için ile çok daha olarak olan gibi",
    "Indonesian": "yang dan dengan untuk ini itu dari tidak pada adalah",
}
_WORDS = {language: frozenset(words.split()) for language, words in _FREQUENT.items()}
_READ = 2_000  # characters of a text that are looked at
_READ_TEXTS = 200
_MIN_SHARE = 0.1  # share of a text's letters from which on kana make it Japanese rather than Chinese
_MIN_FREQUENT = 0.02  # share of frequent words among a text's words from which on they tell its language
LATIN = "Latin"
HAN_HIRAGANA = "\u3005\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Ranges of a regular expression: letters that are words of their own to Lucene's standard tokenizer."""
SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Ranges of a regular expression: Thai, Lao, Burmese and Khmer, which have no spaces between words."""


def language_of(text: str) -> str:
    """Return a text's language, its script where that is all that can be known, or "" without letters."""
    text = text[:_READ].lower()
    letters = {name: len(script.findall(text)) for name, script in _SCRIPTS.items()}
    total = sum(letters.values())
    if not total:
        return ""
    if letters["Japanese"] >= _MIN_SHARE * total:
        return "Japanese"
    script = max(letters, key=letters.__getitem__)
    if script != LATIN:
        return script
    words = Counter(re.findall(r"\w+", text))
    hits = {language: sum(words[word] for word in frequent) for language, frequent in _WORDS.items()}
    best, second = sorted(hits.values(), reverse=True)[:2]
    enough = best >= max(2, _MIN_FREQUENT * words.total())
    return max(hits, key=hits.__getitem__) if enough and best > second else LATIN


def common_language(texts: Sequence[str]) -> str:
    """Return the most frequent language of the first texts, as :func:`language_of` names it; "" if none is known."""
    found = Counter(language_of(text) for text in texts[:_READ_TEXTS])
    del found[""]
    return found.most_common(1)[0][0] if found else ""
