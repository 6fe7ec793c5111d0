"""A session in the page's API: numbers, outline, articles and gaps, for any agent."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import assistant, user
from http_rig import http
from page_sessions import calling, damaged_story, outlined, result, told_story, whole_tree
from sessile import Export, Library
from sessile.core.tree import NOWHERE
from sessile.gateway.pages.session_view import articles_of
from sessile.render.outline import HIDDEN, entry_line
from sessile.render.page import html_page
from sessions import append_raw, begun, dumps, say, write_file
from view_rig import CLAUDE, Household

pytestmark = [pytest.mark.anyio, pytest.mark.mission("B1")]

Json = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- numbers


async def test_an_entry_is_named_by_the_place_of_its_line(tmp_path: Path) -> None:
    """An entry number is its line in the file; leaf markers are counted but not part of the tree."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        told = await gate.get("/v1/view/session", id=session.id)
        with gate.gateway.store.open(session.path, readonly=True) as stored:
            ids = [entry.id for entry in stored.iter_lines()]
            markers = [number for number, entry in enumerate(stored.iter_lines()) if entry.type == "custom"]
            assert markers and told["total"] == len(ids)
            assert told["leaf"] == ids.index(stored.leaf_id or "")
            assert [ids[number] for number in told["path"]] == [entry.id for entry in stored.get_branch()]
            assert [ids[number] for number in told["heads"]] == [entry.id for entry in stored.get_heads()]
        assert told["labels"] == {"0": "start"}
        outline = await outlined(gate, session.id)
        assert [number for number, mark in enumerate(outline["marks"]) if mark & 64] == markers
        assert not set(markers) & {*told["path"], *told["heads"], *outline["parents"]}
        articles = (await gate.get("/v1/view/entries", id=session.id, **{"from": 0, "to": 50}))["articles"]
        assert sorted(map(int, articles)) == [number for number in range(len(ids)) if number not in markers]


async def test_what_a_session_is_costs_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's overview uses the index; only its first prompt, which names it, is decoded."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        decoded: list[bytes] = []

        def decode(raw: bytes) -> Any:
            decoded.append(raw)
            return json.loads(raw)

        monkeypatch.setattr("sessile.core.entries.decode", decode)
        told = await gate.get("/v1/view/session", id=session.id)
    assert len(decoded) <= 1, decoded
    assert told["agent"] == "sessile" and told["writable"] and told["live"] and told["cwd"] == "/work/app"
    assert dict(told["facts"])["branches"] == "3" and told["notes"] == []
    assert (told["model"], told["window"]) == ("p/m", None)  # nothing is known about this model


async def test_without_a_leaf_the_last_entry_is_shown(tmp_path: Path) -> None:
    """Without a leaf, the path to the last entry is shown, and `leaf` is null."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            say(session, "one")
            say(session, "two")
            session.reset_leaf(durable=True)
        told = await gate.get("/v1/view/session", id=session.id)
        assert told["leaf"] is None and told["path"] == [0, 1] and told["total"] == 3
        with begun(gate.gateway.store) as session:
            pass
        told = await gate.get("/v1/view/session", id=session.id)
        assert (told["leaf"], told["path"], told["heads"], told["model"], told["window"]) == (None, [], [], None, None)


async def test_an_anchor_leads_to_its_number(tmp_path: Path) -> None:
    """An anchor resolves to its entry number; an unknown anchor is null."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        anchors = (await outlined(gate, session.id))["anchors"]
        for number, anchor in enumerate(anchors):
            assert (await gate.get("/v1/view/session", id=session.id, at=anchor))["at"] == number
        for anchor in ("e-", "e-nothing", "", f"{anchors[0]}:0", "e-x:99999999999"):
            assert (await gate.get("/v1/view/session", id=session.id, at=anchor))["at"] is None


# -- the same as an export


@pytest.mark.parametrize("size", [1, 3, 5_000])
async def test_the_outline_is_that_of_an_export_in_parts_of_any_size(tmp_path: Path, size: int) -> None:
    """The outline matches the export for any page size."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        found = await outlined(gate, session.id, size)
        with gate.gateway.store.open(session.path, readonly=True) as stored:
            tree = whole_tree(stored)
        numbers = range(len(tree.tree.nodes))
        lines = [entry_line(tree.rows[number]) if number in tree.rows else HIDDEN for number in numbers]
        assert found["anchors"] == tree.anchors and found["parents"] == tree.tree.parents
        assert found["marks"] == [line.mark for line in lines] and 64 in found["marks"]
        assert found["lines"] == [line.line for line in lines]
        assert found["tokens"][1] == 1_000 and found["tokens"][0] is None and found["tokens"][3] is None
        assert "bash · run c1" in found["lines"]
        assert found["labels"] == {"0": "start"} and found["leaf"] == tree.leaf


@pytest.mark.promise("P36")
async def test_articles_are_those_of_an_export(tmp_path: Path) -> None:
    """Articles match the export, however they are requested."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        with gate.gateway.store.open(session.path, readonly=True) as stored:
            page = "".join(html_page(Export(stored).transcript()))
            exported = set(re.findall(r"<article .*?</article>\n", page, re.DOTALL))
        every = (await gate.get("/v1/view/entries", id=session.id, **{"from": 0, "to": 100}))["articles"]
        assert set(every.values()) == exported
        for number, article in every.items():
            assert (await gate.get("/v1/view/entries", id=session.id, numbers=number))["articles"] == {number: article}
        some = (await gate.get("/v1/view/entries", id=session.id, numbers="3,0,0,77"))["articles"]
        assert some == {"0": every["0"], "3": every["3"]}


