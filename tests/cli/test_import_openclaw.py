"""`sessile import openclaw`: import the sessions and keys of a gateway, with a report for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import said
from sessions import append_raw, snapshot
from yoyoclaw import GROUP, MAIN, lines, stored, talk, write

from .conftest import Command

pytestmark = pytest.mark.mission("Y2")

TOPIC = f"{GROUP}:topic:7"
WHEN = "2026-02-03T10-00-00.000Z"
ENTRIES = {
    MAIN: {"sessionId": "s1", "updatedAt": 5, "label": "Trip", "contextTokens": 200_000, "totalTokens": 77},
    TOPIC: {"sessionId": "s1", "provider": "telegram", "queueCap": "three"},
    GROUP: {"sessionId": "gone"},
}


@pytest.fixture
def gateway(home: Path) -> Path:
    """Return a gateway's sessions folder: two keys with transcripts, one without, an orphan, archives and a torn line."""
    folder = home / ".openclaw" / "agents" / "main" / "sessions"
    write(folder, "s1.jsonl", lines(*talk("s1", "apple", "berry", "cherry")))
    write(folder, "s1-topic-7.jsonl", lines(*talk("s1", "topical")))
    write(folder, f"s2.jsonl.reset.{WHEN}", lines(*talk("s2", "resetty")))
    write(folder, f"s3.jsonl.deleted.{WHEN}", lines(*talk("s3", "deletey")))
    write(folder, "s4.jsonl", lines(*talk("s4", "orphan"), "{torn"))
    write(folder, "sessions.json", stored(ENTRIES))
    return folder


def test_an_import_tells_what_became_of_every_session_and_key(sessile: Command, gateway: Path, home: Path) -> None:
    """The report is a table of sessions with their keys, their source files, and what was skipped or damaged."""
    before = snapshot(home / ".openclaw")
    done = sessile("import", "openclaw")
    rows = {line.split("\t")[1]: line.split("\t") for line in done.out.splitlines()}
    assert rows["s1"] == [MAIN, "s1", "3", "3", "transcript"]
    assert rows["s1-topic-7"] == [TOPIC, "s1-topic-7", "1", "1", "transcript, topic 7"]
    assert rows["s2"] == ["", "s2", "1", "1", "1 reset"]
    assert rows["s4"][4] == "orphan: no key refers to it, 1 unreadable"
    assert rows[""] == [GROUP, "", "", "", "no transcript"]
    assert "s3.jsonl.deleted" in done.err and "deleted by its owner" in done.err
    assert "3 keys of main: 3 new → ~/.sessile/agents/main/sessions/sessions.json" in done.err
    assert "mapped: contextWindow (1), contextTokens (1), sessionId (1)" in done.err
    assert f"unusual, kept: {TOPIC}: queueCap" in done.err
    assert "~/.openclaw: 4 sessions, 6 new entries" in done.err
    assert done.code == 5  # the torn line
    assert snapshot(home / ".openclaw") == before


def test_the_account_for_programs_keeps_its_members(sessile: Command, gateway: Path) -> None:
    """The members are a documented contract; each key lists what was mapped and what was kept."""
    document = sessile("import", "yoyoclaw", "--json").json
    golden = json.loads((Path(__file__).parent / "documents.json").read_text())["import-openclaw/1"]
    assert document["schema"] == "sessile.import-openclaw/1"
    assert sorted(document) == golden["members"]
    assert all(sorted(item) == golden["item"] for item in document["items"])
    items = {item["id"]: item for item in document["items"]}
    assert (items["s1"]["entries"], items["s1"]["new"], items["s1"]["present"]) == (3, 3, 0)
    assert items["s2"]["archives"] == [{"path": f"{gateway}/s2.jsonl.reset.{WHEN}", "reason": "reset"}]
    assert [trouble["code"] for trouble in items["s4"]["unreadable"]] == ["not_json"]
    keys = {item["key"]: item for item in document["keys"]}
    assert keys[MAIN]["mapped"] == {"contextWindow": [None, 200_000], "contextTokens": [200_000, 77]}
    assert keys[MAIN]["kept"] == ["sessionId", "updatedAt", "label", "totalTokens"]
    assert (keys[TOPIC]["session"], keys[GROUP]["session"]) == ("s1-topic-7", None)
    assert Path(document["stores"][0]["original"]).read_bytes() == (gateway / "sessions.json").read_bytes()


