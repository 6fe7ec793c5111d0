"""The model's view: the context at every entry, and the entries that were removed from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from builders import assistant, user
from http_rig import Http, http
from page_sessions import counted, long_story, told_story
from sessile import Entry, Session
from sessile.core.context import absences
from sessile.storage.base import Row
from sessions import begun, say

pytestmark = [pytest.mark.anyio, pytest.mark.mission("B5")]

Json = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def every_saw(gate: Http, session: Session) -> dict[int, tuple[Json, str | None]]:
    """Return the view at each entry, with the id of the entry whose context it is."""
    found = {}
    with gate.gateway.store.open(session.path, readonly=True) as stored:
        for number, entry in enumerate(stored.iter_lines()):
            if stored.get_entry(entry.id) is None:
                continue
            message = entry.get("message")
            is_answer = isinstance(message, dict) and message["role"] == "assistant"
            told = await gate.get("/v1/view/saw", id=session.id, at=number)
            found[number] = told, entry.parent_id if is_answer else entry.id
    return found


@pytest.mark.parametrize("story", [told_story, long_story])
async def test_it_is_the_context_at_every_entry(tmp_path: Path, story: Any) -> None:
    """The view matches the context at every entry, without messages excluded by the user."""
    async with http(tmp_path) as gate:
        session = story(gate.gateway.store)
        found = await every_saw(gate, session)
        with gate.gateway.store.open(session.path, readonly=True) as stored:
            ids = [entry.id for entry in stored.iter_lines()]
            for number, (told, at) in found.items():
                context = stored.context(at)
                pairs = zip(context.sources, context.messages, strict=True)
                seen = [source for source, message in pairs if not message.get("excludeFromContext")]
                assert [ids[n] for n in told["numbers"]] == list(dict.fromkeys(seen)), number
                branch = [] if at is None else [entry.body for entry in stored.iter_branch(at)]
                gone = absences(branch, set(seen))
                expected = [(ids.index(one.by), one.kind, one.messages) for one in gone if not one.changed]
                assert [(one["by"], one["kind"], len(one["numbers"])) for one in told["removed"]] == expected, number
                assert len(told["changed"]) == sum(one.messages for one in gone if one.changed)
                assert not {n for one in told["removed"] for n in one["numbers"]} & set(told["numbers"])


async def test_everything_that_was_said_is_seen_or_gone(tmp_path: Path) -> None:
    """Every message is either in the context or listed as removed."""
    async with http(tmp_path) as gate:
        session = long_story(gate.gateway.store)
        with gate.gateway.store.open(session.path, readonly=True) as stored:
            entries = list(stored.iter_lines())
        last = len(entries) - 2  # before the last answer
        said = {n for n, entry in enumerate(entries[: last + 1]) if entry.type == "message"}
        told = await gate.get("/v1/view/saw", id=session.id, at=last)
        gone = [n for one in told["removed"] for n in one["numbers"]]
        assert len(gone) == len(set(gone)) and said <= {*gone, *told["numbers"]}
        assert {one["kind"] for one in told["removed"]} == {"compaction", "reset_boundary"}


async def test_the_size_is_the_providers_word_where_it_gave_one(tmp_path: Path) -> None:
    """The size is the provider's count where there is one, otherwise an estimate; an unknown window is null."""
    local = {"baseUrl": "http://127.0.0.1:1/v1", "models": [{"id": "small", "contextWindow": 4_096}]}
    async with http(tmp_path, {"models": {"providers": {"local": local}}}) as gate:
        with begun(gate.gateway.store) as session:
            say(session, "word " * 400)
            session.append_message(assistant("a", "local", "small") | counted(700))
            say(session, "word " * 400)
            session.append_message(assistant("b", "nobody", "knows"))
        told = [await gate.get("/v1/view/saw", id=session.id, at=number) for number in range(4)]
    assert [(one["tokens"], one["source"]) for one in told] == [
        (500, "estimate"),
        (690, "provider"),
        (1_200, "provider"),
        (1_200, "provider"),
    ]
    assert [(one["model"], one["window"]) for one in told] == [
        (None, None),
        ("local/small", 4_096),
        ("local/small", 4_096),
        ("nobody/knows", None),
    ]


async def test_the_first_answer_saw_nothing(tmp_path: Path) -> None:
    """A first reply without a prompt has an empty context."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            session.append_message(assistant("hello"))
        told = await gate.get("/v1/view/saw", id=session.id, at=0)
        assert (told["numbers"], told["removed"], told["tokens"]) == ([], [], 0)
        assert (await gate.refusal("GET", "/v1/view/saw", {"id": session.id, "at": 1}))[0] == 404


async def test_what_was_read_once_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request reads only its own entry."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            session.append_many([{"type": "message", "message": user(f"prompt {n}")} for n in range(1_000)])
            session.append_many(
                [{"type": "message", "message": assistant(f"answer {n}") | counted(20)} for n in range(9)]
            )
        first = await gate.get("/v1/view/saw", id=session.id, at=1_008)
        read: list[int] = []
        with gate.gateway.views.opened(session.id) as view:
            whole = view.session.read_rows

            def counting(rows: Sequence[Row]) -> Iterator[Entry]:
                read.append(len(rows))
                return whole(rows)

            monkeypatch.setattr(view.session, "read_rows", counting)
            again = await gate.get("/v1/view/saw", id=session.id, at=1_007)
        assert sum(read) == 1 and first["numbers"] == [*again["numbers"], 1_007]


@pytest.mark.mission("N2")
async def test_system_prompt_and_tools_are_named(tmp_path: Path) -> None:
    """The view says how long the system prompt is and which tools there are, as of each turn."""
    async with http(tmp_path) as gate:
        session = begun(gate.gateway.store)
        tools = [{"name": "read", "description": "Read a file", "parameters": {"type": "object"}}]
        session.append_message({"role": "system", "content": "", "sections": {"a": "Be brief."}, "toolsAdded": tools})
        session.append_message(user("one"))
        session.append_message(assistant("first"))
        session.append_message(
            {"role": "system", "content": "", "sections": {"b": "Be kind."}, "toolsRemoved": ["read"]}
        )
        session.append_message(user("two"))
        session.append_message(assistant("second"))
        with gate.gateway.store.open(session.path, readonly=True) as stored:
            numbers = [n for n, entry in enumerate(stored.iter_lines()) if entry["message"]["role"] == "assistant"]
        first, second = [(await gate.get("/v1/view/saw", id=session.id, at=n))["prompt"] for n in numbers[-2:]]
    assert first == {"characters": len("Be brief."), "tools": ["read"], "gaps": []}
    assert second == {"characters": len("Be brief.\n\nBe kind."), "tools": [], "gaps": []}
