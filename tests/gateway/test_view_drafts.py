"""Drafts on the page: listed with a mark, searched, read while their writer runs, and published by the first change."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

import pytest

from builders import user
from faults.processes import Child, Tell
from sessile import Store
from sessions import snapshot
from view_rig import Household, furnished, page, settled

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P46"), pytest.mark.mission("X15")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def left(home: Household) -> tuple[Child, str, str]:
    """Return a process that waits for its first answer, and the id and path of its draft."""
    root = home.own.layout.root

    def ask(tell: Tell) -> None:
        session = Store(root, durability="process").create("/work/app")
        session.append_message(user("What eats an aardvark?"))
        tell([session.id, session.path])
        sleep(600)

    child = Child(ask)
    child.wait_for_word()
    ((session_id, path),) = child.told()
    return child, session_id, path


async def test_a_draft_is_listed_searched_and_shown_while_its_writer_runs(tmp_path: Path) -> None:
    """Cards mark it, its page says what it is, only changes are refused, and nothing is changed."""
    home = furnished(tmp_path)
    child, session_id, path = left(home)
    before = snapshot(home.root / "own")
    try:
        async with page(home) as client:
            await settled(client)
            cards = (await client.get("/v1/view/sessions"))["rows"]
            assert {card["id"] for card in cards if card["draft"]} == {session_id} and len(cards) == 4
            recent = (await client.get("/v1/view/overview"))["recent"]
            assert {card["id"] for card in recent if card["draft"]} == {session_id}
            found = await client.get("/v1/view/search", q="aardvark eats")
            assert [group["session"]["id"] for group in found["groups"]] == [session_id]
            for name in (session_id, session_id[:13]):
                shown = await client.get("/v1/view/session", id=name)
                assert (shown["id"], shown["total"]) == (session_id, 1)
                assert any("draft" in note for note in shown["notes"])
                assert dict(shown["facts"])["file"] == path
            body = {"id": session_id, "title": "Ants"}
            status, detail = await client.refusal("POST", "/v1/view/session/rename", body=body)
            assert status == 409 and f"process {child.pid}" in detail
        after = snapshot(home.root / "own")
        assert {name: after[name] for name in before if "/sessions/" in name} == {
            name: before[name] for name in before if "/sessions/" in name
        }
    finally:
        child.kill()
        child.finish()


async def test_a_draft_whose_process_was_killed_is_published_by_the_first_change(tmp_path: Path) -> None:
    """Reading does not do so; afterwards the same id leads to the published session."""
    home = furnished(tmp_path)
    child, session_id, path = left(home)
    child.kill()
    child.finish()
    async with page(home) as client:
        await settled(client)
        assert (await client.get("/v1/view/session", id=session_id))["total"] == 1
        assert os.path.isfile(path)
        await client.post("/v1/view/session/rename", id=session_id, title="Ants")
        published = path.replace(".draft", ".jsonl")
        assert (os.path.isfile(published), os.path.exists(path)) == (True, False)
        shown = await client.get("/v1/view/session", id=session_id)
        assert (shown["title"], dict(shown["facts"])["file"]) == ("Ants", published)
        assert not any("draft" in note for note in shown["notes"])
        await client.post("/v1/view/session/tag", id=session_id, tag="zoo")
        cards = {card["id"]: card["draft"] for card in (await client.get("/v1/view/sessions"))["rows"]}
        assert cards[session_id] is False
