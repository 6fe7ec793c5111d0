"""Maintenance of conversations: plans, archives, the disk limit, and undo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import Json
from sessile import Store
from sessile.config import Maintenance
from sessile.core.resets import ResetConfig, ResetRule
from sessile.core.usage import Usage
from sessile.errors import Damaged, NotFound
from sessile.gateway.conversations.inbound import Routing
from sessile.gateway.conversations.maintenance import Maintained, MaintenancePlan, apply_maintenance, plan_maintenance
from sessile.gateway.conversations.maintenance import undo_maintenance as undo
from sessile.gateway.conversations.registry import Conversations
from sessile.gateway.conversations.removed import Archives
from sessile.storage.atomic import exists, read_all, replace
from sessile.storage.locks import open_files
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.session_bytes import RawFile
from sessions import Clock, numbered, say
from yoyoclaw import MAIN, NOW, stored

pytestmark = pytest.mark.mission("Y2")

ROOT = "/ours"
DAY = 24 * 60 * 60_000
MONTH = 30 * DAY
ENFORCE = Maintenance(mode="enforce")


class Rig:
    """Conversations in a memory file system, with the clock of the store."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.fs = MemoryFilesystem(clock=lambda: int(self.clock.seconds * 1e9))
        self.store = Store(ROOT, fs=self.fs, clock=self.clock, random=numbered(), durability="process")
        never = ResetConfig(base=ResetRule(mode="none"))
        usual: Json = {"workspace": lambda agent: f"/work/{agent}", "resets": never, "hold": None}
        self.all = Conversations(self.store, **usual | options)

    def at(self, now: int) -> None:
        self.clock.seconds = now / 1000

    def speak(self, name: str, now: int, text: str = "hello") -> str:
        """Append a message to a conversation at this time and return its key."""
        self.at(now)
        bound = self.all.resolve(key(name) if ":" not in name else name)
        with self.store.open(bound.path) as session:
            say(session, text)
        self.all.count(bound.text, bound.session_id, usage=Usage(input=1))
        self.all.flush()
        return bound.text

    def path(self, name: str) -> str:
        path = self.all.path_of(key(name))
        assert path is not None
        return path

    def entries(self, agent: str = "main") -> Json:
        found: Json = json.loads(read_all(self.fs, f"{ROOT}/agents/{agent}/sessions/sessions.json"))
        return found

    def write(self, entries: Json) -> None:
        replace(self.fs, f"{ROOT}/agents/main/sessions/sessions.json", (stored(entries),))

    def plan(self, rules: Maintenance = ENFORCE, now: int | None = None, **options: Any) -> MaintenancePlan:
        return plan_maintenance(self.all, "main", rules, now, **options)

    def run(self, rules: Maintenance = ENFORCE, **options: Any) -> Maintained:
        return apply_maintenance(self.all, self.plan(rules), **options)


def key(name: str) -> str:
    return f"agent:main:telegram:direct:{name}"


def going(plan: MaintenancePlan) -> dict[str, str]:
    return {row.key.rpartition(":")[2]: row.why for row in plan.going}


def staying(plan: MaintenancePlan) -> dict[str, str]:
    return {row.key.rpartition(":")[2]: row.why for row in plan.staying}


@pytest.fixture
def rig() -> Rig:
    """The main conversation and four others, each a day younger than the one before; the oldest is exactly a month old."""
    one = Rig()
    for number, name in enumerate([MAIN, "a", "b", "c", "d"]):
        one.speak(name, NOW + number * DAY)
    one.at(NOW + DAY + MONTH)
    return one


# -- the plan


def test_what_nobody_used_for_a_month_is_old_and_what_is_just_a_month_is_not(rig: Rig) -> None:
    """The time of the last change decides, to the millisecond; the main conversation stays."""
    assert going(rig.plan()) == {}
    assert staying(rig.plan()) == {"main": "main"} | dict.fromkeys("abcd", "newest")
    later = rig.plan(now=NOW + DAY + MONTH + 1)
    assert going(later) == {"a": "old"}
    assert [row.updated_at for row in later.going] == [NOW + DAY]
    assert going(rig.plan(Maintenance(prune_after="2d"), NOW + 5 * DAY)) == {"a": "old", "b": "old"}


def test_beyond_the_newest_the_oldest_go(rig: Rig) -> None:
    """Protected conversations count, too, and an excess that remains is reported."""
    assert going(rig.plan(Maintenance(max_entries=3))) == {"a": "too many", "b": "too many"}
    assert going(rig.plan(Maintenance(max_entries=5))) == {}
    few = rig.plan(Maintenance(max_entries=1), live=[key("b"), key("D")], now=NOW + 2 * DAY + MONTH)
    assert going(few) == {"a": "old", "c": "too many", "d": "too many"}
    assert (staying(few), few.too_many) == ({"main": "main", "b": "live"}, 1)


