"""The list of all sessions with its facets, and the overview."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from builders import user
from http_rig import Json
from sessile import Library
from sessile.gateway.handles import Shelf
from view_rig import CLAUDE, Household, answered, furnished, page, settled

pytestmark = pytest.mark.anyio

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_sessions_of_all_agents_are_listed_with_what_is_known(tmp_path: Path) -> None:
    """A card has the agent, state, cost and writability of its session."""
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        found = await client.get("/v1/view/sessions")
    assert (found["total"], found["unjudged"], found["hidden"]) == (3, 0, {})
    cards = {card["agent"]: card for card in found["rows"]}
    assert sorted(cards) == ["claude", "pi", "sessile"]
    own = cards["sessile"]
    assert own["title"] == "Webhook retries" and own["first"] == "Add retries to the webhook sender"
    assert (own["project"], own["cwd"]) == ("app", "/work/app")
    assert (own["branches"], own["messages"], own["failures"], own["tokens"]) == (2, 7, 1, 1230)
    assert own["cost"] == pytest.approx(0.5)  # the third answer has no price
    assert own["last"] == {"role": "assistant", "status": "stop"}
    assert [cards[agent]["writable"] for agent in ("sessile", "pi", "claude")] == [True, False, False]
    assert cards["claude"]["id"] == CLAUDE
    assert (cards["claude"]["cost"], cards["claude"]["tokens"]) == (None, None)  # not recorded in the file
    assert not own["pinned"] and own["problem"] is None and own["parent"] is None


async def test_facets_count_what_the_filter_matches_without_them(tmp_path: Path) -> None:
    """A facet's count equals the size of the list filtered by it."""
    home = furnished(tmp_path)
    with home.begin(home.own, "Another", cwd="/work/web") as session:
        session.append_message(user("hello"))
        session.append_message(answered("hi", "opus-mini"))
    async with page(home) as client:
        await settled(client)
        whole = (await client.get("/v1/view/sessions"))["facets"]
        chosen = await client.get("/v1/view/sessions", agent="sessile", project="/work/app")
        assert whole["agent"] == {"sessile": 2, "claude": 1, "pi": 1}
        assert whole["project"] == {"/work/app": 2, "/work/web": 2, "/work/app/tools": 1}
        assert whole["has"] == {"branch": 1, "error": 1, "label": 1}
        assert chosen["total"] == 1
        assert chosen["facets"]["agent"] == {"pi": 1, "sessile": 1}  # within the project
        assert chosen["facets"]["project"] == {"/work/app": 1, "/work/web": 1}  # within the agent
        for facet in ("agent", "project", "model", "has"):
            for value, count in whole[facet].items():
                found = await client.get("/v1/view/sessions", **{facet: value})
                assert found["total"] == count, (facet, value)


async def test_hidden_sessions_are_told_and_shown_on_demand(tmp_path: Path) -> None:
    """Empty and unreadable files are counted as hidden, and `all` lists them with their problem."""
    home = furnished(tmp_path)
    home.begin(home.own).close()
    broken = Path(home.own.layout.sessions) / "--work-app--" / "2026-01-01T00-00-00-000Z_broken.jsonl"
    broken.write_bytes(b"no session at all\n")
    async with page(home) as client:
        await settled(client)
        few = await client.get("/v1/view/sessions")
        every = await client.get("/v1/view/sessions", all="true")
    assert (few["total"], few["hidden"]) == (3, {"empty": 1, "unreadable": 1})
    assert (every["total"], every["hidden"]) == (5, {})
    (row,) = [card for card in every["rows"] if card["problem"] is not None]
    assert row["id"] is None and not row["writable"]


async def test_words_times_orders_and_pages_choose_sessions(tmp_path: Path) -> None:
    """Words, times, sorting and paging select sessions as on the command line."""
    home = furnished(tmp_path)
    home.age(home.write_claude("Why is the page slow?", "Because of an aardvark"), 3)
    async with page(home) as client:
        await settled(client)

        async def titles(**query: object) -> list[str]:
            rows = (await client.get("/v1/view/sessions", **query))["rows"]
            return [row["title"] or row["first"] for row in rows]

        assert await titles(q="RETRIES webhook") == ["Webhook retries"]
        assert await titles(since="2d") == ["Dotfiles", "Webhook retries"]
        assert await titles(sort="cost") == ["Webhook retries", "Dotfiles", "Why is the page slow?"]
        assert await titles(limit=1, offset=1) == ["Webhook retries"]
        assert await titles(has="branch,label") == ["Webhook retries"]
        assert await titles(model="SONNET") == ["Webhook retries"]
        assert await titles(project="tools") == ["Dotfiles"]
        assert (await client.get("/v1/view/sessions", limit=1))["total"] == 3


