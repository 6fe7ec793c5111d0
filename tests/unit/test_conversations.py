"""Conversations: keys, sessions, resets, lists, patches, counters, and store files edited by hand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from builders import Json
from sessile import Store
from sessile.agents.openclaw.document import BrokenStore, parse_store
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import PATTERNS, SessionKey
from sessile.agents.openclaw.routing import Binding, Peer
from sessile.core.resets import ResetConfig, ResetRule, previous_sessions, read_reset_config
from sessile.core.usage import Usage
from sessile.errors import Conflict, Invalid, InvalidConfig, InvalidId, NotFound, SessionNotFound, UnsafePath
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.conversations.inbound import Inbound, Keys, Routing, key_of
from sessile.gateway.conversations.registry import ConversationFilter, Conversations
from sessions import Clock, answer, begun, numbered, say, snapshot, told
from yoyoclaw import GROUP, MAIN, NOW, stored

WORK = "/work/agents"
MINUTE = 60_000
DAY = 24 * 60 * MINUTE
NEVER = ResetConfig(base=ResetRule(mode="none"))
DIRECT = Inbound(channel="telegram", peer="Ann", to="Ann")


class Rig:
    """Conversations in a folder, with a clock that can be set."""

    def __init__(self, root: Path, seed: str = "", **options: Any) -> None:
        self.clock = Clock()
        self.store = Store(root, clock=self.clock, random=numbered(seed), durability="process", patience=2.0)
        self.file = root / "agents/main/sessions/sessions.json"
        usual: Json = {"workspace": lambda agent: f"{WORK}/{agent}", "resets": NEVER, "hold": None}
        self.all = Conversations(self.store, **usual | options)

    def on_disk(self) -> Json:
        found: Json = json.loads(self.file.read_bytes()) if self.file.exists() else {}
        return found

    def write(self, entries: Json) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(stored(entries))

    def edit(self, key: str, **members: Any) -> None:
        """Change an entry as in an editor; `None` removes the whole entry."""
        entries = self.on_disk()
        entries[key] |= members
        self.write(entries)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    yield one
    one.all.close()


# -- keys


@pytest.mark.mission("Y3")
@pytest.mark.parametrize(
    ("inbound", "key"),
    [
        (Inbound(), MAIN),
        (Inbound(session_key=" Main "), MAIN),
        (Inbound(session_key="cron:Nightly", channel="telegram"), "agent:main:cron:nightly"),
        (Inbound(channel="telegram", peer="7"), MAIN),
        (Inbound(channel="telegram", peer="-100", chat_type="group"), GROUP),
        (Inbound(channel="telegram", peer="-100", chat_type="group", thread=7, is_forum=True), f"{GROUP}:topic:7"),
        (Inbound(channel="telegram", peer="-100", chat_type="group", is_forum=True), f"{GROUP}:topic:1"),
        (Inbound(channel="telegram", peer="-100", chat_type="group", thread=7), GROUP),
        (
            Inbound(channel="slack", peer="C1", chat_type="channel", thread="17.5"),
            "agent:main:slack:channel:c1:thread:17.5",
        ),
        (Inbound(channel="matrix", peer="!Ro:x.org", chat_type="channel"), "agent:main:matrix:channel:!Ro:x.org"),
        (Inbound(sender="123@g.us"), "agent:main:whatsapp:group:123@g.us"),
        (Inbound(agent="Ops", channel="irc", peer="#c", chat_type="room"), "agent:ops:irc:channel:#c"),
        (Inbound(cron="nightly", run="3", agent="ops"), "agent:ops:cron:nightly:run:3"),
        (Inbound(hook="gmail:1"), "agent:main:hook:gmail:1"),
        (Inbound(node="phone"), "agent:main:node-phone"),
        (Inbound(subagent="u1"), "agent:main:subagent:u1"),
        (Inbound(subagent="u2", spawned_by="agent:main:subagent:u1"), "agent:main:subagent:u1:subagent:u2"),
    ],
)
def test_a_message_has_the_key_of_what_it_comes_from(rig: Rig, inbound: Inbound, key: str) -> None:
    """An explicit key comes first, then the trigger, then the chat with topic or thread."""
    bound = rig.all.resolve(inbound)
    assert (bound.text, str(bound.key)) == (key, key)
    assert list(rig.on_disk() or json.loads(Path(rig.all.list(agent=bound.agent).path).read_bytes())) == [key]


@pytest.mark.mission("Y3")
def test_scopes_links_and_bindings_choose_key_and_agent() -> None:
    """A linked user has one conversation on all channels; a binding assigns a group to an agent."""
    routing = Routing(
        dm_scope="per-channel-peer",
        identity_links={"ann": ("telegram:7", "slack:u7")},
        bindings=(Binding(agent="ops", channel="telegram", account="*", peer=Peer("group", "-100")),),
    )
    assert str(key_of(Inbound(channel="telegram", peer="7"), routing)) == "agent:main:direct:ann"
    assert str(key_of(Inbound(channel="slack", peer="U7"), routing)) == "agent:main:direct:ann"
    assert str(key_of(Inbound(channel="slack", peer="U8"), routing)) == "agent:main:slack:direct:u8"
    group = Inbound(channel="telegram", peer="-100", chat_type="group")
    assert str(key_of(group, routing)) == "agent:ops:telegram:group:-100"
    assert str(key_of(DIRECT, Routing(scope="global"))) == "global"


@pytest.mark.mission("Y3")
def test_what_cannot_be_a_key_is_refused(rig: Rig) -> None:
    """An invalid key does not fall back to the default agent."""
    with pytest.raises(InvalidId):
        rig.all.resolve("agent:")
    for lost in (Inbound(chat_type="group", peer="5"), Inbound(chat_type="room", peer="5")):
        with pytest.raises(Invalid, match="channel is required"):  # the main conversation is private
            rig.all.resolve(lost)
    with pytest.raises(Invalid, match="invalid chat type"):
        rig.all.resolve(Inbound(channel="x", peer="1", chat_type="opera"))
    assert not rig.file.exists()


@pytest.mark.mission("Y3")
@pytest.mark.parametrize("routing", [Routing(), Routing(main_key="home"), Routing(main_key="home", scope="global")])
def test_the_short_way_to_a_spelling_gives_the_same_as_the_long_one(routing: Routing) -> None:
    """Both ways give the same spelling for every pattern, in any case, with and without an agent."""
    keys = Keys(routing)
    rests = [p.shape.replace("{uuid}", "0" * 8 + "-0000-0000-0000-" + "0" * 12) for p in PATTERNS]
    rests = [rest.replace("{", "a").replace("*}", "").replace("}", "") for rest in rests]
    texts = [
        f"{start}{rest}" for start in ("", "agent:ops:", "agent:", "AGENT:ops:") for rest in [*rests, "home", "", "X"]
    ]
    texts += ["agent:ops:main:thread:7", "agent:ops::x", "agent:ops:matrix:channel:!A:b", "agent:ops:home:thread:7"]
    for text in texts:
        assert keys.spelling("ops", text) == keys._spell("ops", text), text


@pytest.mark.mission("Y2")
def test_a_key_that_the_file_spells_otherwise_is_the_same_conversation(tmp_path: Path) -> None:
    """Bare keys, other cases and aliases of the main conversation match; the file keeps its spelling."""
    rig = Rig(tmp_path, routing=Routing(main_key="home"))
    paths = [begun(rig.store) for _ in range(3)]
    ids = [session.id for session in paths]
    rig.write(
        {
            "agent:main:main": {"sessionId": ids[0], "updatedAt": NOW},
            "cron:Nightly": {"sessionId": ids[1], "updatedAt": NOW},
            "Agent:Main:Telegram:Group:-100": {"sessionId": ids[2], "updatedAt": NOW},
        }
    )
    asked = ("main", "cron:nightly", GROUP)
    assert [rig.all.resolve(key).session_id for key in asked] == ids
    rig.all.patch("main", {"label": "x"})
    assert list(rig.on_disk()) == ["agent:main:main", "cron:Nightly", "Agent:Main:Telegram:Group:-100"]
    assert {row.text for row in rig.all.list().rows} == {"agent:main:home", "agent:main:cron:nightly", GROUP}


# -- sessions


@pytest.mark.mission("Y1", "Y2")
def test_a_new_key_gets_a_session_in_the_workspace_of_its_agent(rig: Rig) -> None:
    """The session is listed at once, bound on disk, and the same the next time."""
    first = rig.all.resolve(DIRECT)
    assert (first.is_new, first.reason, first.previous_id) == (True, "new", None)
    assert [info.id for info in rig.store.list(f"{WORK}/main")] == [first.session_id]
    entry = rig.on_disk()[MAIN]
    assert entry["sessionId"] == first.session_id
    assert entry["sessionStartedAt"] == entry["lastInteractionAt"] == entry["updatedAt"] == NOW
    assert entry["deliveryContext"] == {"channel": "telegram", "to": "Ann"}
    assert entry == first.entry.members
    second = rig.all.resolve(DIRECT)
    assert (second.session_id, second.path, second.is_new) == (first.session_id, first.path, False)
    with rig.store.open(first.path) as session:
        say(session, "hello")


@pytest.mark.mission("Y1")
def test_another_process_finds_the_same_session(rig: Rig, tmp_path: Path) -> None:
    """The session is found even if it was moved to another project."""
    bound = rig.all.resolve(MAIN)
    assert Rig(tmp_path, "other").all.resolve(MAIN).session_id == bound.session_id
    with rig.store.open(bound.path) as session:
        session.move_to("/elsewhere")
    for one in (rig, Rig(tmp_path, "third")):
        moved = one.all.resolve(MAIN)
        assert moved.session_id == bound.session_id and "elsewhere" in moved.path


@pytest.mark.mission("Y1")
def test_looking_makes_nothing(rig: Rig, tmp_path: Path) -> None:
    """Reading creates no session, folder or store file."""
    assert rig.all.get(MAIN) is None
    assert rig.all.path_of(MAIN) is None
    assert rig.all.list().rows == ()
    assert rig.all.problems() == []
    assert snapshot(tmp_path) == {}


@pytest.mark.mission("Y5")
def test_a_file_that_the_entry_names_is_honoured_inside_the_sessions_folder(rig: Rig, tmp_path: Path) -> None:
    """A file outside the folder is refused, and a missing one is looked up by its id."""
    session = begun(rig.store)
    there = rig.file.parent / "mine.jsonl"
    rig.write({MAIN: {"sessionId": session.id, "sessionFile": "mine.jsonl", "updatedAt": NOW}})
    assert rig.all.resolve(MAIN).path == session.path
    there.write_bytes(Path(session.path).read_bytes())
    assert rig.all.resolve(MAIN).path == str(there)
    for name in ("../../../../etc/passwd", "/etc/passwd", "../sessions-of-others/x.jsonl"):
        rig.write({MAIN: {"sessionId": session.id, "sessionFile": name, "updatedAt": NOW}})
        with pytest.raises(UnsafePath):
            rig.all.resolve(MAIN)


@pytest.mark.mission("Y2")
def test_a_binding_whose_session_is_gone_gets_a_new_one(rig: Rig) -> None:
    """The old session is remembered and used again if its file returns."""
    old = rig.all.resolve(MAIN)
    deletion = rig.store.delete(old.path)
    new = rig.all.resolve(MAIN)
    assert (new.reason, new.previous_id) == ("new", old.session_id)
    with pytest.raises(SessionNotFound, match="is missing"):
        rig.all.resume(MAIN)
    assert rig.all.resolve(MAIN).session_id == new.session_id
    rig.store.undo(deletion.token)
    assert rig.all.resume(MAIN).session_id == old.session_id


def test_an_id_that_can_name_no_file_is_refused_with_the_place_of_the_mistake(rig: Rig) -> None:
    """The id was edited by hand; no new session is started."""
    rig.write({MAIN: {"sessionId": "../x", "updatedAt": NOW}})
    with pytest.raises(InvalidId) as caught:
        rig.all.resolve(MAIN)
    assert caught.value.path == str(rig.file)


# -- threads


def speak(rig: Rig, bound: Bound, *texts: str) -> None:
    with rig.store.open(bound.path) as session:
        for text in texts:
            say(session, text)
            answer(session, f"about {text}")


THREAD = Inbound(channel="slack", peer="C1", chat_type="channel", thread="9")


@pytest.mark.mission("Y4")
def test_a_thread_begins_with_what_was_said_in_its_chat_once(rig: Rig) -> None:
    """A thread is forked from its chat once and is empty after a reset; the chat does not change."""
    chat = rig.all.resolve(Inbound(channel="slack", peer="C1", chat_type="channel"))
    speak(rig, chat, "one")
    thread = rig.all.resolve(THREAD)
    with rig.store.open(thread.path, readonly=True) as session:
        assert told(session) == ["one", "about one"]
        assert session.header["parentSession"] == chat.path
        assert session.cwd == f"{WORK}/main"
    assert thread.entry["forkedFromParent"] is True
    assert thread.entry["parentSessionKey"] == chat.text
    again = rig.all.reset(thread.text)
    with rig.store.open(again.path, readonly=True) as session:
        assert told(session) == []
    assert rig.all.resolve(THREAD).session_id == again.session_id
    rig.store.delete(again.path)
    with rig.store.open(rig.all.resolve(THREAD).path, readonly=True) as session:
        assert told(session) == []


@pytest.mark.mission("Y4")
@pytest.mark.parametrize(("limit", "forked"), [(0, True), (499, False), (500, True)])
def test_a_long_chat_is_not_copied_into_its_threads(tmp_path: Path, limit: int, forked: bool) -> None:
    """A chat up to the limit is copied; 0 means no limit."""
    rig = Rig(tmp_path, parent_fork_max_tokens=limit)
    chat = rig.all.resolve(Inbound(channel="slack", peer="C1", chat_type="channel"))
    speak(rig, chat, "one")
    rig.all.count(chat.text, chat.session_id, members={"contextTokens": 500})
    thread = rig.all.resolve(THREAD)
    with rig.store.open(thread.path, readonly=True) as session:
        assert bool(told(session)) is forked
    assert thread.entry.get("forkedFromParent", False) is forked


@pytest.mark.mission("Y4")
def test_the_length_of_a_chat_that_nobody_counted_is_estimated(tmp_path: Path) -> None:
    """The length is estimated from the context."""
    rig = Rig(tmp_path, parent_fork_max_tokens=5)
    speak(rig, rig.all.resolve(Inbound(channel="slack", peer="C1", chat_type="channel")), "one " * 100)
    assert "forkedFromParent" not in rig.all.resolve(THREAD).entry


# -- resets


def at(text: str, zone: str = "UTC") -> int:
    """Return a local time in milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.mission("Y4")
