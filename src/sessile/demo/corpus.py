"""The demo: about forty made-up sessions that show every feature, and a store that contains them.

    demo_sessions(now)      the sessions as values; nothing is written
    make_demo(store)        write them to a store that does not have them yet
    bind_demo(store)        make some of them conversations of a gateway

All times are relative to `now`. Ids, texts and everything else are always the same, so that documents can refer to them: every
number is derived from the name of a session and the position of an entry in it. Lines are generated as they are read.

The stories are in `stories/`, in the notation of `demo.script`, each below a line `= name project hours-ago title`; a title of
`-` means none. Secrets in them are placeholders that are filled with values of the right shape, so that no file contains one:

    featured.txt            sessions that show one feature each
    everyday.txt            ordinary sessions; the name of each chooses its model
    chores.txt              long, repetitive work: the text that is replaced in every module
    scout.txt               the sub-agent of the story `scouts`, and its report in scout-report.md
    tenants.txt             words for the session of 20,000 entries
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from sessile.agents.openclaw.binding_store import Changes, Entries, own_bindings
from sessile.agents.openclaw.entries import SessionEntry
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id
from sessile.core.migrate import VERSION
from sessile.core.secret_shapes import fill
from sessile.core.text import iso_timestamp
from sessile.demo.script import MODELS, Step, answer, draw, play, story_file, text_of, tool_call, tool_result
from sessile.storage import atomic
from sessile.storage.layout import JOURNAL, artifacts_of
from sessile.store import Store

_HOME = "/home/ana"
_HOUR = 3_600_000  # milliseconds
_WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"  # the session that the documentation refers to
_FORKED_AT = "9f31c2a0"  # an entry of it
_OLD_VERSIONS = {"ancient": 1, "hooked": 2}  # stories in older versions of the file format


class DemoSession(NamedTuple):
    """A made-up session: its project and the content of its file."""

    cwd: str
    file_name: str
    modified: int  # milliseconds since 1970, when its last entry was written
    lines: Iterator[bytes]  # without newlines, header first
    artifacts: Mapping[str, bytes]
    torn: bool = False  # the file ends in the middle of its last line

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the file in pieces. Like `lines`, this can be read once."""
        between = b""
        for line in self.lines:
            yield between + line
            between = b"\n"
        if not self.torn:
            yield between


def demo_sessions(now: int) -> Iterator[DemoSession]:
    """Yield the sessions of the demo. `now` is in milliseconds since 1970; the newest session ended two hours before."""
    webhook, fork, *others = _stories()
    steps = play(webhook.name, webhook.script)
    start = _start(webhook, now, steps[-1].at)
    yield _session(webhook, start, steps)
    copied = _path(steps, _FORKED_AT)
    yield _session(fork._replace(parent=_WEBHOOK), start, play(fork.name, fork.script, copied), len(copied))
    for story in others:
        steps = play(story.name, story.script)
        yield _session(story, _start(story, now, steps[-1].at), steps)
    yield _long_session(now)


# -- a store with the demo

_AGENT = "main"
# Sessions that are conversations of the demo, by the start of their ids, with key and chat.
_CONVERSATIONS = {
    "6513270e": ("agent:main:main", {"displayName": "Webhook retries"}),
    "e2d3b41d": (
        "agent:main:discord:channel:shop",
        {"chatType": "channel", "channel": "discord", "displayName": "discord:#shop"},
    ),
    "1f5087db": (
        "agent:main:telegram:group:-1001200345",
        {"chatType": "group", "channel": "telegram", "displayName": "Kitchen"},
    ),
    "bdbb9deb": ("agent:main:hook:ci", {"displayName": "CI"}),
    "1dbce02c": ("agent:main:cron:orders", {"displayName": "Nightly orders"}),
}


def make_demo(store: Store) -> int:
    """Write the sessions of the demo that the store does not have, and return how many were written."""
    made = f"{store.layout.root}/made"  # written last: without it the demo is incomplete
    if atomic.exists(store.fs, made):
        return 0
    known = {info.id for info in store.list_all()}
    written = 0
    for session in demo_sessions(store.now()):
        session_id = session.file_name.removesuffix(JOURNAL).rpartition("_")[2]
        if session_id not in known:
            _write(store, session)
            written += 1
    atomic.replace(store.fs, made, (b"",), durable=False)
    return written


def _write(store: Store, session: DemoSession) -> None:
    path = f"{store.layout.folder(session.cwd)}/{session.file_name}"
    artifacts = artifacts_of(path)
    atomic.make_folders(store.fs, artifacts if session.artifacts else posixpath.dirname(path))
    for name, content in session.artifacts.items():
        atomic.replace(store.fs, f"{artifacts}/{name}", (content,), durable=False)
    atomic.replace(store.fs, path, session.content(), durable=False)
    atomic.set_modified(store.fs, path, session.modified * 1_000_000)


