"""Finding text in one session: on all branches and in all kinds of entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import assistant, user
from http_rig import http
from page_sessions import calling, result, told_story
from sessile import Store
from sessile.core.words import pieces
from sessile.library import find_in_session
from sessile.storage.search import Needle
from sessions import begun

pytestmark = [pytest.mark.anyio, pytest.mark.mission("B3")]

TEXTS = ['say "hello"\n', "naïve ÜBER", "привет МИР", "日本語", "tab\tand / slash", "emoji 🙂", "plain hello again"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_words_are_found_on_all_branches(tmp_path: Path) -> None:
    """Text, tool calls and results match regardless of case, and each entry is returned once."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)

        async def found(words: str) -> list[int]:
            told = await gate.get("/v1/view/find", id=session.id, q=words)
            assert told["total"] == len(told["numbers"]) and told["more"] is False
            return list(told["numbers"])

        assert await found("ANOTHER") == [6] and await found("webhook") == [0] and await found("run C1") == [1]
        assert await found("second line") == [2] and await found("nowhere") == [] and await found("start") == [4]
        assert (await gate.refusal("GET", "/v1/view/find", {"id": session.id, "q": ""}))[0] == 400


@pytest.mark.parametrize("escaped", [False, True])
def test_every_text_is_found_in_any_spelling_and_case(tmp_path: Path, escaped: bool) -> None:
    """The search finds the same entries as a scan, for any script and with escaped JSON."""
    store = Store(tmp_path, durability="process")
    with begun(store) as session:
        for text in TEXTS:
            session.append_message(user(text))
            session.append_message(calling(f"call {text}", "c"))
            session.append_message(result("c", f"gave {text}"))
    if escaped:
        path = Path(session.path)
        path.write_bytes(
            path.read_text().encode("ascii", "backslashreplace").replace(b"\\U0001f642", b"\\ud83d\\ude42")
        )
        path.write_bytes(path.read_bytes().replace(b"\\x", b"\\u00"))
    with store.open(session.path, readonly=True) as stored:
        for text in [*TEXTS, "ü", "ПРИВЕТ", "r", "本", '"', "\n", "/"]:
            for words in (text, text.lower(), text.upper()):
                needle = Needle(words, case=False)
                expected = [n for n, e in enumerate(stored.iter_lines()) if any(needle.spans(t) for _, t in pieces(e))]
                assert find_in_session(store, stored, needle) == expected, words
                assert find_in_session(store, stored, needle, most=2) == expected[:2]
                assert expected or words != text


async def test_more_than_anybody_goes_through_is_not_looked_for(tmp_path: Path) -> None:
    """The number of hits is limited, and `more` is set."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            for number in range(6):
                batch: list[Any] = [{"type": "message", "message": assistant(f"word {number}")} for _ in range(1_000)]
                session.append_many(batch)
        told = await gate.get("/v1/view/find", id=session.id, q="word")
        assert told == {"total": 5_000, "numbers": list(range(5_000)), "more": True}
        assert (await gate.get("/v1/view/find", id=session.id, q="word 4"))["more"] is False