def test_by_default_a_session_ends_at_four_in_the_morning(tmp_path: Path) -> None:
    """A session that started exactly at four continues; the old one is remembered, and settings stay."""
    rig = Rig(tmp_path, resets=ResetConfig())
    before = rig.all.resolve(MAIN, at("2026-03-01T03:59:59.999"))
    rig.all.patch(MAIN, {"thinkingLevel": "high", "label": "mine"}, now=at("2026-03-01T03:59:59.999"))
    after = rig.all.resolve(MAIN, at("2026-03-01T04:00"))
    assert (after.reason, after.is_new, after.previous_id) == ("daily", True, before.session_id)
    assert (after.entry["thinkingLevel"], after.entry["label"]) == ("high", "mine")
    assert [one.session_id for one in previous_sessions(after.entry)] == [before.session_id]
    assert not rig.all.resolve(MAIN, at("2026-03-02T03:59:59.999")).is_new
    assert rig.all.resolve(MAIN, at("2026-03-02T04:00")).reason == "daily"


@pytest.mark.mission("Y4")
@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_the_hour_is_that_of_the_calendar_when_the_clocks_change(tmp_path: Path, day: str, hours: int) -> None:
    """The reset follows the configured time zone."""
    config, _ = read_reset_config({"reset": {"mode": "daily", "atHour": 4, "timeZone": "Europe/Berlin"}})
    rig = Rig(tmp_path, resets=config)
    boundary = at(f"{day}T04:00", "Europe/Berlin")
    rig.all.resolve(MAIN, boundary - hours * 60 * MINUTE)
    assert not rig.all.resolve(MAIN, boundary - 1).is_new
    assert rig.all.resolve(MAIN, boundary).reason == "daily"