def test_of_an_unknown_age_nothing_is_old_but_it_is_the_first_that_is_too_many(rig: Rig) -> None:
    """A conversation without a date is never too old, but is the first to go if there are too many."""
    rig.write(rig.entries() | {key("e"): {"sessionId": "e"}})
    assert staying(rig.plan(now=NOW + 90 * DAY)) == {"main": "main", "e": "undated"}
    assert going(rig.plan(Maintenance(max_entries=5))) == {"e": "too many"}


def test_what_is_in_use_stays(rig: Rig) -> None:
    """A conversation stays if it is live, pinned or open, by its key or by its session."""
    ids = {name: rig.entries()[key(name)]["sessionId"] for name in "abcd"}
    rig.all.patch(key("d"), {"pinnedAt": NOW})
    with RawFile(rig.fs, rig.path("c")) as file:
        file.hold(patience=0)
        plan = rig.plan(now=NOW + 300 * DAY, live=[ids["a"]], pinned=[ids["b"]])
    assert going(plan) == {}
    assert staying(plan) == {"main": "main", "a": "live", "b": "pinned", "c": "open", "d": "pinned"}


def test_a_session_that_a_program_has_open_stays(tmp_path: Path) -> None:
    """An idle session stays, too, if the system lists open files."""
    store = Store(tmp_path, clock=Clock(), random=numbered(), durability="process")
    with Conversations(store, workspace=lambda agent: f"/work/{agent}", hold=None) as all_:
        bound = all_.resolve(key("a"))
        with store.open(bound.path) as session:
            say(session, "hello")
            plan = plan_maintenance(all_, "main", ENFORCE, NOW + 90 * DAY)
        if open_files() is not None:
            assert staying(plan) == {"a": "open"}
        assert going(plan_maintenance(all_, "main", ENFORCE, NOW + 90 * DAY)) == {"a": "old"}


def test_the_main_conversation_stays_under_any_spelling() -> None:
    """The main conversation stays with another name or spelling, and with a global scope."""
    rig = Rig(routing=Routing(main_key="home"))
    rig.speak("agent:main:home", NOW)
    entries = rig.entries()
    rig.write({"Agent:Main:Home": entries["agent:main:home"], "global": {"updatedAt": NOW}})
    assert staying(rig.plan(now=NOW + 90 * DAY)) == {"Home": "main"}
    everybody = Rig(routing=Routing(scope="global"))
    everybody.speak("agent:main:main", NOW)
    assert staying(everybody.plan(now=NOW + 90 * DAY)) == {"global": "main"}


def test_what_is_counted_but_not_written_yet_is_known(rig: Rig) -> None:
    """A recent use protects a conversation before it is written to the file."""
    rig.at(NOW + 90 * DAY)
    rig.all.resolve(key("a"))
    assert staying(rig.plan())["a"] == "newest"
    assert rig.entries()[key("a")]["updatedAt"] == NOW + DAY


def test_a_plan_writes_nothing(rig: Rig) -> None:
    """Planning writes nothing, also for an agent without conversations."""
    calls = Rig()
    before = rig.fs.lstat(f"{ROOT}/agents/main/sessions/sessions.json")
    rig.plan(Maintenance(mode="enforce", max_entries=1, max_disk_bytes=1), NOW + 90 * DAY)
    assert rig.fs.lstat(f"{ROOT}/agents/main/sessions/sessions.json") == before
    assert rig.fs.names(f"{ROOT}/agents/main/sessions") == ["sessions.json"]
    assert calls.plan(Maintenance(max_disk_bytes=0)).summary == ()
    assert not exists(calls.fs, ROOT)


def test_what_a_person_should_know_is_told_in_sentences(rig: Rig) -> None:
    """The summary has the number, the agent and the reason."""
    told = rig.plan(Maintenance(max_entries=1), NOW + DAY + MONTH + 1, live=[key("d")]).summary
    assert told == (
        "1 conversation of main: old, would be archived in mode enforce",
        "2 conversations of main: too many, would be archived in mode enforce",
        "1 conversation of main: above maxEntries, but in use",
    )
    assert rig.plan().summary == ()


# -- applying it


def test_to_warn_is_to_tell_and_nothing_else(rig: Rig) -> None:
    """The default mode only reports."""
    before = rig.entries()
    done = apply_maintenance(rig.all, rig.plan(Maintenance(max_entries=2, max_disk_bytes=10), NOW + 90 * DAY))
    assert len(done.summary) >= 2
    assert (done.token, done.removed, done.deletions) == (None, (), ())
    assert rig.entries() == before
    assert rig.fs.names(f"{ROOT}/agents/main/sessions") == ["sessions.json"]


