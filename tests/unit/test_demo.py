"""The demo: always the same sessions, complete, and undamaged except for two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessile import Session, Store
from sessile.core.digest import Counts, Digest
from sessile.core.kinds import KINDS
from sessile.core.large import MIN_IMAGE
from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.redact import find_secrets
from sessile.core.secret_shapes import PERSONAL
from sessile.core.text import parse_timestamp
from sessile.demo.corpus import DemoSession, demo_sessions
from sessile.demo.script import play
from sessile.storage.layout import artifacts_of, encode_cwd, file_name

NOW = 1_771_237_230_000
HOUR = 3_600_000
LONG = "Move every tenant to schema v7"
DAMAGED = {"Power cut during the backfill": "not_json", "Battery drain on Android": "torn_tail"}

Json = dict[str, Any]


class Demo(NamedTuple):
    """All sessions of the demo, written to a folder."""

    store: Store
    sessions: list[DemoSession]
    paths: list[str]

    def open(self) -> Iterator[Session]:
        return (self.store.open(path, readonly=True) for path in self.paths)

    def named(self, title: str) -> Session:
        return next(session for session in self.open() if session.title == title)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    root = tmp_path_factory.mktemp("demo")
    sessions, paths = [], []
    for session in demo_sessions(NOW):
        path = root / "sessions" / encode_cwd(session.cwd) / session.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(session.content()))
        for name, data in session.artifacts.items():
            folder = Path(artifacts_of(str(path)))
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        sessions.append(session)
        paths.append(str(path))
    return Demo(Store(root), sessions, paths)


def records(path: str) -> list[Json]:
    """The complete lines of a file."""
    found = []
    for line in Path(path).read_bytes().split(b"\n"):
        if line.endswith(b"}"):
            try:
                found.append(json.loads(line))
            except ValueError:  # torn just behind a brace
                continue
    return found


def counts(session: Session) -> Counts:
    digest = Digest()
    for entry in session.iter_lines():
        digest.add(entry)
    return digest.counts()


def words(value: object) -> Iterator[str]:
    """Every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from words(inner)


def rules_in(value: object, *groups: str) -> set[str]:
    options: Json = {"groups": groups} if groups else {}
    return {secret.rule for text in words(value) for secret in find_secrets(text, **options)}


def said(session: Session, role: str) -> list[Json]:
    messages = [entry["message"] for entry in session.get_entries() if entry.type == "message"]
    return [message for message in messages if message["role"] == role]


def text(message: Json) -> str:
    content = message["content"]
    return content if isinstance(content, str) else " ".join(block.get("text", "") for block in content)


def test_the_same_moment_gives_the_same_bytes() -> None:
    """Nothing is random, not even in the long session."""

    def all_of() -> list[tuple[str, str, int, list[bytes], dict[str, bytes]]]:
        return [
            (s.cwd, s.file_name, s.modified, list(islice(s.lines, 999)), dict(s.artifacts)) for s in demo_sessions(NOW)
        ]

    assert all_of() == all_of()


def test_another_moment_moves_the_times_and_keeps_the_ids() -> None:
    """Documents can refer to sessions and entries at any time."""

    def ids(now: int) -> list[list[str | None]]:
        return [[json.loads(line).get("id") for line in islice(s.lines, 3)] for s in demo_sessions(now)]

    assert ids(NOW) == ids(NOW + 77 * HOUR)
    for now, later in zip(demo_sessions(NOW), demo_sessions(NOW + 77 * HOUR), strict=True):
        assert later.modified - now.modified == 77 * HOUR


def test_there_are_about_forty_sessions_of_seven_projects_in_sixty_days(demo: Demo) -> None:
    """Enough to fill a screen, old enough to show ages."""
    assert 38 <= len(demo.sessions) <= 42
    assert len({session.cwd for session in demo.sessions}) == 7
    ages = [NOW - session.modified for session in demo.sessions]
    assert min(ages) == 2 * HOUR
    assert 50 * 24 * HOUR < max(ages) < 60 * 24 * HOUR