@pytest.mark.mission("Y4")
def test_a_zone_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """An unknown time zone raises on start, with its key, and does not fall back to the local zone."""
    odd = ResetRule(time_zone="Mars/Olympus")
    for config, place in (
        (ResetConfig(base=odd), "session.reset.timeZone"),
        (ResetConfig(by_type={"group": odd}), "session.resetByType.group.timeZone"),
        (ResetConfig(by_channel={"telegram": odd}), "session.resetByChannel.telegram.timeZone"),
    ):
        with pytest.raises(InvalidConfig, match=f"invalid time zone 'Mars/Olympus' in {place}"):
            Rig(tmp_path, resets=config)


IDLE = ResetConfig(base=ResetRule(mode="idle", idle_minutes=10))


@pytest.mark.mission("Y4")
def test_a_session_ends_when_nobody_speaks(tmp_path: Path) -> None:
    """The exact idle time is not exceeded; every message counts, also before it is written, but not system events."""
    rig = Rig(tmp_path, resets=IDLE)
    first = rig.all.resolve(MAIN, NOW)
    assert not rig.all.resolve(MAIN, NOW + 10 * MINUTE).is_new
    assert not rig.all.resolve(MAIN, NOW + 20 * MINUTE).is_new
    heartbeat = Inbound(session_key=MAIN, system=True)
    assert rig.all.resolve(heartbeat, NOW + 29 * MINUTE).session_id == first.session_id
    assert rig.all.resolve(heartbeat, NOW + 31 * MINUTE).session_id == first.session_id
    rig.all.count(MAIN, first.session_id, usage=Usage(input=1), now=NOW + 30 * MINUTE)
    new = rig.all.resolve(MAIN, NOW + 30 * MINUTE + 1)
    assert (new.reason, new.previous_id) == ("idle", first.session_id)