async def test_a_result_knows_its_call_up_to_64_entries_before_it(tmp_path: Path) -> None:
    """A tool result shows its call only if that is at most 64 entries before it."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            for far in (63, 65):
                session.append_message(calling("I call", f"call{far}"))
                for number in range(far):
                    say(session, f"between {number}")
                session.append_message(result(f"call{far}", "done"))
        for number, is_told in ((64, True), (131, False)):
            (article,) = (await gate.get("/v1/view/entries", id=session.id, numbers=number))["articles"].values()
            assert ("run call" in article) is is_told


@pytest.mark.promise("P36")
async def test_nothing_stored_becomes_markup(tmp_path: Path) -> None:
    """Stored text never becomes markup, and direction-control characters are removed."""
    evil = "<img src=x onerror=alert(1)>\u202e"
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            first = session.append_message(user(evil)).id
            message = calling(evil, "c")
            message["content"][1]["name"] = evil
            session.append_message(message | {"model": evil, "provider": evil})
            session.append_message(result("c", evil) | {"toolName": evil})
            session.append_label_change(first, evil)
            session.append_custom_entry(evil, {evil: evil})
            session.set_session_name(evil)
        response = await gate.client.get("/v1/view/entries", params={"id": session.id, "from": 0, "to": 20})
        assert len(response.json()["articles"]) >= 5
        for article in response.json()["articles"].values():
            assert "<img" not in article and "<script" not in article and "\u202e" not in article
        told = await gate.get("/v1/view/session", id=session.id)
        outline = await outlined(gate, session.id)
        assert "\u202e" not in "".join([told["title"], told["labels"]["0"], *outline["lines"]])


async def test_a_picture_is_named_by_its_hash(tmp_path: Path) -> None:
    """Images are referenced by their hash, and the page loads them with its token."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            picture = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo" + "A" * 2_001}
            session.append_message({"role": "user", "content": [picture]})
        (article,) = (await gate.get("/v1/view/entries", id=session.id, numbers="0"))["articles"].values()
        assert re.search(r'<img data-blob="[0-9a-f]{64}" alt="image PNG', article)


# -- damage


async def test_gaps_are_told_at_their_places(tmp_path: Path) -> None:
    """Gaps are reported after the preceding entry, and are part of its article."""
    async with http(tmp_path) as gate:
        session = damaged_story(gate.gateway.store)
        told = await gate.get("/v1/view/session", id=session.id)
        assert [gap["after"] for gap in told["gaps"]] == [NOWHERE, 0] and all(gap["text"] for gap in told["gaps"])
        assert told["notes"] == ["2 places of the file could not be read"]
        articles = (await gate.get("/v1/view/entries", id=session.id, numbers="0,1"))["articles"]
        assert 'class="gap"' in articles["0"] and 'class="gap"' not in articles["1"]