def test_what_goes_is_archived_and_its_session_stays(rig: Rig) -> None:
    """The next message starts a new session, and the old one can still be read."""
    before, path = rig.entries(), rig.path("a")
    rig.at(NOW + 2 * DAY + MONTH + 1)
    done = rig.run()
    assert done.removed == (key("a"), key("b"))
    assert list(rig.entries()) == [MAIN, key("c"), key("d")]
    assert done.archive is not None and done.archive.startswith(f"{ROOT}/agents/main/sessions/sessions.archived.")
    archive = json.loads(read_all(rig.fs, done.archive))
    assert archive["entries"] == {name: before[name] for name in done.removed}
    assert archive["why"] == dict.fromkeys(done.removed, "old")
    assert exists(rig.fs, path) and done.deletions == ()
    assert rig.all.get(key("a")) is None
    assert rig.all.resolve(key("a")).is_new
    assert rig.run().removed == ()


def test_it_comes_back_whole_and_stays(rig: Rig) -> None:
    """All members are restored; the conversation counts as used, so the next run keeps it."""
    before = rig.entries()
    rig.at(NOW + 2 * DAY + MONTH + 1)
    done = rig.run()
    assert done.token is not None and done.archive is not None
    back = undo(rig.all, done.token)
    assert (back.keys, back.refused, back.missing) == (done.removed, (), ())
    after = rig.entries()
    for name in done.removed:
        assert after[name] == before[name] | {"updatedAt": NOW + 2 * DAY + MONTH + 1}
    assert not exists(rig.fs, done.archive)
    assert rig.run().removed == ()
    with pytest.raises(NotFound):
        undo(rig.all, done.token)


def test_a_key_that_has_a_new_session_keeps_it(rig: Rig) -> None:
    """The other keys are restored, and the archive stays for the rest."""
    rig.at(NOW + 2 * DAY + MONTH + 1)
    done = rig.run()
    assert done.token is not None and done.archive is not None
    new = rig.all.resolve(key("a")).session_id
    back = undo(rig.all, done.token)
    assert (back.keys, back.refused) == ((key("b"),), (key("a"),))
    assert rig.all.resolve(key("a")).session_id == new
    assert exists(rig.fs, done.archive)
    rig.all.delete(key("a"))
    assert undo(rig.all, done.token).refused == ()


def test_what_was_used_since_the_plan_stays(rig: Rig) -> None:
    """A conversation stays if it was used, edited or deleted, or if a turn started."""
    rig.at(NOW + 90 * DAY)
    plan = rig.plan()
    rig.all.resolve(key("a"))
    rig.all.patch(key("b"), {"label": "mine"})
    rig.all.delete(key("d"))
    done = apply_maintenance(rig.all, plan, live=[key("c")])
    assert done.removed == () and done.token is None and done.archive is None
    assert dict(done.refused) == {
        key("a"): "used since the plan was made",
        key("b"): "used since the plan was made",
        key("c"): "in use",
        key("d"): "used since the plan was made",
    }
    assert not [name for name in rig.fs.names(f"{ROOT}/agents/main/sessions") if "archived" in name]


def test_an_archive_that_cannot_be_read_is_told(rig: Rig) -> None:
    """An invalid token is not found."""
    rig.at(NOW + 90 * DAY)
    done = rig.run()
    assert done.archive is not None and done.token is not None
    replace(rig.fs, done.archive, (b"{",))
    with pytest.raises(Damaged) as caught:
        undo(rig.all, done.token)
    assert caught.value.path == done.archive
    for token in ("../../x", "main/x.1", "", "nobody.1-aa"):
        with pytest.raises(NotFound):
            undo(rig.all, token)


def test_half_an_emoji_can_be_archived(rig: Rig) -> None:
    """Lone surrogates in a key and a member can be archived."""
    rig.write(rig.entries() | {key("\ud83d"): {"sessionId": "x", "updatedAt": NOW, "label": "\ud83d"}})
    rig.at(NOW + 90 * DAY)
    done = rig.run(Maintenance(mode="enforce", max_entries=4))
    assert key("\ud83d") in done.removed and done.token is not None
    assert undo(rig.all, done.token).missing == ("x",)
    assert rig.entries()[key("\ud83d")]["label"] == "\ud83d"


# -- the disk


def spoken(rig: Rig, size: int = 10_000) -> int:
    """Make the sessions of all conversations large and return the size of everything."""
    for number, name in enumerate("abcd"):
        rig.at(NOW + number * DAY)
        with rig.store.open(rig.path(name)) as session:
            say(session, "x" * size)
    rig.at(NOW + 10 * DAY)
    used = rig.plan(Maintenance(max_disk_bytes=1 << 40)).bytes
    assert used is not None and used > 4 * size
    return used