def test_files_are_named_as_the_store_names_them(demo: Demo) -> None:
    """A name consists of the header's time and id, and ids are unique."""
    for session, path in zip(demo.sessions, demo.paths, strict=True):
        header = records(path)[0]
        assert session.file_name == file_name(header["timestamp"], header["id"])
        assert session.cwd == header["cwd"]
    assert len({session.id for session in demo.open()}) == len(demo.sessions)


def test_every_time_is_in_the_past_and_the_last_is_the_time_of_the_file(demo: Demo) -> None:
    """Entries are in order, messages have the time of their entries, and nothing is in the future."""
    for session, path in zip(demo.sessions, demo.paths, strict=True):
        entries = records(path)[1:]
        times = [parse_timestamp(entry["timestamp"]) or 0 for entry in entries]
        assert times == sorted(times)
        assert session.modified < NOW
        assert session.torn or times[-1] == session.modified
        for time, entry in zip(times, entries, strict=True):
            assert entry.get("message", {}).get("timestamp", time) == time


def test_every_kind_of_entry_and_every_role_appears(demo: Demo) -> None:
    """The demo contains everything that a session can contain."""
    lines = [record for path in demo.paths for record in records(path)]
    lines += [json.loads(line) for s in demo.sessions for line in s.artifacts.get("scout-1.jsonl", b"").splitlines()]
    assert {line["type"] for line in lines} == {*KINDS, "session"}
    roles = {line["message"]["role"] for line in lines if line["type"] == "message"}
    assert roles >= {"user", "assistant", "toolResult", "developer", "bashExecution", "pythonExecution", "fileMention"}
    assert any(line.get("customType") == "sessile.leaf" for line in lines)
    assert {line.get("version", 1) for line in lines if line["type"] == "session"} == {1, 2, 3}


def test_only_the_damaged_sessions_have_findings(demo: Demo) -> None:
    """One file has a torn line in the middle, one at its end; each gives exactly one finding."""
    found = {session.title: [finding.code for finding in session.findings] for session in demo.open()}
    assert {title: codes for title, codes in found.items() if codes} == {t: [code] for t, code in DAMAGED.items()}


def test_the_session_with_a_torn_line_in_the_middle_goes_on(demo: Demo) -> None:
    """The entries after the power cut continue those before it."""
    session = demo.named("Power cut during the backfill")
    assert len(session.get_heads()) == 1
    assert "cut off" in text(session.context().messages[-1])


def test_every_context_builds_and_can_be_sent(demo: Demo) -> None:
    """The context builds at each head of each session, and every tool call has its result."""
    for session in demo.open():
        for head in session.get_heads():
            context = session.context(head.id)
            assert not context.findings
            assert bool(anthropic_messages(context.messages)) == bool(context.messages)
        blocks = [block for message in said(session, "assistant") for block in message["content"]]
        calls = [block["id"] for block in blocks if block["type"] == "toolCall"]
        assert sorted(calls) == sorted(message["toolCallId"] for message in said(session, "toolResult"))
        assert len(set(calls)) == len(calls)


def test_ids_are_unique_and_every_parent_comes_first(demo: Demo) -> None:
    """No session needs a repair."""
    for session in demo.open():
        seen: set[str | None] = {None}
        for entry in session.iter_lines():
            assert entry.id not in seen
            assert entry.parent_id in seen
            seen.add(entry.id)


def test_tokens_and_costs_add_up(demo: Demo) -> None:
    """The total of an answer is the sum of its parts; the cost of a model without a price is unknown, not zero."""
    unpriced = set()
    for session in demo.open():
        for message in said(session, "assistant"):
            usage, cost = message["usage"], dict(message["usage"]["cost"])
            assert usage["totalTokens"] == sum(usage[part] for part in ("input", "output", "cacheRead", "cacheWrite"))
            assert min(usage["input"], usage["cacheRead"], usage["cacheWrite"], usage["output"]) >= 0
            assert cost.pop("total") == pytest.approx(sum(cost.values()))
            if usage["totalTokens"] and not sum(cost.values()):
                unpriced.add(f"{message['provider']}/{message['model']}")
                assert counts(session).cost is None
    assert unpriced == {"ollama/qwen3-coder:30b"}


