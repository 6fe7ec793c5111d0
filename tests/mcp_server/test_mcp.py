"""`sessile mcp` with real clients: its three read-only tools, windows, links, scope, errors and the command."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from sessile import Store
from sessile.cli.command import run
from sessile.demo.corpus import make_demo
from sessile.errors import Refused
from sessile.gateway.conversations.presence import Presence
from sessile.mcp import tools
from sessile.mcp.access import Access, Call, Scope
from sessile.storage.layout import Source
from sessions import answer, begun, header, other_store_at, say, snapshot, store_at, write_file

from .mcp_rig import Asking, Json, Over, ask, serving

EVERY_WAY = [Over("stdio", "auto"), Over("stdio", "legacy"), Over("http", "auto"), Over("http", "legacy")]


@pytest.fixture
def own(home: Path) -> Store:
    """Return the default store of the command."""
    return store_at(home / ".sessile")


def ids_of(answered: Json) -> list[str]:
    """Return the ids of the entries in a window."""
    return [entry["id"] for entry in answered["entries"]]


def texts_of(answered: Json) -> list[str]:
    """Return the texts of the entries in a window."""
    return ["".join(part["text"] for part in entry["parts"]) for entry in answered["entries"]]


def titles_of(answered: Json) -> list[str | None]:
    """Return the titles of listed or found sessions."""
    cards = [each.get("session", each) for each in answered["sessions"]]
    return [card["title"] for card in cards]


# -- clients


@pytest.mark.mission("B9")
@pytest.mark.parametrize("way", EVERY_WAY, ids=str)
def test_a_client_lists_the_tools_finds_words_and_reads_around_them(
    way: Over, own: Store, home: Path, log: Path
) -> None:
    """Listing, searching and opening work over every transport and protocol, and only HTTP writes a file, its token."""
    with begun(own, "/work/app", title="Webhook retries") as session:
        places = [say(session, f"prompt {number}") for number in range(5)]
        wanted = answer(session, "use tenacity with jitter")
        say(session, "good")
    before = snapshot(home)

    async def scenario(asking: Asking) -> None:
        listed = await asking.client.list_tools()
        assert [tool.name for tool in listed.tools] == ["search_sessions", "list_sessions", "open_session"]
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed.tools)
        found = await asking.call("search_sessions", query="tenacity jitter")
        (group,) = found["sessions"]
        assert (group["session"]["title"], group["hits"][0]["entry"]) == ("Webhook retries", wanted)
        opened = await asking.call(
            "open_session", session=group["session"]["id"], entry=group["hits"][0]["entry"], limit=3
        )
        assert ids_of(opened)[:2] == [places[-1], wanted] and len(opened["entries"]) == 3
        assert (opened["earlier"], opened["later"]) == (4, 0)
        assert titles_of(await asking.call("list_sessions")) == ["Webhook retries"]
        assert (await asking.fail("open_session", session="nothing-like-it"))["kind"] == "session-not-found"

    way.ask(scenario, log=log)
    after = snapshot(home)
    token = str(home / ".sessile" / "mcp.token")
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed <= ({token, str(home / ".sessile")} if way.transport == "http" else set())


@pytest.mark.mission("B9")
@pytest.mark.parametrize("kind", ["folder", "memory", "database"])
def test_any_store_can_be_asked(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The tools work with every kind of store."""
    if kind == "memory":
        store = Store.in_memory()
    else:
        place = request.getfixturevalue("postgres_url") if kind == "database" else tmp_path / "root"
        store = Store(place, durability="process")
    with begun(store, "/work/app", title="Somewhere") as session:
        at = say(session, "a word in memory")

    async def scenario(asking: Asking) -> None:
        found = await asking.call("search_sessions", query="memory")
        assert [hit["entry"] for hit in found["sessions"][0]["hits"]] == [at]
        assert texts_of(await asking.call("open_session", session=found["sessions"][0]["session"]["id"])) == [
            "a word in memory"
        ]

    ask(store, scenario)


def test_the_made_up_store_can_be_searched(tmp_path: Path) -> None:
    """Every readable demo session can be opened by its path."""
    store = Store(tmp_path / "demo", durability="process")
    make_demo(store)

    async def scenario(asking: Asking) -> int:
        listed = await asking.call("list_sessions", limit=100, everything=True)
        readable = [card for card in listed["sessions"] if card["problem"] is None]
        for card in readable:
            opened = await asking.call("open_session", session=card["path"], depth="all", limit=5)
            assert opened["session"]["path"] == card["path"] and opened["entries"]
        return len(readable)

    assert ask(store, scenario) >= 38