async def test_what_cannot_be_chosen_is_refused_with_what_can(tmp_path: Path) -> None:
    """An unknown agent returns 404; an invalid time, order or parameter returns 400."""
    async with page(furnished(tmp_path)) as client:
        status, detail = await client.refusal("GET", "/v1/view/sessions", {"agent": "nobody"})
        assert status == 404 and "nobody" in detail
        for wrong in ({"since": "someday"}, {"sort": "luck"}, {"has": "luck"}, {"limit": 0}, {"unknown": "1"}):
            assert (await client.refusal("GET", "/v1/view/sessions", wrong))[0] == 400, wrong


async def test_sub_agents_and_forks_are_told_on_the_card(tmp_path: Path) -> None:
    """A card shows the number of sub-agents and the parent of a fork."""
    home = furnished(tmp_path)
    path = home.write_claude("Go on", "I will")
    agents = path.with_suffix("") / "subagents"
    agents.mkdir(parents=True)
    (agents / "agent-a1.jsonl").write_bytes(path.read_bytes())
    own = next(info for info in home.own.list_all())
    with home.own.open(own.id, readonly=True) as session, session.fork() as fork:
        fork.publish()
        copied = fork.id
    async with page(home) as client:
        await settled(client)
        cards = {card["id"]: card for card in (await client.get("/v1/view/sessions"))["rows"]}
    assert cards[CLAUDE]["subAgents"] == 1
    assert cards[copied]["parent"] == own.id


async def test_titles_are_told_as_they_are(tmp_path: Path) -> None:
    """Titles are returned unescaped as JSON."""
    home = Household(tmp_path)
    with home.begin(home.own, EVIL) as session:
        session.append_message(user("hello"))
    async with page(home) as client:
        response = await client.client.get("/v1/view/sessions")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["rows"][0]["title"] == EVIL


async def test_an_empty_home_has_empty_pages(tmp_path: Path) -> None:
    """An empty store returns an empty list and overview."""
    async with page(Household(tmp_path)) as client:
        listed = await client.get("/v1/view/sessions")
        seen = await client.get("/v1/view/overview")
    assert (listed["total"], listed["rows"]) == (0, [])
    assert listed["facets"] == {"agent": {}, "project": {}, "model": {}, "has": {}}
    assert (seen["recent"], seen["warnings"]) == ([], [])
    assert seen["costs"]["table"]["rows"] == [] and seen["costs"]["svg"].startswith("<svg ")


# -- the overview


def kinds(overview: Json) -> dict[str, Json]:
    """Return the warnings by kind."""
    return {warning["kind"]: warning for warning in overview["warnings"]}


async def test_the_overview_shows_what_is_recent_and_where_sessions_come_from(tmp_path: Path) -> None:
    """The overview has up to five recent sessions, the number of sessions per source, and the daily cost."""
    home = furnished(tmp_path)
    for number in range(4):
        with home.begin(home.own, f"More {number}") as session:
            session.append_message(user("hello"))
    async with page(home) as client:
        await settled(client)
        seen = await client.get("/v1/view/overview")
    assert len(seen["recent"]) == 5 and seen["recent"][0]["title"] == "More 3"
    assert {source["agent"]: source["sessions"] for source in seen["sources"]} == {"sessile": 5, "pi": 1, "claude": 1}
    assert all(source["newest"] is not None for source in seen["sources"])
    assert seen["costs"]["table"]["columns"][:2] == ["day", "anthropic/opus"]
    assert sum(row[1] for row in seen["costs"]["table"]["rows"]) == pytest.approx(0.75)
    assert sum(count for _, count in seen["heatmap"]["table"]["rows"]) == 4  # answers with a time in these weeks
    assert seen["warnings"] == []