def bind_demo(store: Store) -> None:
    """Make some sessions of the demo conversations, unless there are conversations already."""

    def bind(entries: Entries) -> Changes:
        return {} if entries else dict(_bindings(store))

    own_bindings(store, _AGENT).update_all(bind, now=store.now())


def _bindings(store: Store) -> Iterator[tuple[str, SessionEntry]]:
    for info in store.list_all():
        if info.id[:8] in _CONVERSATIONS:
            key, chat = _CONVERSATIONS[info.id[:8]]
            moment = int(info.modified.timestamp() * 1000)
            yield key, SessionEntry({"sessionId": info.id, "updatedAt": moment, "sessionStartedAt": moment, **chat})


# -- stories

_STORY = re.compile(r"^= (\S+) (\S+) (\S+) (.+)\n((?:[^=\n].*\n)*)", re.MULTILINE)
_CHORE = re.compile(r"^= (.+)\nold: (.+)\nnew: (.+)\nmodules: (.+)\n", re.MULTILINE)


class _Story(NamedTuple):
    name: str
    cwd: str
    hours_ago: float
    title: str | None
    script: str = ""
    parent: str | None = None

    @property
    def session_id(self) -> str:
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        made = f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"
        return _WEBHOOK if self.name == "webhook" else made


def _stories() -> Iterator[_Story]:
    yield from _read(_text("featured.txt"))
    for story in _read(_text("everyday.txt") + _chores()):
        model = list(MODELS)[draw(0, len(MODELS) - 1, story.name)]
        yield story._replace(script=f":model {model}\n:level low\n{story.script}")


def _text(name: str) -> str:
    return story_file(name).decode()


def _read(stories: str) -> Iterator[_Story]:
    for name, project, hours, title, script in _STORY.findall(stories):
        filled = fill(script, _fake_secret) if name == "leak" else script
        yield _Story(name, f"{_HOME}/{project}", float(hours), None if title == "-" else title, filled)


def _fake_secret(alphabet: str, length: int) -> str:
    """Return the inside of a key that is obviously not real."""
    text = "deadbeef0123456789" if len(alphabet) == 16 else "N0tARealKey" if "a" in alphabet else "NOTAREALKEY23456"
    return (text * length)[:length]


def _chores() -> str:
    """Return the repetitive sessions as scripts."""
    lines = []
    for story, old, new, modules in _CHORE.findall(_text("chores.txt")):
        lines += [f"= {story}", f"> {story.split(' ', 3)[-1]}, please. One module at a time, with its tests."]
        for module in modules.split():
            lines += [f"$ read src/{module}", f"|{old}", f"< Next: {module}.", f"$ edit src/{module}"]
            lines += [f"|-{old}", f"|+{new}", f"$ bash make test-{module}", f"|{draw(4, 60, story, module)} passed"]
        lines.append("< All modules are done and all tests pass.")
    return "\n".join([*lines, ""])


def _start(story: _Story, now: int, duration: int) -> int:
    return now - int(story.hours_ago * _HOUR) - duration


def _path(steps: Iterable[Step], entry_id: str) -> list[Step]:
    """Return the entries from the root to one of them."""
    by_id = {step.entry_id: step for step in steps}
    path = [by_id[entry_id]]
    while (parent := path[-1].parent_id) is not None:
        path.append(by_id[parent])
    return path[::-1]


# -- sessions


def _session(story: _Story, start: int, steps: list[Step], copied: int = 0) -> DemoSession:
    created = start + (steps[copied].at if copied else 0)
    artifacts = _scout(story, start) if story.name == "scouts" else {}
    end, lines = start + steps[-1].at, _lines(story, created, start, steps)
    return DemoSession(story.cwd, _file_name(story, created), end, lines, artifacts, steps[-1].torn)


def _scout(story: _Story, start: int) -> dict[str, bytes]:
    """Return the session and the report of a sub-agent."""
    scout = _Story("scout-1", story.cwd, story.hours_ago, None, _text("scout.txt"), story.session_id)
    lines = _lines(scout, start, start, play(scout.name, scout.script))
    return {"scout-1.jsonl": b"".join(line + b"\n" for line in lines), "scout-1.md": story_file("scout-report.md")}


def _file_name(story: _Story, created: int) -> str:
    stamp = iso_timestamp(created).replace(":", "-").replace(".", "-")
    return f"{stamp}_{story.session_id}.jsonl"