# -- windows


def test_cursors_lead_through_a_whole_branch_in_both_directions(own: Store) -> None:
    """Cursors return every entry once and in order in both directions, and each window counts the rest."""
    with begun(own) as session:
        places = [say(session, f"entry {number} {'x' * (number * 37 % 300)}") for number in range(60)]
        name = session.id

    async def scenario(asking: Asking) -> None:
        for start, cursor in (("beginning", "next"), ("end", "previous")):
            seen: list[str] = []
            asked: Json = {"session": name, "start": start, "limit": 7, "max_bytes": 1_000}
            opened = await asking.call("open_session", **asked)
            while True:
                ids = ids_of(opened)
                assert opened["earlier"] + opened["later"] + len(ids) == len(places)
                assert ids == places[opened["earlier"] : opened["earlier"] + len(ids)]
                seen = [*seen, *ids] if cursor == "next" else [*ids, *seen]
                if opened[cursor] is None:
                    break
                assert any(cursor in told for told in opened["left_out"])
                opened = await asking.call("open_session", **asked, cursor=opened[cursor])
            assert seen == places

    ask(own, scenario)


def test_a_long_entry_is_told_in_pieces_that_make_the_whole(own: Store) -> None:
    """A long entry is split across windows, and its parts add up to the whole text."""
    long = "".join(f"line {number} — 行\n" for number in range(3_000)).rstrip("\n")
    with begun(own) as session:
        say(session, "before")
        at = say(session, long)
        say(session, "after")
        name = session.id

    async def scenario(asking: Asking) -> None:
        asked: Json = {"session": name, "entry": at, "limit": 3, "max_bytes": 9_001}
        opened = await asking.call("open_session", **asked)
        whole = ""
        while True:
            entry = opened["entries"][0]
            assert entry["id"] == at and entry["skipped"] == len(whole)
            assert len(entry["parts"][0]["text"].encode()) <= 9_001
            whole += entry["parts"][0]["text"]
            assert entry["cut"] == len(long) - len(whole)
            if not entry["cut"]:
                break
            assert len(opened["entries"]) == 1 and any("characters" in told for told in opened["left_out"])
            opened = await asking.call("open_session", **asked, cursor=opened["next"])
        assert whole == long
        assert texts_of(opened)[1:] == ["after"] and opened["next"] is None

    ask(own, scenario)


def test_a_depth_counts_what_it_does_not_show(own: Store) -> None:
    """Entries hidden by the depth are counted and do not use up the window."""
    with begun(own) as session:
        for number in range(6):
            say(session, f"question {number}")
            thought = {"type": "thinking", "thinking": "hm"}
            call = {"type": "toolCall", "id": f"c{number}", "name": "bash", "arguments": {"command": "ls -l"}}
            content = [thought, {"type": "text", "text": "let me see"}, call]
            session.append_message({"role": "assistant", "content": content, "provider": "p", "model": "m"})
        name = session.id

    async def scenario(asking: Asking) -> None:
        prompts = await asking.call("open_session", session=name, depth="prompts", limit=4)
        assert texts_of(prompts) == [f"question {number}" for number in range(2, 6)]
        assert any("hidden at depth prompts: 4 entries" in told for told in prompts["left_out"])
        everything = await asking.call("open_session", session=name, depth="all", limit=1)
        kinds = [(part["kind"], part["name"]) for part in everything["entries"][0]["parts"]]
        assert kinds == [("thinking", None), ("text", None), ("call", "bash")]
        assert json.loads(everything["entries"][0]["parts"][2]["text"]) == {"command": "ls -l"}
        tools_only = await asking.call("open_session", session=name, limit=1)
        assert any("1 thought" in told for told in tools_only["left_out"])

    ask(own, scenario)


