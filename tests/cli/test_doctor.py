"""`sessile doctor` on conversations: it finds each problem, names it and suggests a fix."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sessile import Session, Store
from sessile.errors import PermissionRefused
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.conversations.presence import Presence
from sessile.gateway.conversations.registry import Conversations
from sessile.upkeep.check import Report

from .conftest import Command

pytestmark = pytest.mark.mission("Y14")


class Patient:
    """A store of conversations for a test to break."""

    def __init__(self, home: Path) -> None:
        self.root = home / ".sessile"
        self.store = Store(self.root)
        self.bindings = self.root / "agents/main/sessions/sessions.json"

    def conversation(self, key: str = "main") -> Bound:
        """Create a conversation with a session."""
        with Conversations(self.store, workspace=lambda agent: str(self.root / "workspaces" / agent)) as conversations:
            return conversations.resolve(key)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Edit the store file by hand."""
        entries = json.loads(self.bindings.read_text())
        change(entries)
        self.bindings.write_text(json.dumps(entries, indent=2))

    def say(self, bound: Bound, *messages: Mapping[str, Any]) -> None:
        """Append messages to a session."""
        with self.store.open(bound.path) as session:
            for message in messages:
                session.append_message(dict(message))


@pytest.fixture
def patient(home: Path) -> Patient:
    """Return a healthy store."""
    return Patient(home)


def found(sessile: Command, kind: str, code: int) -> list[dict[str, Any]]:
    """Run the doctor, check its exit code and that it prints each suggestion, and return the findings of a kind."""
    done = sessile("doctor", "--json")
    assert done.code == code, done.out
    items = [item for item in done.json["items"] if item["kind"] == kind]
    assert all(item["what"] and item["do"] for item in items), items
    shown = sessile("doctor")
    assert shown.code == code
    for item in items:
        assert " ".join(item["do"].split()) in shown.out
    return items


def test_a_sound_store_has_nothing_wrong(sessile: Command, patient: Patient) -> None:
    """A healthy store exits with code 0."""
    bound = patient.conversation()
    patient.say(bound, {"role": "user", "content": "hello"}, assistant("hi"))
    done = sessile("doctor")
    assert done.code == 0 and "no problems found" in done.err


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "provider": "echo", "model": "echo"}


# -- keys


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("agent::main", "no message can reach"),
        ("Agent:main", "no message can reach"),
        ("agent:main:telegram:group:7:topic", "matches no key pattern"),
        ("agent:ops:main", "is a key of the agent ops"),
    ],
)
def test_a_key_that_nobody_reaches_is_named(sessile: Command, patient: Patient, key: str, told: str) -> None:
    """Malformed keys, unknown patterns and keys in the store of another agent are reported."""
    patient.conversation()
    patient.edit(lambda entries: entries.update({key: {"updatedAt": 1}}))
    items = found(sessile, "key", 1)
    assert [(key in item["what"], told in item["what"]) for item in items] == [(True, True)]
    assert items[0]["where"] == str(patient.bindings)


def test_keys_that_differ_only_in_spelling_are_one_conversation(sessile: Command, patient: Patient) -> None:
    """The finding names the canonical key, which is used."""
    patient.conversation("agent:main:telegram:group:7")
    patient.edit(lambda entries: entries.update({"telegram:GROUP:7": {"updatedAt": 5}}))
    (item,) = found(sessile, "key", 1)
    assert "telegram:GROUP:7" in item["what"] and "agent:main:telegram:group:7 is used" in item["what"]


def test_only_what_can_be_an_agent_is_examined_as_one(sessile: Command, patient: Patient) -> None:
    """A problem is reported once, even if the agent's folder has a second spelling; other files are ignored."""
    patient.conversation()
    patient.edit(lambda entries: entries.update({"agent::main": {"updatedAt": 1}}))
    (patient.root / "agents" / "Main").mkdir()
    (patient.root / "agents" / ".DS_Store").touch()
    assert len(found(sessile, "key", 1)) == 1


def test_a_chat_whose_messages_go_elsewhere_is_told(sessile: Command, patient: Patient) -> None:
    """`session.dmScope` may route them on purpose, so it is a note."""
    patient.conversation("agent:main:telegram:direct:42")
    (item,) = found(sessile, "key", 0)
    assert item["severity"] == "note" and "agent:main:main" in item["what"] and "dmScope" in item["what"]
    (patient.root / "config.toml").write_text("[session]\ndmScope = 'per-channel-peer'\n")
    assert found(sessile, "key", 0) == []