async def test_the_overview_warns_of_damage_and_of_broken_store_files(tmp_path: Path) -> None:
    """Unreadable lines, files that are not sessions and a broken store file cause warnings."""
    home = furnished(tmp_path)
    with home.begin(home.own, "Torn") as session:
        session.append_message(user("hello"))
        path = Path(session.path)
    data = path.read_bytes()
    path.write_bytes(data + b'{"type":"message","id":\n' + data.splitlines(keepends=True)[-1])
    (path.parent / "2026-01-01T00-00-00-000Z_broken.jsonl").write_bytes(b"no session at all\n")
    async with page(home) as client:
        await settled(client)
        await client.say("hello")
        bindings = Path(client.gateway.conversations.list().path)
        whole = bindings.read_bytes()
        bindings.write_text("{ broken")
        seen = kinds(await client.get("/v1/view/overview"))
        bindings.write_bytes(whole)
        damaged = await client.get("/v1/view/sessions", has="finding")
    assert seen["damaged"]["text"] == "1 session has unreadable lines"
    assert seen["damaged"]["href"] == "/sessions?has=finding" and damaged["total"] == 1
    assert seen["unreadable"]["text"].startswith("1 file is not readable")
    assert "broken at line 1" in seen["store"]["text"] and str(tmp_path) not in seen["store"]["text"]


async def test_the_overview_warns_of_sessions_that_are_deleted_soon(tmp_path: Path) -> None:
    """Claude Code sessions that expire soon cause a warning, and so do unreadable settings."""
    home = furnished(tmp_path)
    home.age(home.write_claude("old", "yes"), 26)
    home.age(home.write_claude("older", "yes", session_id=CLAUDE.replace("1", "2")), 10)
    async with page(home) as client:
        warning = kinds(await client.get("/v1/view/overview"))["expiring"]
    assert warning["text"] == "1 session of claude expires within 7 days; run `sessile keep` to keep it"
    assert warning["href"] == "/sessions?agent=claude"
    (tmp_path / "claude" / "settings.json").write_text("nonsense")
    async with page(home) as client:
        assert "unknown when claude deletes" in kinds(await client.get("/v1/view/overview"))["expiring"]["text"]


async def test_what_is_not_indexed_yet_is_told_and_done_between_the_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are answered before indexing is done, and indexing continues in the background."""
    may_read = threading.Event()
    catch_up = Library.catch_up

    def slowly(library: Library, depth: Any = "look", **options: Any) -> Any:
        return catch_up(library, depth if may_read.is_set() else "look", **options)

    monkeypatch.setattr(Library, "catch_up", slowly)
    monkeypatch.setattr("sessile.gateway.handles._AT_ONCE", 0.0)
    monkeypatch.setattr("sessile.gateway.handles._SLICE", 0.0)
    home = furnished(tmp_path)
    await anyio.sleep(0.1)  # files that have just changed are looked at again the next time
    async with page(home) as client:
        first = await client.get("/v1/view/sessions", has="branch")
        seen = kinds(await client.get("/v1/view/overview"))
        assert (first["unjudged"], first["total"]) == (1, 0)  # small files are counted without indexing
        assert "3 sessions are still being read" in seen["pending"]["text"]
        may_read.set()
        await settled(client)
        found = await client.get("/v1/view/sessions", has="branch")
        assert (found["unjudged"], found["total"]) == (0, 1)
        assert "pending" not in kinds(await client.get("/v1/view/overview"))


async def test_a_new_session_is_seen_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New sessions appear at the next refresh."""
    home = furnished(tmp_path)
    async with page(home) as client:
        assert (await client.get("/v1/view/sessions"))["total"] == 3
        with home.begin(home.own, "New") as session:
            session.append_message(user("hello"))
        monkeypatch.setattr("sessile.gateway.handles._FRESH", 0.0)
        assert (await client.get("/v1/view/sessions"))["total"] == 4


async def test_a_shelf_that_is_closed_ends_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the gateway ends the indexing thread."""
    monkeypatch.setattr("sessile.gateway.handles._AT_ONCE", 0.0)
    monkeypatch.setattr("sessile.gateway.handles._SLICE", 0.0)
    home = furnished(tmp_path)
    async with page(home) as client:
        shelf: Shelf = client.gateway.shelf
        await client.get("/v1/view/sessions")
        worker = shelf._worker
        assert worker is not None
    assert not worker.is_alive()