@pytest.mark.mission("Y4")
def test_type_and_channel_have_policies_of_their_own(tmp_path: Path) -> None:
    """The policy of a channel takes precedence; a thread is a thread in every channel."""
    config, _ = read_reset_config(
        {
            "reset": {"mode": "none"},
            "resetByType": {"group": {"mode": "idle", "idleMinutes": 5}},
            "resetByChannel": {"slack": {"mode": "idle", "idleMinutes": 2}},
        }
    )
    rig = Rig(tmp_path, resets=config)
    minutes = {
        "direct": rig.all.policy(MAIN).idle_minutes,
        "group": rig.all.policy(GROUP).idle_minutes,
        "topic": rig.all.policy(f"{GROUP}:topic:1").idle_minutes,
        "slack": rig.all.policy("agent:main:slack:channel:c").idle_minutes,
        "main from slack": rig.all.policy(Inbound(channel="slack", peer="u")).idle_minutes,
    }
    assert minutes == {"direct": None, "group": 5, "topic": None, "slack": 2, "main from slack": 2}


@pytest.mark.mission("Y4")
def test_a_reset_begins_a_new_session_and_may_name_a_model(rig: Rig) -> None:
    """A reset that expects another session raises."""
    old = rig.all.resolve(MAIN)
    new = rig.all.reset(MAIN, "new", "anthropic/claude", expected=old.session_id)
    assert (new.is_new, new.reason, new.previous_id) == (True, "new", old.session_id)
    members = rig.on_disk()[MAIN]
    assert (members["providerOverride"], members["modelOverride"]) == ("anthropic", "claude")
    assert members["modelOverrideSource"] == "user"
    with pytest.raises(Conflict):
        rig.all.reset(MAIN, expected=old.session_id)
    assert "providerOverride" not in rig.all.reset(MAIN, model="local").entry
    with pytest.raises(Invalid):
        rig.all.reset(MAIN, model="anthropic/")


@pytest.mark.mission("Y4")
def test_a_reset_can_be_taken_back(rig: Rig) -> None:
    """Counters are restored, the new session can be resumed later, and an outdated expectation raises."""
    old = rig.all.resolve(MAIN)
    rig.all.count(MAIN, old.session_id, usage=Usage(input=10), compactions=1)
    new = rig.all.reset(MAIN, now=NOW + 1)
    assert "inputTokens" not in new.entry
    with pytest.raises(Conflict):
        rig.all.resume(MAIN, expected=old.session_id)
    back = rig.all.resume(MAIN, expected=new.session_id, now=NOW + 2)
    assert (back.session_id, back.is_new, back.previous_id) == (old.session_id, False, new.session_id)
    assert (back.entry["inputTokens"], back.entry["compactionCount"]) == (10, 1)
    assert rig.all.resolve(MAIN).session_id == old.session_id
    assert rig.all.resume(MAIN).session_id == new.session_id