def test_an_entry_of_a_branch_that_was_left_is_shown_on_that_branch(own: Store) -> None:
    """An entry or label on an abandoned branch opens that branch, and the result says that it is not active."""
    with begun(own) as session:
        first = say(session, "start")
        left = say(session, "approach A")
        session.branch(first)
        kept = say(session, "approach B")
        session.append_label_change(left, "tried")
        name = session.id

    async def scenario(asking: Asking) -> None:
        found = await asking.call("search_sessions", query="approach")
        assert {hit["entry"] for hit in found["sessions"][0]["hits"]} == {left, kept}
        for question in ({"entry": left}, {"branch": "tried"}):
            opened = await asking.call("open_session", session=name, depth="chat", **question)
            assert ids_of(opened) == [first, left] and not opened["on_active_branch"]
        opened = await asking.call("open_session", session=name, depth="chat", entry=first)
        assert ids_of(opened) == [first, kept] and opened["on_active_branch"]

    ask(own, scenario)


def test_lists_and_searches_come_in_pages(own: Store) -> None:
    """Pages return each session and hit once, the last has no cursor, and hidden sessions are counted."""
    for number in range(7):
        with begun(own, title=f"session {number}") as session:
            say(session, f"needle {number}")
    with begun(own):
        pass  # an empty session

    async def scenario(asking: Asking) -> None:
        for tool, asked in (("list_sessions", {"limit": 3}), ("search_sessions", {"query": "needle", "limit": 3})):
            seen: list[str | None] = []
            cursor, pages = None, 0
            while pages == 0 or cursor is not None:
                answered = await asking.call(tool, **asked, **({"cursor": cursor} if cursor else {}))
                seen += titles_of(answered)
                cursor, pages = answered["next"], pages + 1
                assert (cursor is not None) == any("more" in told for told in answered["left_out"])
            assert pages == 3 and sorted(map(str, seen)) == [f"session {number}" for number in range(7)]
        listed = await asking.call("list_sessions")
        assert listed["total"] == 7 and listed["hidden"] == {"empty": 1}
        assert (await asking.call("list_sessions", everything=True))["total"] == 8
        words = await asking.call("list_sessions", words="session 3")
        assert titles_of(words) == ["session 3"] and words["total"] == 1

    ask(own, scenario)


@pytest.mark.promise("P49")
def test_few_hits_are_followed_by_those_in_other_fields(own: Store) -> None:
    """Tool results and other data are searched if there are few hits, or on request; otherwise the response says so."""
    with begun(own) as session:
        say(session, "run it")
        result = {"role": "toolResult", "toolCallId": "c", "toolName": "bash", "isError": False}
        at = session.append_message({**result, "content": [{"type": "text", "text": "segfault at 0xdead"}]}).id
        session.append_custom_entry("notes", {"kept": "a marsupial"})

    async def scenario(asking: Asking) -> None:
        few = await asking.call("search_sessions", query="segfault")
        assert [hit["field"] for hit in few["sessions"][0]["hits"]] == ["tool_result"]
        assert not any("not searched: " in told for told in few["left_out"])
        without = await asking.call("search_sessions", **{"query": "segfault", "in": ["text"]})
        assert without["sessions"] == [] and any("tool_result" in told for told in without["left_out"])
        (prompted,) = (await asking.call("search_sessions", query="marsupial"))["sessions"]
        assert [(hit["field"], "marsupial" in hit["text"]) for hit in prompted["hits"]] == [("other", True)]
        found = await asking.call("search_sessions", **{"query": "segfault", "in": ["tool_result"]})
        (hit,) = found["sessions"][0]["hits"]
        assert (hit["entry"], hit["field"]) == (at, "tool_result")
        assert [hit["text"][start:end] for start, end in hit["marks"]] == ["segfault"]

    ask(own, scenario)


@pytest.mark.promise("P25")
def test_a_huge_session_is_answered_in_a_few_seconds_and_a_few_kilobytes(own: Store) -> None:
    """With 20,000 entries and one of 6 MB, every call is quick and its result small."""
    with begun(own, title="huge") as session:
        for start in range(0, 20_000, 5_000):
            session.append_many(
                {"type": "message", "message": {"role": "user", "content": f"needle{number} and more"}}
                for number in range(start, start + 5_000)
            )
        large = say(session, "enormous " * 700_000)
        name = session.id

    async def scenario(asking: Asking) -> None:
        questions: list[tuple[str, Json]] = [
            ("list_sessions", {}),
            ("open_session", {"session": name}),
            ("open_session", {"session": name, "start": "beginning"}),
            ("open_session", {"session": name, "entry": large}),
            ("search_sessions", {"query": "needle1*", "limit": 50}),
            ("search_sessions", {"query": "needle777", "in": ["text", "tool_result"]}),
        ]
        await asking.call("list_sessions")  # the first call reads the changed files
        for tool, asked in questions:
            begin = time.monotonic()
            await asking.call(tool, **asked)
            assert time.monotonic() - begin < 15, (tool, asked)
            assert len(asking.heard[-1]) < 200_000, (tool, asked)

    ask(own, scenario)