def test_the_doctor_says_how_a_key_is_read_and_where_it_leads(sessile: Command, patient: Patient) -> None:
    """An unknown key is answered with similar ones."""
    bound = patient.conversation("agent:main:telegram:group:7")
    right = sessile("doctor", "--key", "telegram:group:7")
    assert right.code == 0 and "agent:main:telegram:group:7" in right.out and bound.session_id in right.out
    wrong = sessile("doctor", "--key", "telegram:group:8")
    assert wrong.code == 1 and "did you mean agent:main:telegram:group:7?" in wrong.out
    assert sessile("doctor", "--key", "agent::x").code == 2


# -- stores and transcripts


def test_a_broken_store_file_is_told_with_line_column_and_the_last_good_copy(
    sessile: Command, patient: Patient
) -> None:
    """It counts as damage, and the suggestion names both files."""
    patient.conversation()
    patient.bindings.write_text('{\n  "agent:main:main": {"sessionId": "x",}\n}')
    (item,) = found(sessile, "store", 5)
    assert item["severity"] == "damage" and "line 2, column 40" in item["what"]
    good = patient.root / "agents/main/kept/sessions.json.good"
    assert good.exists() and f"cp {good} {patient.bindings}" in item["do"]


def test_values_that_nobody_documents_are_told_with_their_place(sessile: Command, patient: Patient) -> None:
    """The finding names the value, the key and the line."""
    patient.conversation()
    patient.edit(lambda entries: entries["agent:main:main"].update({"compactionCount": "three"}))
    (item,) = found(sessile, "store", 1)
    assert "compactionCount of agent:main:main" in item["what"] and "line " in item["where"]


def test_a_binding_without_a_file_is_told(sessile: Command, patient: Patient) -> None:
    """The finding names the session whose file is missing."""
    bound = patient.conversation()
    os.unlink(bound.path)
    (item,) = found(sessile, "transcript", 1)
    assert bound.session_id in item["what"] and "has no file" in item["what"]


def test_a_file_outside_is_told(sessile: Command, patient: Patient) -> None:
    """A path outside the store counts as damage."""
    patient.conversation()
    patient.edit(lambda entries: entries["agent:main:main"].update({"sessionFile": "../../../../etc/passwd"}))
    (item,) = found(sessile, "transcript", 5)
    assert "outside" in item["what"]


def test_a_file_of_another_session_is_told(sessile: Command, patient: Patient) -> None:
    """The session id in the entry differs from the one in the file."""
    one, other = patient.conversation("one"), patient.conversation("other")
    patient.edit(lambda entries: entries["agent:main:one"].update({"sessionFile": other.path}))
    (item,) = found(sessile, "transcript", 1)
    assert one.session_id in item["what"] and other.session_id in item["what"]


def test_a_transcript_that_no_key_leads_to_is_told(sessile: Command, patient: Patient) -> None:
    """An unreferenced transcript is still readable, so it is a note."""
    bound = patient.conversation()
    folder = patient.bindings.parent
    (folder / "11111111-2222-4333-8444-555555555555.jsonl").write_bytes(Path(bound.path).read_bytes())
    (item,) = found(sessile, "transcript", 0)
    assert item["severity"] == "note" and "11111111-2222" in item["what"] and "sessile show" in item["do"]