async def test_entries_of_one_id_are_told_apart(tmp_path: Path) -> None:
    """Entries with the same id have their own numbers, anchors and articles."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            pass
        for text in ("first", "second"):
            append_raw(session.path, {"type": "message", "id": "aaaaaaa1", "parentId": None, "message": user(text)})
        outline = await outlined(gate, session.id)
        assert outline["lines"] == ["first", "second"] and outline["anchors"] == ["e-aaaaaaa1:0", "e-aaaaaaa1"]
        articles = (await gate.get("/v1/view/entries", id=session.id, numbers="0,1"))["articles"]
        assert "first" in articles["0"] and "second" in articles["1"]
        assert (await gate.get("/v1/view/session", id=session.id))["notes"]


async def test_a_file_of_an_old_version_is_shown_as_it_would_be_now(tmp_path: Path) -> None:
    """A file in an old format is shown in the current format and is not changed."""
    path = tmp_path / "sessions" / "--work-app--" / "2026-02-16T10-20-30-000Z_oldone01.jsonl"
    header = {"type": "session", "id": "oldone01", "timestamp": "2026-02-16T10:20:30.000Z", "cwd": "/work/app"}
    write_file(path, header, *({"type": "message", "message": user(text)} for text in ("One", "two")))
    before = path.read_bytes()
    async with http(tmp_path) as gate:
        assert (await outlined(gate, "oldone01"))["lines"] == ["One", "two"]
        assert (await gate.get("/v1/view/find", id="oldone01", q="ONE"))["numbers"] == [0]
    assert path.read_bytes() == before


# -- changes of the file


@pytest.mark.mission("B4")
async def test_what_others_append_is_seen_at_the_next_question(tmp_path: Path) -> None:
    """New entries appear in the next response with stable numbers; a torn line is read again when it is complete."""
    async with http(tmp_path) as gate:
        store = gate.gateway.store
        session = told_story(store)
        before = await outlined(gate, session.id)
        with store.open(session.path) as again:
            again.append_message(assistant("news"))
            again.append_label_change(again.leaf_id or "", "new")
        after = await outlined(gate, session.id)
        assert after["lines"][: before["total"]] == before["lines"]
        assert after["lines"][before["total"]] == "news" and "new" in after["labels"].values()
        told = await gate.get("/v1/view/session", id=session.id)
        assert told["leaf"] == after["leaf"] == after["total"] - 1
        torn = '{"type": "message", "id": "aaaaaaa9", "parentId": null, "message": {"role": "user", "content": "half'
        with open(session.path, "a") as file:
            file.write(torn)
        assert (await gate.get("/v1/view/session", id=session.id))["total"] == after["total"]
        with open(session.path, "a") as file:
            file.write(' done"}}\n')
        assert (await outlined(gate, session.id))["lines"][-1] == "half done"


async def test_a_file_that_was_put_in_place_of_another_is_read_anew(tmp_path: Path) -> None:
    """A replaced file is read again completely."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        before = await outlined(gate, session.id)
        with gate.gateway.store.open(session.path) as again:
            again.rewrite_entries(
                lambda entry: {**entry, "message": user("changed")} if entry.type == "message" else None
            )
        after = await outlined(gate, session.id)
        assert after["total"] == before["total"] and after["lines"][0] == "changed"


async def test_a_session_that_is_gone_is_told_so(tmp_path: Path) -> None:
    """A moved session is found again, and a deleted one returns 404."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        await gate.get("/v1/view/session", id=session.id)
        moved = Path(session.path).parent.parent / "--elsewhere--" / Path(session.path).name
        moved.parent.mkdir()
        os.rename(session.path, moved)
        gate.gateway.shelf.touched()
        assert (await gate.get("/v1/view/session", id=session.id))["total"]
        moved.unlink()
        gate.gateway.shelf.touched()
        assert (await gate.refusal("GET", "/v1/view/session", {"id": session.id}))[0] == 404


@pytest.mark.parametrize("path", ["session", "outline", "entries", "raw", "saw", "find", "diff"])
async def test_names_are_those_of_the_command(tmp_path: Path, path: str) -> None:
    """An unknown name or an outside file returns 404, and an ambiguous name 409."""
    more: Json = {
        "entries": {"from": 0},
        "raw": {"number": 0},
        "saw": {"at": 0},
        "find": {"q": "x"},
        "diff": {"a": 0, "b": 0},
    }
    async with http(tmp_path / "root") as gate:
        session = told_story(gate.gateway.store)
        told_story(gate.gateway.store)
        elsewhere = tmp_path / "elsewhere.jsonl"
        elsewhere.write_bytes(Path(session.path).read_bytes())
        query = more.get(path, {})
        for name, status in ((session.id, 200), ("@last", 200), (str(elsewhere), 404), ("nothing", 404), ("Fix", 409)):
            response = await gate.client.get(f"/v1/view/{path}", params={"id": name, **query})
            assert response.status_code == status, (name, response.text)


async def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    """Invalid queries return 400, and an unknown entry or a leaf marker returns 404."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        queries: list[Json] = [
            {},
            {"numbers": "1", "from": 1},
            {"numbers": "1,,2"},
            {"numbers": "x"},
            {"from": 0, "to": 201},
        ]
        queries += [{"numbers": ",".join(map(str, range(201)))}, {"from": -1}]
        for query in queries:
            assert (await gate.refusal("GET", "/v1/view/entries", {"id": session.id, **query}))[0] == 400, query
        marker = [mark & 64 for mark in (await outlined(gate, session.id))["marks"]].index(64)
        for number in (4_000, marker):
            found = await gate.refusal("GET", "/v1/view/raw", {"id": session.id, "number": number})
            assert found[0] == 404, number