# -- links


def test_links_name_the_command_and_the_page_of_a_gateway_that_runs(own: Store) -> None:
    """Links have a quoted command, and a page URL only while a gateway runs."""
    with begun(own, title="linked") as session:
        at, name = say(session, "words"), session.id
    write_file(own.layout.sessions + "/--x--/odd.jsonl", header("it's; rm -rf /", "/x"), _said("e1", "odd words"))

    async def scenario(asking: Asking) -> list[Json]:
        return [await asking.call("search_sessions", query=words) for words in ("words linked", "words", "odd")]

    titled, found, odd = ask(own, scenario)
    assert titled["sessions"] == []
    link = next(hit["link"] for group in found["sessions"] for hit in group["hits"] if hit["entry"] == at)
    assert link == {"command": f"sessile show '{name}#{at}'", "page": None}
    assert odd["sessions"][0]["session"]["link"]["command"] == "sessile show 'it'\"'\"'s; rm -rf /'"
    presence = Presence(own)
    with presence.held(), presence.announced("http://127.0.0.1:8787", "token"):
        _, found, _ = ask(own, scenario)
    pages = [hit["link"]["page"] for group in found["sessions"] for hit in group["hits"]]
    assert f"http://127.0.0.1:8787/s/{name}#e-{at}" in pages


def _said(entry_id: str, text: str, parent: str | None = None) -> Json:
    message = {"role": "user", "content": text}
    return {
        "type": "message",
        "id": entry_id,
        "parentId": parent,
        "timestamp": "2026-01-01T00:00:00Z",
        "message": message,
    }


# -- scope


@pytest.fixture
def shared(home: Path, own: Store) -> dict[str, str]:
    """Return the paths of sessions of two agents in two projects by title, with a common id prefix."""
    stores = {"own": own, "pi": store_at(home / ".pi" / "agent")}
    paths = {}
    for agent, store in stores.items():
        for project in ("a", "b"):
            title = f"{agent}-{project}"
            path = f"{store.layout.sessions}/--work-{project}--/{title}.jsonl"
            named = {"type": "session_info", "id": "e2", "parentId": "e1", "timestamp": "2026-01-01T00:00:00Z"}
            rows = [_said("e1", f"needle of {title}"), {**named, "name": title}]
            paths[title] = write_file(path, header(f"0000-{title}", f"/work/{project}"), *rows)
    return paths


SCOPES: dict[str, tuple[Scope, set[str]]] = {
    "everything": (Scope(), {"own-a", "own-b", "pi-a", "pi-b"}),
    "agent": (Scope("pi"), {"pi-a", "pi-b"}),
    "project": (Scope(None, "/work/a"), {"own-a", "pi-a"}),
    "both": (Scope("pi", "/work/b"), {"pi-b"}),
}


@pytest.mark.mission("B9")
@pytest.mark.parametrize("way", [*SCOPES, "command"])
def test_what_the_server_does_not_show_cannot_be_reached_by_any_call(
    way: str, own: Store, home: Path, shared: dict[str, str], log: Path
) -> None:
    """Sessions outside the scope cannot be listed, found, opened or counted, also not with a foreign cursor."""
    scope, seen = SCOPES["both" if way == "command" else way]
    pi = str(home / ".pi" / "agent")
    sources = [Source("pi", pi, f"{pi}/sessions")]

    async def unlimited(asking: Asking) -> list[str]:
        listed = await asking.call("list_sessions", limit=1)
        found = await asking.call("search_sessions", query="needle", limit=1)
        return [listed["next"], found["next"]]

    cursors = ask(own, unlimited, sources=sources)

    async def scenario(asking: Asking) -> None:
        await _find_what_is_seen(asking, shared, seen)
        await _look_for_what_is_hidden(asking, shared, seen, cursors)

    if way == "command":
        Over("stdio", "auto").ask(scenario, "--agent", "pi", "--project", "/work/b", log=log)
    else:
        ask(own, scenario, scope=scope, sources=sources)