@pytest.mark.mission("Y4")
def test_a_session_that_was_resumed_does_not_end_at_once_again(tmp_path: Path) -> None:
    """Its times start again."""
    rig = Rig(tmp_path, resets=ResetConfig())
    old = rig.all.resolve(MAIN, NOW)
    rig.all.resolve(MAIN, NOW + DAY)
    rig.all.resume(MAIN, now=NOW + DAY + 1)
    assert rig.all.resolve(MAIN, NOW + DAY + 2).session_id == old.session_id


@pytest.mark.mission("Y4")
def test_there_is_nothing_to_resume_in_a_new_conversation(rig: Rig) -> None:
    """Resuming raises and starts nothing."""
    with pytest.raises(SessionNotFound):
        rig.all.resume(MAIN)
    rig.all.resolve(MAIN)
    for back in (0, 1, -1):
        with pytest.raises(SessionNotFound):
            rig.all.resume(MAIN, back)
    assert rig.all.list().rows[0].previous == ()


# -- lists


@pytest.mark.mission("Y1", "Y12")
def test_lists_are_filtered_and_say_how_many_they_hide(rig: Rig) -> None:
    """Rows are sorted newest first, and hidden ones are counted."""
    for minutes, key in enumerate(("agent:main:cron:a", GROUP, "agent:ops:main", "global", "unknown")):
        rig.all.resolve(key, NOW + minutes * MINUTE)
    rig.all.patch(GROUP, {"label": "Team", "displayName": "Die Runde"}, now=NOW + MINUTE)

    def keys(agent: str | None = None, **wanted: Any) -> tuple[list[str], int]:
        listing = rig.all.list(ConversationFilter(**wanted), agent=agent, now=NOW + 5 * MINUTE)
        return [row.text for row in listing.rows], listing.hidden

    assert keys() == (["agent:ops:main", GROUP, "agent:main:cron:a"], 2)
    assert keys(include_global=True, include_unknown=True)[0][:2] == ["unknown", "global"]
    assert keys(active_minutes=4) == (["agent:ops:main", GROUP], 3)
    assert keys(search="runde") == ([GROUP], 4)
    assert keys(label="Team") == ([GROUP], 4)
    assert keys(label="team")[0] == []
    assert keys(kinds=("cron",)) == (["agent:main:cron:a"], 4)
    assert keys(limit=1) == (["agent:ops:main"], 4)
    assert keys(agent="Ops") == (["agent:ops:main"], 0)
    assert rig.all.list(agent="ops").path.endswith("/agents/ops/sessions/sessions.json")
    assert rig.all.list().path.endswith("/agents/{agentId}/sessions/sessions.json")
    assert [row.agent for row in rig.all.list().rows] == ["ops", "main", "main"]


@pytest.mark.mission("Y1")
def test_one_key_in_two_stores_is_one_conversation(rig: Rig) -> None:
    """The later change wins, and the other fills gaps; a custom key is listed, too."""
    rig.write({GROUP: {"sessionId": "a", "updatedAt": 1, "label": "old", "model": "m"}, "agent:": {"sessionId": "x"}})
    other = rig.file.parents[2] / "ops/sessions/sessions.json"
    other.parent.mkdir(parents=True)
    other.write_bytes(stored({GROUP: {"sessionId": "b", "updatedAt": 2, "label": "new"}}))
    rows = {row.text: row.entry.members for row in rig.all.list(ConversationFilter(kinds=("group", "other"))).rows}
    assert rows[GROUP] == {"sessionId": "b", "updatedAt": 2, "label": "new", "model": "m"}
    assert rows["agent:"] == {"sessionId": "x"}


# -- patches


@pytest.mark.mission("Y5")
def test_a_patch_sets_and_clears_documented_members(rig: Rig) -> None:
    """Unknown members of the entry stay; a model is stored as an override."""
    rig.write({GROUP: {"sessionId": "g", "future": [1], "verboseLevel": "on", "provider": "x"}})
    patched = rig.all.patch(GROUP, {"thinkingLevel": "high", "verboseLevel": None, "model": "openai/gpt"}, now=NOW)
    assert patched.entry.members == rig.on_disk()[GROUP]
    assert rig.on_disk()[GROUP] == {
        "sessionId": "g",
        "future": [1],
        "provider": "x",
        "thinkingLevel": "high",
        "providerOverride": "openai",
        "modelOverride": "gpt",
        "modelOverrideSource": "user",
        "updatedAt": NOW,
    }
    assert "modelOverride" not in rig.all.patch(GROUP, {"model": None}).entry


@pytest.mark.mission("Y5")
@pytest.mark.parametrize(
    "changes",
    [
        {"sessionId": "x"},
        {"updatedAt": 1},
        {"inputTokens": 0},
        {"thinkinglevel": "high"},
        {"sendPolicy": "maybe"},
        {"thinkingLevel": "banana"},
        {"thinkingLevel": "High"},
        {"verboseLevel": "stream"},
        {"reasoningLevel": "full"},
        {"queueCap": "3"},
        {"label": " "},
        {"label": "x" * 65},
        {"label": "🙂" * 33},
        {"spawnedBy": "agent:main:main"},
        {"model": "/x"},
    ],
)
def test_a_patch_that_cannot_be_is_refused(rig: Rig, changes: Json) -> None:
    """An invalid patch writes nothing."""
    with pytest.raises(Invalid) as caught:
        rig.all.patch(GROUP, changes)
    assert caught.value.hint
    assert not rig.file.exists()