def _lines(story: _Story, created: int, start: int, steps: Iterable[Step]) -> Iterator[bytes]:
    named = {"title": story.title, "titleSource": "auto"} if story.title else {}
    header = make.header(story.session_id, iso_timestamp(created), story.cwd, **named, parentSession=story.parent)
    version = header["version"] = _OLD_VERSIONS.get(story.name, VERSION)
    if version == 1:
        del header["version"]
    yield encode(header)
    places: dict[str, int] = {}  # of entries, as version 1 counts them
    for step in steps:
        places[step.entry_id] = len(places) + 1
        yield _line(step, start + step.at, places if version == 1 else None)


def _line(step: Step, at: int, places: Mapping[str, int] | None) -> bytes:
    payload = step.payload
    if payload["type"] == "message":
        payload = {**payload, "message": {**payload["message"], "timestamp": at}}
    entry = make.with_base(payload, step.entry_id, step.parent_id, iso_timestamp(at))
    if places is not None:
        del entry["id"], entry["parentId"]
        if "firstKeptEntryId" in entry:
            entry["firstKeptEntryIndex"] = places[entry.pop("firstKeptEntryId")]
    raw = encode(entry)
    return raw[: len(raw) * 3 // 5] if step.torn else raw


# -- the session of 20,000 entries: a migration of thousands of tenants

_TENANTS = "tenants"
_LONG = 20_000  # entries
_MODEL = "anthropic/claude-sonnet-4-5"
_PACE = 9_000  # milliseconds from one entry to the next
_BATCH, _COMPACTED = 20, 400  # entries of a batch, and between two compactions


def _long_session(now: int) -> DemoSession:
    story = _Story(_TENANTS, f"{_HOME}/data-pipeline", 100, "Move every tenant to schema v7")
    duration = _long_at(_LONG - 1)
    start = _start(story, now, duration)
    lines = _lines(story, start, start, _long_steps())
    return DemoSession(story.cwd, _file_name(story, start), start + duration, lines, {})


def _long_steps() -> Iterator[Step]:
    """Yield the entries: compacted every 400 entries, some batches repeated, some labelled."""
    ids: list[str] = []
    for number in range(_LONG):
        ids.append(derived_entry_id(_TENANTS, number))
        # Every 2,400 entries a batch is repeated: it branches off at the end of the batch before the last.
        back = _BATCH + 1 if number % 2_400 == 7 * _BATCH + 1 else 1
        yield Step(ids[-1], ids[number - back] if number else None, _long_at(number), _payload(number, ids))


def _long_at(number: int) -> int:
    return number * _PACE + number * 7_919 % _PACE


def _payload(number: int, ids: list[str]) -> Payload:
    batch, place = divmod(number, _BATCH)
    if number == 0:
        return make.model_change(_MODEL)
    if number % _COMPACTED == 0:
        summary = f"## Move every tenant to schema v7\n{batch} batches are done, up to {_tenant(number - 1)}."
        return make.compaction(summary, ids[number - _BATCH + 1], _context_size(number - 1))
    if number % 2_000 == 2 * _BATCH:
        return make.label(ids[number - _BATCH], f"batch-{batch - 1}")
    if place == 1:
        return make.message(
            {"role": "user", "content": f"Next: batch {batch + 1}, starting with {_tenant(number + 1)}."}
        )
    if place % 2:
        return make.message(_migration_result(number))
    closing = _tenant_words()["closing"]
    content = text_of(f"Batch {batch} is done. {closing[batch % len(closing)]}")
    if place:
        content = [tool_call(f"call_{number}", "bash", {"command": f"./migrate --to v7 --tenant '{_tenant(number)}'"})]
    read = _context_size(number)
    return make.message(answer(_MODEL, content, cached=read - 120, read=read, written=draw(40, 220, number)))


def _context_size(number: int) -> int:
    return 9_000 + number % _COMPACTED * 60


def _migration_result(number: int) -> Payload:
    chance = draw(0, 10**6, _TENANTS, number)
    output = f"{_tenant(number - 1)}: {chance % 90_000:,} rows in {chance % 890 / 10} s, checksum {chance * 3_571:08x}"
    failed = chance % 97 == 0
    errors = _tenant_words()["error"]
    output += f"\nERROR: {errors[chance % len(errors)]}" if failed else "\ninvoices ok, customers ok, payments ok"
    return tool_result(f"call_{number - 1}", "bash", output, failed=failed)


def _tenant(number: int) -> str:
    words = _tenant_words()
    first, second = words["first"], words["second"]
    return f"{first[number // 2 % len(first)]} {second[number // 24 % len(second)]} {number // 2:05d}"


@cache
def _tenant_words() -> dict[str, list[str]]:
    """Return the lines of tenants.txt by their first word; `first` and `second` are the parts of names."""
    words: dict[str, list[str]] = {}
    for line in _text("tenants.txt").splitlines():
        kind, _, text = line.partition(": ")
        words.setdefault(kind, []).extend(text.split(", ") if kind in ("first", "second") else [text])
    return words