async def _find_what_is_seen(asking: Asking, paths: dict[str, str], seen: set[str]) -> None:
    listed = await asking.call("list_sessions", everything=True)
    assert set(titles_of(listed)) == seen and listed["total"] == len(seen)
    assert set(titles_of(await asking.call("search_sessions", query="needle"))) == seen
    for title in seen:
        for name in (f"0000-{title}", paths[title]):
            assert texts_of(await asking.call("open_session", session=name)) == [f"needle of {title}"]
    if len(seen) > 1:
        error = await asking.fail("open_session", session="0000")
        assert error["kind"] == "ambiguous" and {each["title"] for each in error["candidates"]} == seen


async def _look_for_what_is_hidden(asking: Asking, paths: dict[str, str], seen: set[str], cursors: list[str]) -> None:
    inside = paths[next(iter(seen))]
    for title in paths.keys() - seen:
        for name in (f"0000-{title}", paths[title], f"{Path(inside).parent}/../{paths[title]}"):
            assert (await asking.fail("open_session", session=name))["kind"] == "session-not-found"
        assert (await asking.call("search_sessions", query=f'"needle of {title}"'))["sessions"] == []
        assert (await asking.call("list_sessions", words=title))["total"] == 0
    for narrowed in ({"agent": "sessile"}, {"agent": "pi"}, {"project": "/work/a"}, {"project": "/work/a/../b"}):
        assert set(await _titles(asking, "list_sessions", **narrowed)) <= seen
    for cursor, tool, asked in zip(
        cursors, ("list_sessions", "search_sessions"), ({}, {"query": "needle"}), strict=True
    ):
        assert set(await _titles(asking, tool, **asked, limit=1, cursor=cursor)) <= seen


async def _titles(asking: Asking, tool: str, **arguments: Any) -> list[str | None]:
    """Return the titles of a result, or an empty list if the call failed."""
    result = await asking.try_call(tool, arguments)
    return [] if result.is_error else titles_of(result.structured_content)


def test_a_call_narrows_the_scope_and_is_told_when_it_asks_for_more(shared: dict[str, str], own: Store) -> None:
    """A call can narrow the scope; another agent or project is refused with the reason."""

    async def scenario(asking: Asking) -> None:
        assert titles_of(await asking.call("list_sessions", project="/work/a")) == ["own-a"]
        assert (await asking.call("list_sessions", project="/work/a/deeper"))["total"] == 0
        for outside in ("/work/b", "/work", "/work/ab", "/work/a/../b", "a", "/"):
            error = await asking.fail("list_sessions", project=outside)
            assert error["kind"] == "refused" and "/work/a" in error["message"], outside
        error = await asking.fail("search_sessions", query="needle", agent="pi")
        assert error["kind"] == "refused" and "sessile" in error["message"]

    ask(own, scenario, scope=Scope("sessile", "/work/a"))


def test_here_is_the_folder_that_it_was_started_in(shared: dict[str, str], own: Store, home: Path, log: Path) -> None:
    """`--here` shows only the sessions of the current folder."""
    with begun(own, str(home), title="of this folder") as session:
        say(session, "here")

    async def scenario(asking: Asking) -> Json:
        return await asking.call("list_sessions", everything=True)

    listed = Over("stdio", "auto").ask(scenario, "--here", log=log)
    assert titles_of(listed) == ["of this folder"] and str(home) in listed["scope"]


# -- errors


BAD: list[tuple[str, Json, str]] = [
    ("list_sessions", {"limit": 0}, "limit"),
    ("list_sessions", {"limit": 1_000}, "limit"),
    ("list_sessions", {"limit": "many"}, "limit"),
    ("list_sessions", {"cursor": "made up"}, "cursor"),
    ("list_sessions", {"cursor": "WyJ4Iix7fV0"}, "cursor"),
    ("list_sessions", {"since": "the other day"}, "invalid time"),
    ("list_sessions", {"agent": "nobody"}, "nobody"),
    ("list_sessions", {"show_secrets": True}, "show_secrets"),
    ("search_sessions", {}, "query"),
    ("search_sessions", {"query": ""}, "query"),
    ("search_sessions", {"query": "=> !"}, "no word"),
    ("search_sessions", {"query": "x" * 2_000}, "query"),
    ("search_sessions", {"query": "x", "in": ["everything"]}, "everything"),
    ("open_session", {}, "session"),
    ("open_session", {"session": "abc"}, "session"),
    ("open_session", {"session": "/etc/passwd"}, "session not found"),
    ("open_session", {"session": "0000-own-a", "entry": "nowhere"}, "entry not found"),
    ("open_session", {"session": "0000-own-a", "branch": "nowhere"}, "entry not found"),
    ("open_session", {"session": "0000-own-a", "depth": "abyss"}, "abyss"),
    ("open_session", {"session": "0000-own-a", "max_bytes": 10**9}, "max_bytes"),
    ("open_session", {"session": "0000-own-a", "root": "/"}, "root"),
]