@pytest.mark.mission("Y5")
def test_a_label_belongs_to_one_conversation(rig: Rig) -> None:
    """A label is unique; it can be set again, and reused when it is free."""
    rig.all.patch(GROUP, {"label": "x" * 64})
    rig.all.patch(GROUP, {"label": "x" * 64})
    with pytest.raises(Conflict, match="label"):
        rig.all.patch(MAIN, {"label": "x" * 64})
    rig.all.patch(GROUP, {"label": None})
    assert rig.all.patch(MAIN, {"label": " " + "x" * 64}).entry["label"] == "x" * 64


@pytest.mark.mission("Y5")
def test_who_spawned_a_sub_agent_is_said_once(rig: Rig) -> None:
    """The parent of a sub-agent is set once, or automatically on creation."""
    bound = rig.all.resolve(Inbound(subagent="u1", spawned_by=MAIN))
    assert bound.entry["spawnedBy"] == MAIN
    rig.all.patch(bound.text, {"spawnedBy": MAIN})
    with pytest.raises(Invalid):
        rig.all.patch(bound.text, {"spawnedBy": GROUP})


@pytest.mark.mission("Y5")
def test_a_patch_can_ask_for_what_it_found(rig: Rig) -> None:
    """A patch with an outdated expectation raises; `None` expects a missing member."""
    rig.all.patch(GROUP, {"thinkingLevel": "low"}, {"thinkingLevel": None})
    with pytest.raises(Conflict, match="low"):
        rig.all.patch(GROUP, {"thinkingLevel": "high"}, {"thinkingLevel": None})
    rig.all.patch(GROUP, {"thinkingLevel": "high"}, {"thinkingLevel": "low"})


@pytest.mark.mission("Y5")
def test_settings_from_before_the_first_message_hold_for_it(rig: Rig) -> None:
    """A patch creates an entry without a session."""
    conversation = rig.all.patch(GROUP, {"thinkingLevel": "high"})
    assert conversation.session_id is None
    bound = rig.all.resolve(GROUP)
    assert (bound.reason, bound.previous_id, bound.entry["thinkingLevel"]) == ("new", None, "high")


# -- deleting


@pytest.mark.mission("Y1", "B6")
def test_a_deleted_conversation_goes_to_the_trash_and_comes_back(rig: Rig) -> None:
    """Session and entry are restored together, unless a new session was started under the key."""
    bound = rig.all.resolve(GROUP)
    speak(rig, bound, "one")
    rig.edit(GROUP, future=[1])
    before = rig.on_disk()
    deleted = rig.all.delete(GROUP, expected=bound.session_id)
    assert rig.on_disk() == {} and not Path(bound.path).exists()
    assert rig.all.undo(deleted.token).session_id == bound.session_id
    assert rig.on_disk() == before
    assert rig.all.resolve(GROUP).session_id == bound.session_id
    with pytest.raises(NotFound):
        rig.all.undo(deleted.token)
    again = rig.all.delete(GROUP)
    new = rig.all.resolve(GROUP)
    assert new.reason == "new"
    with pytest.raises(Conflict):
        rig.all.undo(again.token)
    assert rig.all.resolve(GROUP).session_id == new.session_id
    rig.all.delete(GROUP)
    assert rig.all.undo(again.token).session_id == bound.session_id


@pytest.mark.mission("Y1")
def test_main_and_what_is_not_there_cannot_be_deleted(rig: Rig) -> None:
    """The main conversation, a missing one and one that has changed cannot be deleted by any name."""
    bound = rig.all.resolve(MAIN)
    for key in ("main", MAIN):
        with pytest.raises(Invalid, match="main"):
            rig.all.delete(key)
    with pytest.raises(NotFound):
        rig.all.delete(GROUP)
    rig.all.resolve(GROUP)
    with pytest.raises(Conflict):
        rig.all.delete(GROUP, expected=bound.session_id)
    for token in ("", "main.1", "../x", "main.1/../../x"):
        with pytest.raises(NotFound):
            rig.all.undo(token)


@pytest.mark.mission("Y1")
def test_a_file_that_the_entry_names_itself_stays_when_it_is_deleted(rig: Rig) -> None:
    """Only the binding is deleted and restored."""
    session = begun(rig.store)
    there = rig.file.parent / "mine.jsonl"
    rig.write({GROUP: {"sessionId": session.id, "sessionFile": "mine.jsonl", "updatedAt": NOW}})
    there.write_bytes(Path(session.path).read_bytes())
    deleted = rig.all.delete(GROUP)
    assert there.exists() and rig.all.get(GROUP) is None
    assert rig.all.undo(deleted.token).session_id == session.id


@pytest.mark.mission("Y1")
def test_a_session_that_another_key_has_too_stays(rig: Rig) -> None:
    """Only the binding is deleted."""
    bound = rig.all.resolve(MAIN)
    rig.write({**rig.on_disk(), GROUP: {"sessionId": bound.session_id, "updatedAt": NOW}})
    rig.all.delete(GROUP)
    assert rig.all.resolve(MAIN).session_id == bound.session_id