async def test_an_entry_is_given_as_it_is_stored(tmp_path: Path) -> None:
    """The raw view returns the stored line, its size and the parent's number."""
    async with http(tmp_path) as gate:
        session = told_story(gate.gateway.store)
        raw = await gate.get("/v1/view/raw", id=session.id, number=2)
        line = Path(session.path).read_bytes().split(b"\n")[3]
        assert raw["line"] == line.decode() and raw["bytes"] == len(line)
        assert raw["entry"]["message"]["toolCallId"] == "c1" and raw["parent"] == 1 and raw["id"] == raw["entry"]["id"]


# -- other agents


async def test_a_session_of_another_agent_is_shown_like_ones_own(tmp_path: Path) -> None:
    """Another agent's session uses the same numbers everywhere, is read-only, and its folder is not changed."""
    home = Household(tmp_path)
    path = home.write_claude("Fix the *web* page", "I did", "Thanks", "Gern")
    with open(path, "a") as file:
        file.write(dumps({"type": "custom-title", "customTitle": "Web", "sessionId": CLAUDE}) + "\n")
    before = {file: file.stat() for file in home.projects.rglob("*")}
    async with http(tmp_path / "own", sources=home.sources) as gate:
        told = await gate.get("/v1/view/session", id=CLAUDE)
        assert (told["agent"], told["writable"], told["live"], told["title"]) == ("claude", False, False, "Web")
        outline = await outlined(gate, CLAUDE)
        with gate.gateway.store.open(str(path), readonly=True) as stored:
            lines = list(stored.iter_lines())
            shown = [entry.id for entry in stored.iter_entries()]
        assert told["total"] == len(lines) == outline["total"]
        seen = [number for number, mark in enumerate(outline["marks"]) if not mark & 64]
        assert [lines[number].id for number in seen] == shown and told["path"] == seen
        articles = (await gate.get("/v1/view/entries", id=CLAUDE, **{"from": 0, "to": 100}))["articles"]
        assert sorted(map(int, articles)) == seen and "<em>web</em>" in articles[str(seen[0])]
        assert (await gate.get("/v1/view/find", id=CLAUDE, q="gern"))["numbers"] == [seen[3]]
        saw = await gate.get("/v1/view/saw", id=CLAUDE, at=seen[3])
        assert saw["numbers"] == seen[:3]
        assert (await gate.get("/v1/view/raw", id=CLAUDE, number=seen[1]))["parent"] == seen[0]
    assert {file: file.stat() for file in home.projects.rglob("*")} == before


# -- concurrency and size


async def test_views_may_be_asked_from_many_threads(tmp_path: Path) -> None:
    """Views can be used from many threads while a session grows and views are closed."""
    async with http(tmp_path) as gate:
        store, views = gate.gateway.store, gate.gateway.views
        sessions = [told_story(store) for _ in range(6)]
        failures: list[BaseException] = []

        def look(turn: int) -> None:
            try:
                for number in range(12):
                    with views.opened(sessions[(turn + number) % len(sessions)].id) as view:
                        assert len(articles_of(view, range(4))) == 4
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=look, args=(turn,)) for turn in range(6)]
        for thread in threads:
            thread.start()
        with store.open(sessions[0].path) as session:
            for number in range(20):
                say(session, f"more {number}")
        for thread in threads:
            thread.join()
        assert failures == []


def quickest(run: Callable[[], object]) -> float:
    """Return the shortest CPU time of several runs."""
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


async def test_a_part_of_a_large_session_costs_as_much_as_one_of_a_small(tmp_path: Path) -> None:
    """Rendering 100 entries takes about as long in a session of 20,000 entries as in one of 200."""
    async with http(tmp_path) as gate:
        paths = {}
        for size in (200, 20_000):
            with begun(gate.gateway.store) as session:
                for _ in range(size // 200):
                    session.append_many([{"type": "message", "message": user(f"number {n}")} for n in range(200)])
            paths[size] = session.id
            assert (await gate.get("/v1/view/session", id=session.id))["total"] == size

        def articles(size: int) -> None:
            with gate.gateway.views.opened(paths[size]) as view:
                assert len(articles_of(view, range(size - 100, size))) == 100

        small, large = (quickest(lambda size=size: articles(size)) for size in (200, 20_000))  # type: ignore[misc]
        assert large < 3 * small


async def test_a_new_session_is_opened_without_a_look_at_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks for sessions that its gateway has just made, and a look at all files keeps other requests waiting."""
    async with http(tmp_path) as gate:
        await gate.get("/v1/view/sessions")  # the shelf looks
        looks: list[str] = []
        monkeypatch.setattr(Library, "catch_up", lambda *given, **more: looks.append("look"))
        session = gate.gateway.store.create("/work", publish=True)
        session.close()
        assert (await gate.get("/v1/view/session", id=session.id))["id"] == session.id
        assert not looks