def test_bad_arguments_are_told_by_name_with_what_to_do(shared: dict[str, str], own: Store) -> None:
    """Invalid arguments are tool errors with a hint, and the server continues."""

    async def scenario(asking: Asking) -> None:
        for tool, arguments, told in BAD:
            error = await asking.fail(tool, **arguments)
            assert told in error["message"], (arguments, error)
            assert error["hint"], (arguments, error)
        with pytest.raises(MCPError, match="unknown tool"):
            await asking.client.call_tool("delete_session", {})
        assert (await asking.call("list_sessions"))["total"] == 2

    ask(own, scenario)


def test_a_cursor_belongs_to_its_question(own: Store) -> None:
    """A cursor is rejected with other arguments, with a hint to omit it."""
    for number in range(3):
        with begun(own, title=f"session {number}") as session:
            say(session, "words")

    async def scenario(asking: Asking) -> None:
        first = await asking.call("list_sessions", limit=1)
        error = await asking.fail("list_sessions", limit=2, cursor=first["next"])
        assert "other arguments" in error["message"] and "omit the cursor" in error["hint"]

    ask(own, scenario)


def test_damage_is_told_and_the_rest_is_read(own: Store) -> None:
    """An unreadable line is reported, and the other entries are returned."""
    rows: list[Json | str] = [_said("e1", "before"), "{torn", _said("e2", "after", "e1")]
    path = write_file(own.layout.sessions + "/--x--/torn.jsonl", header("damaged-one", "/x"), *rows)

    async def scenario(asking: Asking) -> None:
        opened = await asking.call("open_session", session=path)
        assert texts_of(opened) == ["before", "after"]
        assert any(told.startswith("unreadable: ") for told in opened["left_out"])

    ask(own, scenario)


# -- cancellation