def test_a_session_that_may_not_be_read_any_more_is_told(
    sessile: Command, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor checks it again although the catalog has its data, and exits with the permission code."""
    path = patient.conversation().path
    assert sessile("ls", "--all").code == 0 and sessile("doctor").code == 0
    monkeypatch.setattr(os, "access", lambda asked, mode: asked != path)
    checked: list[str] = []

    def check(store: Store, asked: str, **options: Any) -> Report:
        checked.append(asked)
        raise PermissionRefused("could not read the session", path=asked)

    monkeypatch.setattr("sessile.cli.health.check", check)
    done = sessile("doctor")
    assert (done.code, checked) == (PermissionRefused.exit_code, [path]) and "no problems found" not in done.err


def test_sessions_that_belong_to_no_conversation_any_more_are_counted(sessile: Command, patient: Patient) -> None:
    """A session whose entry was deleted by hand is counted; an earlier session of a key is not."""
    patient.conversation("gone")
    bound = patient.conversation("kept")
    with Conversations(patient.store, workspace=lambda _: "/", hold=None) as conversations:
        conversations.reset("kept")
    assert found(sessile, "transcript", 0) == []
    patient.edit(lambda entries: entries.pop("agent:main:gone"))
    (item,) = found(sessile, "transcript", 0)
    assert item["what"].startswith("1 session of main") and item["where"] == str(Path(bound.path).parent)


# -- compaction


def compacted(session: Session, *, messages: int, result: str | None = None) -> None:
    """Create a conversation with some messages followed by a compaction."""
    kept = None
    for _ in range(messages):
        kept = session.append_message({"role": "user", "content": "and now?"}).id
        if result is not None:
            call = {"type": "toolCall", "id": "call1", "name": "grep", "arguments": {}}
            session.append_message({**assistant("looking"), "content": [call]})
            content = [{"type": "text", "text": result}]
            session.append_message(
                {"role": "toolResult", "toolCallId": "call1", "toolName": "grep", "content": content}
            )
        session.append_message(assistant("so and so"))
    assert kept is not None
    session.append_compaction("a summary", kept, 1000)


@pytest.mark.parametrize(
    ("window", "config", "result", "reason", "do"),
    [
        (8_000, "", None, "small window", "use a model"),
        (
            200_000,
            "reserveTokens = 150000",
            None,
            "reserveTokens keeps 100,000 of 200,000",
            "compaction.reserveTokens ",
        ),
        (60_000, "", None, "compaction.reserveTokensFloor", "reserveTokensFloor"),
        (200_000, "", "x" * 20_000, "tool-result bloat", "contextPruning"),
        (200_000, "", None, "long messages", "/compact"),
    ],
    ids=["window", "reserve", "floor", "results", "nothing"],
)
def test_compaction_that_comes_too_often_has_its_reason_named(
    sessile: Command, patient: Patient, window: int, config: str, result: str | None, reason: str, do: str
) -> None:
    """The reason is a small window, a high reserve, or tool results that fill the context."""
    bound = patient.conversation()
    patient.edit(lambda entries: entries["agent:main:main"].update({"contextWindow": window}))
    (patient.root / "config.toml").write_text(f"[agents.defaults.compaction]\n{config}\n")
    with patient.store.open(bound.path) as session:
        for _ in range(4):
            compacted(session, messages=2, result=result)
    (item,) = found(sessile, "compaction", 1)
    assert reason in item["what"] and do in item["do"], item
    assert ("grep" in item["what"]) == (result is not None)


def test_compaction_now_and_then_is_as_it_should_be(sessile: Command, patient: Patient) -> None:
    """Three compactions with many messages between them are not a finding."""
    bound = patient.conversation()
    with patient.store.open(bound.path) as session:
        for _ in range(4):
            compacted(session, messages=12)
    assert found(sessile, "compaction", 0) == []


def test_a_model_of_unknown_size_is_told(sessile: Command, patient: Patient) -> None:
    """The warning disappears when the configuration sets the context size."""
    patient.root.mkdir()
    config = patient.root / "config.toml"
    config.write_text("[agents.defaults]\nmodel = 'box/tiny'\n")
    (item,) = found(sessile, "window", 1)
    assert "box/tiny" in item["what"]
    config.write_text("[agents.defaults]\nmodel = 'box/tiny'\ncontextTokens = 8000\n")
    assert found(sessile, "window", 0) == []


# -- silence, notes


@pytest.mark.mission("Y11")
@pytest.mark.parametrize("text", ["NO_REPLYfoo", "NO_REPLY.", "no_reply", "**NO_REPLY**", "Nothing to add. NO_REPLY"])
def test_a_silent_turn_that_leaked_is_named_with_its_entry(sessile: Command, patient: Patient, text: str) -> None:
    """The reply was delivered because its first word is not exactly NO_REPLY."""
    bound = patient.conversation()
    patient.say(bound, {"role": "user", "content": "psst"}, assistant(text))
    (item,) = found(sessile, "silence", 1)
    assert item["severity"] == "warning" and "delivered" in item["what"]
    with patient.store.open(bound.path, readonly=True) as session:
        assert session.leaf_id is not None and session.leaf_id in item["where"]


@pytest.mark.mission("Y11")
def test_silence_that_was_kept_and_words_about_it_are_no_leak(sessile: Command, patient: Patient) -> None:
    """A withheld reply that contains more than the token is a note."""
    bound = patient.conversation()
    texts = ("NO_REPLY", "  NO_REPLY\n", "The word NO_REPLY is a token of ours.")
    patient.say(bound, *(assistant(text) for text in texts))
    assert found(sessile, "silence", 0) == []
    patient.say(bound, assistant("NO_REPLY but the house is on fire"))
    (item,) = found(sessile, "silence", 0)
    assert item["severity"] == "note" and "on fire" in item["what"]


@pytest.mark.parametrize(("failures", "told"), [(1, "retried with the next"), (3, "not retried before the next")])
def test_notes_that_were_lost_are_told(sessile: Command, patient: Patient, failures: int, told: str) -> None:
    """The finding also says whether the memory flush will be retried."""
    patient.conversation()
    flush = {"kind": "failed", "compactionCount": 0, "failureCount": failures}
    patient.edit(lambda entries: entries["agent:main:main"].update({"memoryFlush": flush}))
    (item,) = found(sessile, "memory", 1)
    assert f"{failures} failures" in item["what"] and told in item["what"]


# -- surroundings


def test_what_a_killed_gateway_leaves_is_told(sessile: Command, patient: Patient) -> None:
    """A note of a running gateway is not a problem; a stale or broken one is reported."""
    presence = Presence(patient.store)
    with presence.held(), presence.announced("http://127.0.0.1:1", "token"):
        note = (patient.root / "gateway.json").read_bytes()
        (running,) = [item for item in sessile("doctor", "--json").json["items"] if item["kind"] == "gateway"]
        assert running["severity"] == "note" and "http://127.0.0.1:1" in running["what"]
    (patient.root / "gateway.json").write_bytes(note)
    (item,) = found(sessile, "gateway", 1)
    assert item["where"] == str(patient.root / "gateway.json") and "sessile serve" in item["do"]
    (patient.root / "gateway.json").write_bytes(b"{")
    assert len(found(sessile, "gateway", 1)) == 1


@pytest.mark.promise("P33")
@pytest.mark.parametrize(("mode", "text"), [(0o644, "t" * 43), (0o600, "short")])
def test_a_token_that_is_not_safe_is_told(sessile: Command, patient: Patient, mode: int, text: str) -> None:
    """A token that is readable by others or invalid is reported without printing it."""
    patient.root.mkdir()
    token = patient.root / "gateway.token"
    token.write_text(text)
    token.chmod(mode)
    (item,) = found(sessile, "token", 5)
    assert item["where"] == str(token) and text not in item["what"]


def test_a_clock_that_went_wrong_is_told(sessile: Command, patient: Patient) -> None:
    """Timestamps in the future are reported."""
    patient.conversation()
    patient.edit(lambda entries: entries["agent:main:main"].update({"updatedAt": 4_000_000_000_000}))
    (item,) = found(sessile, "clock", 1)
    assert "agent:main:main" in item["what"] and "future" in item["what"]


@pytest.mark.parametrize("place", ["user.timeZone", "session.reset.timeZone", "session.resetByType.group.timeZone"])
def test_a_time_zone_that_is_not_known_is_told(sessile: Command, patient: Patient, place: str) -> None:
    """The finding names the configuration key."""
    patient.root.mkdir()
    (patient.root / "config.toml").write_text(f"{place} = 'Mars/Olympus'\n")
    (item,) = found(sessile, "clock", 5)
    assert item["where"] == place and "Mars/Olympus" in item["what"]


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("[session]\nmaintainance = 1", 1, "session.maintainance"),
        ("[limits]\nbodyBytes = 'much'", 5, "limits.bodyBytes"),
        ("[limits", 5, "TOML"),
        ("[gateway]\nhost = '0.0.0.0'", 5, "tokenFile"),
        ("[models.providers.box]\napiKey = 'sk-secret'", 1, "other users can read"),
    ],
)
def test_what_is_wrong_with_the_configuration_is_told(
    sessile: Command, patient: Patient, text: str, code: int, told: str
) -> None:
    """Unknown keys, invalid values, open access and readable secrets are reported; no secret is printed."""
    patient.root.mkdir()
    config = patient.root / "config.toml"
    config.write_text(text)
    config.chmod(0o644)
    (item,) = found(sessile, "config", code)
    assert told in item["what"] and "sk-secret" not in json.dumps(item)


@pytest.mark.promise("P37")
@pytest.mark.parametrize("how", ["", "--plain", "--json"])
@pytest.mark.parametrize("verb", ["doctor", "sessions"])
def test_names_of_conversations_cannot_drive_the_terminal(
    sessile: Command, patient: Patient, verb: str, how: str
) -> None:
    """Control characters in keys, ids, models and values of the store file are escaped."""
    hostile = "bad \x1b[31m\x9b2J\u202e\u2028 end"
    patient.conversation()
    entry = {
        "sessionId": hostile,
        "sessionFile": hostile,
        "model": hostile,
        "thinkingLevel": hostile,
        "sendPolicy": hostile,
    }
    patient.edit(lambda entries: entries.update({f"agent:{hostile}": entry, hostile: {**entry, "updatedAt": hostile}}))
    done = sessile(verb, *([how] if how else []))
    assert "bad" in done.out and "Traceback" not in done.err
    assert not set("\x1b\x9b\u202e\u2028") & set(done.out + done.err)


def test_the_doctor_changes_nothing(sessile: Command, patient: Patient) -> None:
    """No file or content below the root changes."""
    bound = patient.conversation()
    patient.say(bound, assistant("NO_REPLY."))
    before = list(_files(patient.root))
    assert sessile("doctor").code == 1
    assert list(_files(patient.root)) == before


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(root.rglob("*")):
        yield str(path), path.read_bytes() if path.is_file() else b""