def test_a_limit_of_the_disk_takes_the_oldest_until_all_is_well_below_it(rig: Rig) -> None:
    """Conversations are removed with their sessions until four fifths of the limit are used, and can be restored."""
    used = spoken(rig)
    exact = rig.plan(Maintenance(mode="enforce", max_disk_bytes=used))
    assert going(exact) == {} and exact.sessions is None
    paths = {name: rig.path(name) for name in "abcd"}
    rules = Maintenance(mode="enforce", max_disk_bytes=used - 1)
    plan = rig.plan(rules)
    assert going(plan) == {"a": "disk"} and plan.sessions is not None
    assert [one.path for one in plan.sessions.candidates] == [paths["a"]]
    assert plan.bytes == used and plan.too_large == 0
    done = apply_maintenance(rig.all, plan)
    assert [deletion.paths for deletion in done.deletions] == [(paths["a"],)]
    assert done.removed == (key("a"),) and done.token is not None
    assert not exists(rig.fs, paths["a"]) and exists(rig.fs, paths["b"])
    assert going(rig.plan(rules)) == {}
    back = undo(rig.all, done.token)
    assert (back.keys, back.missing) == ((key("a"),), ())
    assert rig.all.resolve(key("a")).path == paths["a"]


def test_sessions_without_a_conversation_go_first(rig: Rig) -> None:
    """Sessions of archived conversations are removed before those of current ones."""
    used = spoken(rig)
    paths = {name: rig.path(name) for name in "abcd"}
    archived = rig.run(Maintenance(mode="enforce", max_entries=4))
    assert archived.removed == (key("a"),)
    plan = rig.plan(Maintenance(mode="enforce", max_entries=3, max_disk_bytes=used - 10_000))
    assert going(plan) == {"b": "too many"} and plan.sessions is not None
    assert [one.path for one in plan.sessions.candidates] == [paths["a"], paths["b"]]
    done = apply_maintenance(rig.all, plan)
    assert len(done.deletions) == 2
    assert archived.token is not None
    assert undo(rig.all, archived.token).missing == ()
    assert rig.all.resolve(key("a")).path == paths["a"]


def test_a_session_that_another_conversation_names_stays(rig: Rig) -> None:
    """The other conversation can belong to any agent and name the session as its current or an earlier one."""
    spoken(rig)
    ids = {name: rig.entries()[key(name)]["sessionId"] for name in "abcd"}
    other = "agent:ops:main"
    rig.all.reset(other, session_id=ids["a"])
    rig.all.reset(MAIN, session_id=ids["b"])
    rig.all.reset(MAIN)
    plan = rig.plan(Maintenance(mode="enforce", max_disk_bytes=1))
    assert going(plan) == {"c": "disk", "d": "disk"}
    assert plan.sessions is not None and [one.id for one in plan.sessions.candidates] == [ids["c"], ids["d"]]
    assert plan.too_large > 20_000
    rig.all.reset(other, session_id=ids["c"])  # after the plan was made
    done = apply_maintenance(rig.all, plan)
    assert len(done.deletions) == 1 and rig.all.path_of(other) is not None


def test_earlier_sessions_go_with_their_conversation(rig: Rig) -> None:
    """They are restored with it."""
    rig.at(NOW + DAY)
    rig.all.reset(key("a"))
    spoken(rig)
    plan = rig.plan(Maintenance(mode="enforce", max_disk_bytes=1))
    assert plan.sessions is not None and len(plan.sessions.candidates) == 5
    done = apply_maintenance(rig.all, plan)
    assert done.token is not None and len(done.deletions) == 5
    undo(rig.all, done.token)
    assert rig.store.deletions() == ()
    assert rig.all.resume(key("a")).path


def test_what_prune_spares_is_spared_here(rig: Rig) -> None:
    """A recently used session stays, and so does its conversation, because removing it would free no space."""
    used = spoken(rig)
    rig.at(NOW + DAY // 2)
    plan = rig.plan(Maintenance(mode="enforce", max_disk_bytes=1))
    assert going(plan) == {} and plan.too_large == used - 1
    assert plan.summary == (f"{used - 1:,} bytes of main: above maxDiskBytes, but in use",)


def test_archives_are_listed_oldest_first(rig: Rig) -> None:
    """Each archive is listed with its content."""
    for number in (1, 2):
        rig.at(NOW + number * DAY + MONTH + 1)
        rig.run()
    archives = Archives(rig.store, rig.all.internals.home).list("main")
    assert [list(archive.entries) for archive in archives] == [[key("a")], [key("b")]]
