"""The search prompt: queries are answered, commands obeyed, every way out is clean."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from es_ttc.cli.prompt import Choices, DemoPrompt
from es_ttc.errors import InvalidRequest


def talk(*lines: str | type[BaseException]) -> tuple[str, list[tuple[str, Choices]], Choices]:
    """Feed lines (or exceptions, as pressing a key raises them) to a prompt; it must end by itself."""
    asked: list[tuple[str, Choices]] = []
    waiting: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read(_: str) -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    def answer(text: str, choices: Choices) -> str:
        asked.append((text, replace(choices)))
        if text == "refused":
            raise InvalidRequest("it cannot be meant")
        if text == "interrupted":
            raise KeyboardInterrupt
        return f"answer to {text}"

    console = Console(file=io.StringIO(), width=100)
    prompt = DemoPrompt(
        choices=Choices("books", "spectral"),
        indices=["books", "films"],
        methods=["bm25", "spectral"],
        others=["llm_pick"],
        answer=answer,
        curl=lambda text, choices: f"curl {choices.index} '{text}'",
        console=console,
        read=read,
    )
    prompt.run()
    assert next(waiting, None) is None or lines[-1] in (":quit", KeyboardInterrupt, EOFError)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), asked, prompt.choices


@pytest.mark.parametrize("end", [[EOFError], [KeyboardInterrupt, KeyboardInterrupt], [":quit"]])
def test_prompt_answers_until_it_is_ended(end: list[str | type[BaseException]]) -> None:
    output, asked, _ = talk("  round up ", "", KeyboardInterrupt, "second", *end)
    assert [text for text, _ in asked] == ["round up", "second"]
    assert "answer to round up" in output


def test_a_method_that_cannot_be_served_is_not_chosen() -> None:
    output, asked, choices = talk(":method llm_pick", "one")
    assert "[llm_pick] needs more than the demonstration has" in output
    assert asked[0][1].method == choices.method == "spectral"


def test_commands_change_what_the_next_query_is_asked_with() -> None:
    _, asked, _ = talk("one", ":method bm25", ":index films", ":size 7", ":compare", "two", ":compare", "three")
    assert asked[0][1] == Choices("books", "spectral", 5, compare=False)
    assert asked[1][1] == Choices("films", "bm25", 7, compare=True)
    assert asked[2][1].compare is False


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (":method spectrl", "did you mean spectral? choose one of bm25, spectral"),
        (":method", "choose one of bm25, spectral (now spectral)"),
        (":index nothing", "choose one of books, films"),
        (":size 0", "choose 1 to 50"),
        (":size many", "choose 1 to 50"),
        (":nonsense [red]", "there is no :nonsense; :help lists"),
    ],
)
def test_a_wrong_command_says_what_is_right_and_changes_nothing(command: str, told: str) -> None:
    output, _, choices = talk(command)
    assert told in output
    assert choices == Choices("books", "spectral")


def test_errors_and_interruptions_are_told_and_the_prompt_goes_on() -> None:
    output, asked, _ = talk("refused", "interrupted", "fine")
    assert "it cannot be meant" in output
    assert "stopped" in output
    assert "answer to fine" in output
    assert len(asked) == 3


def test_help_and_curl_say_how() -> None:
    output, _, _ = talk("big blue", ":curl", ":help")
    assert "curl books 'big blue'" in output
    assert all(command in output for command in (":method NAME", ":index NAME", ":quit", "bm25, spectral"))