def test_again_adds_only_what_is_new(sessile: Command, gateway: Path, home: Path) -> None:
    """A second import changes nothing; later ones add new entries and, on request, deleted sessions."""
    sessile("import", "openclaw")
    before = snapshot(home / ".sessile")
    again = sessile("import", str(home / ".openclaw"), "--json").json
    assert snapshot(home / ".sessile") == before
    assert [item["new"] for item in again["items"]] == [0, 0, 0, 0]
    assert {item["state"] for item in again["keys"]} == {"present"}
    append_raw(gateway / "s1.jsonl", said("damson", "cherry"))
    done = sessile("import", "openclaw", "--deleted")
    assert "5 sessions, 2 new entries" in done.err
    assert "damson" in sessile("show", str(_file(home, "_s1.jsonl"))).out


def _file(home: Path, ending: str) -> Path:
    return next(path for path in (home / ".sessile" / "sessions").rglob("*.jsonl") if path.name.endswith(ending))


def test_imported_sessions_are_ones_own(sessile: Command, gateway: Path, home: Path) -> None:
    """They are listed with their titles, found by search and can be renamed."""
    sessile("import", "openclaw")
    listed = sessile("ls", "-a", "sessile").out
    assert "Trip" in listed and "s1-topic-7" in listed
    assert "resetty" in sessile("search", "resetty", "-a", "sessile").out
    assert sessile("rename", str(_file(home, "_s2.jsonl")), "Before the reset").code == 0


def test_two_homes_are_imported_together_and_apart(sessile: Command, gateway: Path, home: Path) -> None:
    """The agent's name selects both homes, a path selects one."""
    write(home / ".yoyoclaw" / "agents" / "ops" / "sessions", "t1.jsonl", lines(*talk("t1", "x")))
    assert {item["agent"] for item in sessile("import", "openclaw", "--json").json["items"]} == {"main", "ops"}
    alone = sessile("import", str(home / ".yoyoclaw"), "--json").json["items"]
    assert [item["id"] for item in alone] == ["t1"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["openclaw", "webhook"], 2, "together with sessions"),
        (["~/.sessile"], 2, "into itself"),
        (["webhook", "--deleted"], 2, "gateways only"),
        (["~/.claude"], 5, "a folder, not a session"),
    ],
)
def test_what_cannot_be_imported_so_is_refused(
    sessile: Command, gateway: Path, home: Path, arguments: list[str], code: int, told: str
) -> None:
    """The error has a hint; a folder of agents that is not a gateway's is refused too."""
    sessile("import", "openclaw")
    (home / ".claude" / "agents").mkdir(parents=True)
    (home / ".claude" / "agents" / "reviewer.md").write_text("you review")
    done = sessile("import", *arguments)
    assert (done.code, told in done.err, "hint:" in done.err) == (code, True, True), done


def test_without_a_gateway_it_says_where_it_looked(sessile: Command, home: Path) -> None:
    """The message lists the searched folders and how to name another."""
    done = sessile("import", "openclaw")
    assert done.code == 3
    assert "~/.openclaw, ~/.yoyoclaw" in done.err and "sessile import PATH" in done.err


def test_a_broken_store_is_told_and_its_sessions_are_imported(sessile: Command, gateway: Path) -> None:
    """The report has line and column."""
    (gateway / "sessions.json").write_bytes(b'{\n  "a": {},\n}')
    done = sessile("import", "openclaw")
    assert done.code == 5
    assert "line 3, column 1" in done.err
    assert len(done.out.splitlines()) == 4


@pytest.mark.promise("P37")
@pytest.mark.parametrize("how", ["", "--plain", "--json"])
def test_keys_and_names_cannot_drive_the_terminal(sessile: Command, home: Path, how: str) -> None:
    """Control characters in keys, names and values are escaped."""
    folder = home / ".openclaw" / "agents" / "main" / "sessions"
    evil = "\x1b]0;owned\x07\u202e"
    write(folder, "s1.jsonl", lines(*talk("s1", "a")))
    write(folder, "s\x1b[31m.jsonl", lines(*talk("s2", "a"), "{torn"))
    store = {f"{MAIN}{evil}": {"sessionId": "s1", "label": evil, "queueMode": evil, "sessionFile": f"../{evil}"}}
    write(folder, "sessions.json", stored(store))
    done = sessile("import", "openclaw", *([how] if how else []))
    assert "s1" in done.out
    assert not set("\x1b\x07\u202e") & set(done.out + done.err)


def test_the_number_of_conversations_is_told_with_the_sources(sessile: Command, gateway: Path) -> None:
    """JSON has the number too; it is null for agents without keys and for a broken store."""
    assert "3 conversation keys" in sessile("sources", "--plain").out
    assert "3 conversation keys" in sessile("--plain").out
    assert [item["keys"] for item in sessile("sources", "--json").json["items"]] == [None, 3]
    (gateway / "sessions.json").write_bytes(b"{")
    assert [item["keys"] for item in sessile("sources", "--json").json["items"]] == [None, None]