# -- counters


@pytest.mark.mission("Y5", "Y7")
def test_counters_are_seen_at_once_and_written_later(rig: Rig) -> None:
    """Counters are summed, unreported ones stay unknown, and unknown members stay."""
    bound = rig.all.resolve(MAIN)
    before = rig.file.read_bytes()
    for _ in range(3):
        rig.all.count(MAIN, bound.session_id, usage=Usage(input=10, output=1), cost=0.5, members={"model": "m"})
    rig.all.count(MAIN, bound.session_id, compactions=1, members={"contextTokens": 7, "contextWindow": 100})
    assert rig.file.read_bytes() == before
    found = rig.all.get(MAIN)
    assert found is not None
    expected = {"inputTokens": 30, "outputTokens": 3, "totalTokens": 33, "estimatedCostUsd": 1.5, "compactionCount": 1}
    assert expected.items() <= found.entry.members.items()
    assert "cacheRead" not in found.entry
    assert rig.all.list().rows[0].entry == found.entry
    rig.edit(MAIN, future=1)
    rig.all.flush()
    assert rig.on_disk()[MAIN] == {**found.entry.members, "future": 1}
    again = snapshot(rig.file.parent)
    rig.all.flush()
    assert snapshot(rig.file.parent) == again


@pytest.mark.mission("Y5")
def test_counters_of_a_session_that_is_over_change_nothing(rig: Rig) -> None:
    """Deleted entries are not restored, and an unknown counter is refused."""
    old = rig.all.resolve(MAIN)
    rig.all.reset(MAIN)
    rig.all.count(MAIN, old.session_id, usage=Usage(input=1))
    rig.all.flush()
    assert "inputTokens" not in rig.on_disk()[MAIN]
    new = rig.all.resolve(MAIN)
    rig.all.count(MAIN, new.session_id, usage=Usage(input=1))
    rig.write({})
    rig.all.flush()
    assert rig.on_disk() == {}
    with pytest.raises(Invalid, match="inputtokens"):
        rig.all.count(MAIN, new.session_id, members={"inputtokens": 1})


@pytest.mark.mission("Y5")
def test_counters_are_written_by_themselves_after_a_while_and_when_it_is_over(tmp_path: Path) -> None:
    """Many changes are written at once."""
    rig = Rig(tmp_path, hold=0.2)
    bound = rig.all.resolve(MAIN)
    inode = rig.file.stat().st_ino
    for _ in range(20):
        rig.all.count(MAIN, bound.session_id, usage=Usage(input=1))
    assert rig.file.stat().st_ino == inode
    end = time.monotonic() + 5
    while "inputTokens" not in rig.on_disk()[MAIN] and time.monotonic() < end:
        time.sleep(0.01)
    assert rig.on_disk()[MAIN]["inputTokens"] == 20
    rig.all.count(MAIN, bound.session_id, usage=Usage(input=1))
    rig.all.close()
    assert rig.on_disk()[MAIN]["inputTokens"] == 21


# -- files edited by hand


@pytest.mark.mission("Y2")
def test_an_edit_is_picked_up(rig: Rig) -> None:
    """An edit is read by the next query."""
    bound = rig.all.resolve(MAIN)
    rig.edit(MAIN, thinkingLevel="high")
    assert rig.all.resolve(MAIN).entry["thinkingLevel"] == "high"
    assert rig.all.resolve(MAIN).session_id == bound.session_id


@pytest.mark.mission("Y2")
def test_deleting_an_entry_by_hand_begins_a_new_session_and_leaves_the_old_file(rig: Rig) -> None:
    """Deleting the whole file does the same for every key."""
    old = rig.all.resolve(MAIN)
    rig.all.resolve(MAIN)
    rig.write({})
    new = rig.all.resolve(MAIN)
    assert (new.reason, new.previous_id) == ("new", None) and new.session_id != old.session_id
    rig.file.unlink()
    third = rig.all.resolve(MAIN)
    assert third.session_id not in (old.session_id, new.session_id)
    assert all(Path(bound.path).exists() for bound in (old, new, third))


@pytest.mark.mission("Y2")
def test_a_stale_edit_loses_against_what_was_written_since(rig: Rig) -> None:
    """An old copy saved over a newer session does not replace it; new members in the copy stay."""
    rig.all.resolve(MAIN)
    copy = rig.on_disk()
    new = rig.all.reset(MAIN, now=NOW + MINUTE)
    copy[MAIN]["thinkingLevel"] = "high"
    rig.write(copy)
    assert rig.all.resolve(MAIN, NOW + MINUTE).session_id == new.session_id
    assert rig.all.resolve(MAIN).entry["thinkingLevel"] == "high"