def test_the_first_session_is_the_story_of_the_webhook(demo: Demo) -> None:
    """Approach A was abandoned with a summary, approach B is labelled, then a compaction and two more branches."""
    session = next(demo.open())
    assert (session.title, session.id[:8], Path(session.cwd).name) == ("Webhook retries", "6513270e", "payments-api")
    assert [head.id for head in session.get_heads()] == ["deadbee1", "77aa01c4", "0b1d22ef"]
    assert session.leaf_id == "0b1d22ef"
    assert session.get_label("9f31c2a0") == "tests-green"
    assert text(session.get_branch("deadbee1")[-1]["message"]).startswith("Two tests fail")
    kinds = Counter(entry.type for entry in session.get_branch())
    assert kinds["branch_summary"] == kinds["compaction"] == kinds["label"] == kinds["session_info"] == 1
    fork = session.get_common_ancestor("deadbee1", "0b1d22ef")
    assert [entry.type for entry in session.get_children(fork)] == ["message", "branch_summary"]
    assert session.get_common_ancestor("77aa01c4", "0b1d22ef") == session.get_branch()[-2].id


def test_the_story_of_the_webhook_has_all_that_a_page_shows(demo: Demo) -> None:
    """An image, thinking, a failed tool, a diff, two models with prices, and a compaction that made the context smaller."""
    session = next(demo.open())
    counted = counts(session)
    assert 30 <= counted.entries <= 45
    assert (counted.images, counted.tool_failures, counted.compactions, counted.branches) == (1, 1, 1, 3)
    assert set(counted.models) == {"anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-5"}
    assert counted.cost is not None and 0.1 < counted.cost < 1
    blocks = [block for message in said(session, "assistant") for block in message["content"]]
    assert {block["type"] for block in blocks} == {"thinking", "text", "toolCall"}
    assert {block["name"] for block in blocks if block["type"] == "toolCall"} == {"read", "edit", "bash"}
    assert all("diff" in m["details"] for m in said(session, "toolResult") if m["toolName"] == "edit")
    image = said(session, "user")[0]["content"][1]
    assert image["mimeType"] == "image/png" and len(image["data"]) < MIN_IMAGE
    compaction = next(entry for entry in session.get_entries() if entry.type == "compaction")
    assert 40_000 < compaction["tokensBefore"] < 55_000
    assert said(session, "assistant")[-1]["usage"]["totalTokens"] < compaction["tokensBefore"] / 2


def test_the_fork_begins_with_the_bytes_of_the_webhook_story(demo: Demo) -> None:
    """It refers to its source, keeps the entries up to the fork unchanged, and adds its own."""
    source, fork = islice(demo.open(), 2)
    assert fork.header["parentSession"] == source.id
    copied = [entry.raw for entry in source.get_branch("9f31c2a0")]
    assert [entry.raw for entry in fork.get_entries()][: len(copied)] == copied
    own = {entry.id for entry in fork.get_entries()[len(copied) :]}
    assert own and not own & {entry.id for entry in source.get_entries()}


def test_secrets_are_in_one_session_in_all_three_places(demo: Demo) -> None:
    """Secrets are in a prompt, a tool input and a tool output, with an e-mail address and a home folder."""
    with_secrets = {session.title for session in demo.open() if session.title != LONG and rules_in(_bodies(session))}
    assert with_secrets == {"Deploy script prints too much"}
    session = demo.named("Deploy script prints too much")
    assert rules_in(said(session, "user")) == {"github-token"}
    assert rules_in(said(session, "toolResult")) == {"anthropic-key", "aws-access-key", "url-password"}
    assert rules_in([message["content"] for message in said(session, "assistant")]) == {"openrouter-key"}
    assert rules_in(_bodies(session), PERSONAL) == {"email", "user"}


def _bodies(session: Session) -> list[Json]:
    return [entry.body for entry in session.get_entries()]


