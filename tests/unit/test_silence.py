"""Silent replies: which replies are silent, and a stream that never shows a part of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.delivery import NO_REPLY, Silence, is_silent

pytestmark = pytest.mark.mission("Y11")

SILENT = [
    "NO_REPLY",
    "  \n\tNO_REPLY",
    "NO_REPLY\n",
    "NO_REPLY and then a thousand words",
    "NO_REPLY\n\nI have nothing to add.",
    "\u2003NO_REPLY\u00a0x",
    "NO_REPLY NO_REPLY",
]
DELIVERED = [
    "",
    " \n ",
    "NO_REPLYfoo",
    "NO_REPL",
    "NO",
    "N",
    "no_reply",
    "NO_REPLY.",
    "NO_REPLYNO_REPLY",
    '"NO_REPLY"',
    "The word is NO_REPLY",
    "N NO_REPLY",
    "NO REPLY",
    "_NO_REPLY",
    "\u200bNO_REPLY",
    "NONO_REPLY",
]


def streamed(chunks: list[str]) -> tuple[str, bool, list[str]]:
    """Return the delivered text, whether the reply was silent, and the text after each chunk."""
    silence = Silence()
    told = [silence.feed(chunk) for chunk in chunks]
    rest, silent = silence.finish()
    return "".join(told) + rest, silent, told


@pytest.mark.parametrize("text", SILENT)
def test_a_reply_whose_first_token_is_the_word_is_silent(text: str) -> None:
    """Any text may follow the word."""
    assert is_silent(text)


@pytest.mark.parametrize("text", DELIVERED)
def test_any_other_reply_is_delivered(text: str) -> None:
    """A reply that starts with the letters of the word, or mentions it later, is delivered."""
    assert not is_silent(text)


@pytest.mark.parametrize("text", [*SILENT, *DELIVERED])
def test_a_stream_decides_as_the_whole_text_does(text: str) -> None:
    """The result is the same letter by letter and at once."""
    expected = ("" if is_silent(text) else text, is_silent(text))
    assert streamed(list(text))[:2] == expected
    assert streamed([text])[:2] == expected


def test_nothing_is_shown_while_it_could_become_the_word() -> None:
    """Even the whole word is held, because the next letter may change it."""
    assert streamed([" ", "NO", "_RE", "PLY", "foo", "bar"])[2] == ["", "", "", "", " NO_REPLYfoo", "bar"]
    assert streamed(["NO", "T", " now"])[2] == ["", "NOT", " now"]
    assert streamed(["\n", "\n", "Hello", " you"])[2] == ["", "", "\n\nHello", " you"]


def test_a_stream_tells_as_soon_as_it_is_decided() -> None:
    """A typing indicator need not wait for the end."""
    silence = Silence()
    assert silence.silent is None
    silence.feed("NO_REPLY")
    assert silence.silent is None
    silence.feed(" ")
    assert silence.silent is True
    spoken = Silence()
    spoken.feed("Hi")
    assert spoken.silent is False


def test_what_was_held_comes_at_the_end() -> None:
    """A reply that stops inside the word is delivered."""
    silence = Silence()
    assert silence.feed(" NO_RE") == ""
    assert silence.finish() == (" NO_RE", False)
    assert silence.finish() == ("", False)


def test_the_end_decides_about_the_word_alone() -> None:
    """The word alone is silent."""
    silence = Silence()
    silence.feed("NO_REPLY")
    assert silence.finish() == ("", True)
    assert silence.silent is True


texts = st.lists(
    st.sampled_from([NO_REPLY, *NO_REPLY, "NO", "NO_RE", "PLY", " ", "\n", "\u2003", "x", "é", "hello"]), max_size=12
).map("".join)


@given(texts | st.text(), st.data())
def test_everything_or_nothing_is_delivered(text: str, data: st.DataObject) -> None:
    """This holds for any text and any chunks."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    delivered, silent, told = streamed(chunks)
    assert silent == is_silent(text)
    assert delivered == ("" if silent else text)
    assert not silent or not any(told)


@given(texts, texts)
def test_what_is_held_could_still_become_silent(text: str, more: str) -> None:
    """Text is not held longer than necessary."""
    silence = Silence()
    told = silence.feed(text)
    if silence.silent is None:
        assert told == ""
        assert NO_REPLY.startswith(text.strip())
    elif silence.silent is False:
        assert told == text
        assert not is_silent(text + more)