@pytest.mark.mission("Y2")
def test_a_broken_file_is_told_and_the_last_good_copy_stays_in_force(rig: Rig, tmp_path: Path) -> None:
    """Existing sessions stay usable, the file is not overwritten, and counters wait until it is repaired."""
    bound = rig.all.resolve(MAIN)
    rig.edit(MAIN, thinkingLevel="high")
    assert rig.all.resolve(MAIN).entry["thinkingLevel"] == "high"
    rig.all.flush()
    good = rig.file.read_bytes()
    broken = good.replace(b'"updatedAt"', b"updatedAt", 1)
    rig.file.write_bytes(broken)
    line = broken[: broken.index(b"updatedAt")].count(b"\n") + 1
    for one in (rig, Rig(tmp_path, "restarted")):
        found = one.all.resolve(MAIN)
        assert (found.session_id, found.entry["thinkingLevel"]) == (bound.session_id, "high")
        assert [problem.place.line for problem in one.all.problems()] == [line]
        with pytest.raises(BrokenStore, match=f"line {line}"):
            one.all.resolve(GROUP)
        one.all.count(MAIN, bound.session_id, usage=Usage(input=1))
        with pytest.raises(BrokenStore):
            one.all.flush()
    assert rig.file.read_bytes() == broken
    assert len(rig.store.list(f"{WORK}/main")) == 1
    rig.file.write_bytes(good)
    assert rig.all.problems() == []
    rig.all.flush()
    assert rig.on_disk()[MAIN]["inputTokens"] == 1


@pytest.mark.mission("Y2")
def test_a_broken_file_without_a_good_copy_stops_everything(rig: Rig) -> None:
    """A broken file is never treated as empty."""
    rig.file.parent.mkdir(parents=True)
    rig.file.write_bytes(b"{,")
    for ask in (rig.all.get, rig.all.resolve):
        with pytest.raises(BrokenStore, match="line 1, column 2"):
            ask(MAIN)


# -- implementation


@pytest.mark.mission("Y2")
def test_a_changed_document_is_what_reading_its_text_gives() -> None:
    """Entries, their positions and the text are the same, with any JSON content."""
    document = parse_store(b'{\n  "a": {"n":1.0,"n2":[1, 2]},"b":{}  ,\n"c" : {"s": "\\ud83d"}}\n')
    changes = {
        "a": SessionEntry({"x": (1, 2), "half \ud83d": "\ud83d"}),
        "b": None,
        "half \ud83d": SessionEntry({"i": 1}),
    }
    for changed in (document.changed(changes), document.changed({}), document.changed(changes).changed({"c": None})):
        read = parse_store(changed.text.encode())
        assert (read.text, read.entries, read._members) == (changed.text, changed.entries, changed._members)


@pytest.mark.mission("Y2")
def test_a_question_reads_the_file_only_if_it_has_changed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query writes nothing."""
    rig.all.resolve(MAIN)
    before = snapshot(rig.file.parents[1])
    monkeypatch.setattr("sessile.agents.openclaw.binding_store.parse_store", lambda *a: pytest.fail("it was read"))
    for _ in range(3):
        rig.all.resolve(MAIN)
        rig.all.get(GROUP)
    assert snapshot(rig.file.parents[1]) == before


@pytest.mark.mission("Y1")
def test_ten_thousand_keys_do_not_slow_down_a_resolve(tmp_path: Path) -> None:
    """The slowdown is at most a tenth of the time with one key, as the best of several runs."""
    small, large = Rig(tmp_path / "small"), Rig(tmp_path / "large")
    session = begun(large.store)
    large.write({f"agent:main:telegram:direct:{n}": {"sessionId": session.id, "updatedAt": NOW} for n in range(10_000)})
    for rig in (small, large):
        rig.all.resolve(MAIN)

    def once(rig: Rig) -> float:
        begin = time.perf_counter()
        for _ in range(300):
            rig.all.resolve(MAIN)
        return time.perf_counter() - begin

    ratio = min(min(once(large) for _ in range(3)) / min(once(small) for _ in range(3)) for _ in range(4))
    assert ratio < 1.1


@pytest.mark.mission("Y1")
def test_readers_see_each_count_once_while_it_is_written(rig: Rig) -> None:
    """A sum never decreases."""
    bound = rig.all.resolve(MAIN)
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            found = rig.all.get(MAIN)
            seen.append(0 if found is None else found.entry.get("inputTokens", 0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(50):
        rig.all.count(MAIN, bound.session_id, usage=Usage(input=1))
        rig.all.flush()
    done.set()
    watcher.join()
    assert seen == sorted(seen)
    assert rig.on_disk()[MAIN]["inputTokens"] == 50


def test_a_session_key_is_as_good_as_its_text(rig: Rig) -> None:
    """A key object and all spellings of its text find the same conversation."""
    key = SessionKey(kind="cron", agent="main", id="nightly")
    assert rig.all.resolve(key).session_id == rig.all.resolve("cron:Nightly").session_id


def test_closing_waits_for_whoever_writes_counters_at_that_moment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer's thread ends with the process, so counters would be lost."""
    bound = rig.all.resolve(DIRECT)
    rig.all.count(bound.text, bound.session_id, usage=Usage(input=7, output=1))
    live = rig.all.internals.agents.of("main")
    update_all, begun_writing, go_on = live._store.update_all, threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> Any:
        begun_writing.set()
        assert go_on.wait(5)
        return update_all(*args, **options)

    monkeypatch.setattr(live._store, "update_all", slowly)
    timer = threading.Thread(target=rig.all.flush)
    timer.start()
    assert begun_writing.wait(5)
    closing = threading.Thread(target=rig.all.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(5)
    assert not closing.is_alive() and rig.on_disk()[bound.text]["inputTokens"] == 7
    timer.join(5)