def test_the_long_session_has_20_000_entries_and_comes_line_by_line(demo: Demo) -> None:
    """Only the lines that are read are generated; the whole file is at most 15 MB."""
    session = demo.named(LONG)
    counted = counts(session)
    assert counted.entries == 20_000
    assert counted.compactions == 49
    assert counted.branches > 5 and counted.labels > 5 and counted.tool_failures > 5
    assert len(session.context().messages) < 500
    assert Path(session.path).stat().st_size < 15_000_000
    (lazy,) = [s for s in demo_sessions(NOW) if s.file_name == Path(session.path).name]
    header, first = islice(lazy.lines, 2)
    assert json.loads(header)["title"] == LONG and json.loads(first)["type"] == "model_change"


def test_the_long_session_can_be_searched_for_secrets_without_finding_any(demo: Demo) -> None:
    """Its checksums do not look like secrets."""
    assert not [entry for entry in islice(demo.named(LONG).iter_lines(), 2_000) if find_secrets(entry.raw.decode())]


def test_a_failed_turn_is_told_with_its_error(demo: Demo) -> None:
    """The session about the full disk has a failed tool and a failed answer."""
    session = demo.named("Night of the full disk")
    counted = counts(session)
    assert (counted.errors, counted.tool_failures, counted.labels) == (1, 1, 1)
    failed = next(message for message in said(session, "assistant") if message["stopReason"] == "error")
    assert failed["errorMessage"].startswith("529") and not failed["content"]
    context = session.context()
    assert (context.mode, context.service_tier, len(context.injected_ttsr_rules)) == ("none", "priority", 2)
    assert "Checkout returns 500. Start with the runbook." in map(text, context.messages[2:3])


def test_old_versions_are_read_as_new_ones(demo: Demo) -> None:
    """Version 1 has no ids and compacts by index; version 2 has the old name for custom messages."""
    ancient, hooked = [session for session in demo.open() if records(session.path)[0].get("version") in (None, 2)]
    assert "id" not in records(ancient.path)[1]
    assert [message["role"] for message in ancient.context().messages] == ["compactionSummary", "user", "assistant"]
    assert records(hooked.path)[2]["message"]["role"] == "hookMessage"
    assert hooked.context().messages[0]["role"] == "custom"


def test_a_sub_agent_lies_in_the_artifacts_of_its_session(demo: Demo) -> None:
    """Its session opens like any other, and its report is next to it."""
    session = demo.named("Where do duplicate orders come from?")
    scout = demo.store.open(f"{session.artifacts}/scout-1.jsonl", readonly=True)
    assert scout.header["parentSession"] == session.id
    assert scout.get_entries()[0].type == "session_init"
    assert not scout.findings
    assert Path(session.artifacts, "scout-1.md").read_text().startswith("# Scout")
    assert sum(bool(other.artifacts) for other in demo.sessions) == 1


def test_some_sessions_are_small_or_have_no_name(demo: Demo) -> None:
    """One has only settings, one a single question; several have no title."""
    sizes = sorted(counts(session).messages for session in demo.open() if session.title != LONG)
    assert sizes[:2] == [0, 2]
    assert sum(session.title is None for session in demo.open()) >= 5
    assert {model for session in demo.open() for model in counts(session).models} >= {
        "anthropic/claude-opus-4-5",
        "openai/gpt-5.1",
        "google/gemini-3-pro",
    }


@pytest.mark.parametrize("word", ["webhook", "flaky test", "timezone", "migrat", "浮点数", "絵文字", "القائمة", "🛒"])
def test_words_worth_searching_are_there(demo: Demo, word: str) -> None:
    """A search finds something in several writing systems."""
    assert any(word.encode() in Path(path).read_bytes() for path in demo.paths)


def test_a_leaf_that_was_stored_is_found_again(demo: Demo) -> None:
    """The leaf of the birthday session is an earlier answer."""
    session = demo.named("Birthdays one day early")
    assert session.leaf_id == "b1d7da01" != session.get_entries()[-1].id


def test_a_line_that_is_no_script_is_refused() -> None:
    """A mistake in a story is an error."""
    with pytest.raises(ValueError, match="invalid line in a script: 'hello'"):
        play("slip", "hello\n")