@pytest.mark.mission("B9")
def test_who_cancels_is_rid_of_the_call_and_its_thread_stops(own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled call stops its thread, and the next call is answered."""
    begun_, ended = threading.Event(), threading.Event()

    def endless(access: Access, call: Call, asked: Any) -> Any:
        begun_.set()
        try:
            while not call.is_late():
                time.sleep(0.01)
        except Refused:
            ended.set()
            raise

    table = {**tools.TOOLS, "search_sessions": tools.TOOLS["search_sessions"]._replace(run=endless)}
    monkeypatch.setattr(tools, "TOOLS", table)

    async def scenario(asking: Asking) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(asking.try_call, "search_sessions", {"query": "words"})
            with anyio.fail_after(5):
                while not begun_.is_set():
                    await asyncio.sleep(0.01)
            group.cancel_scope.cancel()
        assert asking.heard == []
        assert (await asking.call("list_sessions"))["total"] == 0
        with anyio.fail_after(5):
            while not ended.is_set():
                await asyncio.sleep(0.01)

    ask(own, scenario)


@pytest.mark.parametrize("way", EVERY_WAY[::2], ids=str)
def test_a_real_server_answers_after_a_cancelled_call(way: Over, own: Store, log: Path) -> None:
    """A server process answers after several cancelled searches."""
    with begun(own) as session:
        for number in range(40):
            say(session, f"{number} " + "plenty of words " * 5_000)

    async def scenario(asking: Asking) -> None:
        for _ in range(6):  # more than the limit of concurrent calls
            with anyio.move_on_after(0.02):
                await asking.call("search_sessions", **{"query": "nowhere", "in": ["tool_result"]})
        with anyio.fail_after(15):
            assert (await asking.call("list_sessions"))["total"] == 1

    way.ask(scenario, log=log)


# -- the command


def test_stdout_holds_nothing_but_the_protocol_and_the_end_of_stdin_ends_it(own: Store) -> None:
    """At the end of stdin, the command exits with code 0 and without output."""
    command = [sys.executable, "-m", "sessile.cli.main", "mcp"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_interrupt_ends_it_though_it_waits_for_stdin(own: Store) -> None:
    """An interrupt ends the server while it waits for stdin."""
    command = [sys.executable, "-m", "sessile.cli.main", "mcp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write('{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 7
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["mcp", "--here", "-p", "x"], 2, "--here"),
        (["mcp", "--port", "1"], 2, "--http"),
        (["mcp", "--agent", "nobody"], 3, "nobody"),
        (["mcp", "--host", "0.0.0.0"], 2, "--host"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    own: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    """Invalid options exit with their code and a hint, and there is no way to listen on other addresses."""
    assert run(arguments) == code
    printed = capsys.readouterr()
    assert told in printed.err and "hint:" in printed.err and printed.out == ""


def test_help_begins_with_examples_and_loads_no_server() -> None:
    """The help shows examples and does not import the MCP SDK."""
    code = "import sys; from sessile.cli.command import run; run(['mcp', '--help'])"
    code += "; print([name for name in ('mcp', 'starlette', 'anyio', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    examples = re.findall(r"^  (sessile mcp|claude mcp)", done.stdout.partition("Options:")[0], re.M)
    assert len(examples) >= 3


@pytest.mark.promise("P33", "P34")
def test_over_http_only_programs_of_this_machine_with_the_token_are_heard(own: Store, log: Path) -> None:
    """HTTP requests without the token, or with another host or origin, are rejected, and the token is never printed."""
    import http.client
    from urllib.parse import urlsplit

    with begun(own, title="quiet words") as session:
        say(session, "hello")
    question = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_sessions", "arguments": {}}}
    with serving(log=log) as told:
        token = Path(told["tokenFile"]).read_text().strip()
        assert Path(told["tokenFile"]).stat().st_mode & 0o777 == 0o600
        place = urlsplit(told["url"])
        assert place.hostname == "127.0.0.1"

        def status(path: str = "/mcp", **headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=10)
            usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            try:
                connection.request("POST", path, json.dumps(question), {**usual, **headers})
                response = connection.getresponse()
                assert "quiet words" not in response.read().decode() or response.status == 200
                return response.status
            finally:
                connection.close()

        held = {"Authorization": f"Bearer {token}"}
        assert status() == 401
        assert status(Authorization="Bearer " + "x" * 43) == 401
        assert status(f"/mcp?token={token}") == 401
        assert status(**held, Host="evil.example") == 403
        assert status(**held, Origin="https://evil.example") == 403
        assert status(**held, Origin="null") == 403
        assert status(**{**held, "Content-Type": "text/plain"}) == 415
        assert status("/", **held) == 404
        assert status(**held) == 200
        told.process.send_signal(signal.SIGTERM)
        assert told.process.wait(15) == 0
        assert told.process.stdout is not None
        assert token not in json.dumps(told.told) + told.process.stdout.read() + log.read_text()


# -- drafts


@pytest.mark.mission("X15")
@pytest.mark.promise("P46")
@pytest.mark.parametrize("state", ["running", "left"])
def test_a_draft_is_listed_searched_and_read(tmp_path: Path, state: str) -> None:
    """By id, by both paths and by text; the card marks it, and nothing is changed."""
    session = store_at(tmp_path).create("/work/app")
    say(session, "an unanswered aardvark")
    if state == "left":
        session._journal.close()
    before = snapshot(tmp_path)

    async def scenario(asking: Asking) -> None:
        listed = await asking.call("list_sessions")
        assert [(card["id"], card["path"], card["draft"]) for card in listed["sessions"]] == [
            (session.id, session.path, True)
        ]
        found = await asking.call("search_sessions", query="aardvark")
        assert [each["session"]["id"] for each in found["sessions"]] == [session.id]
        for name in (session.id, session.id[:-3], session.path, session.path.replace(".draft", ".jsonl")):
            opened = await asking.call("open_session", session=name)
            assert texts_of(opened) == ["an unanswered aardvark"]

    ask(other_store_at(tmp_path), scenario)
    assert snapshot(tmp_path) == before
