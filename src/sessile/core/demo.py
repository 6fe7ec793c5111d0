"""The demo: about forty made-up sessions that show every feature on the first day.

All times hang from `now`; ids, texts and everything else are the same whenever it is asked for, so that documents can name
them. Lines come one at a time, as they are taken. Nothing is written: that is for the caller, who knows where.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.demo_filler import EVERYDAY, LONG, dull_stories, long_at, long_steps
from sessile.core.demo_script import MODELS, Step, draw, tell
from sessile.core.demo_stories import SCOUT, SCOUT_REPORT, STORIES
from sessile.core.migrate import VERSION
from sessile.core.secrets_table import fill
from sessile.core.text import iso_timestamp

_HOME = "/home/ana"
_HOUR = 3_600_000  # milliseconds
_STORY = re.compile(r"^= (\S+) (\S+) (\S+) (.+)\n((?:[^=\n].*\n)*)", re.MULTILINE)
_WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"  # the session that documents name
_FORKED_AT = "9f31c2a0"  # an entry of it
_OLD = {"ancient": 1, "hooked": 2}  # the stories in versions of the format that have been


class DemoSession(NamedTuple):
    """One made-up session: where it belongs, and what its file holds."""

    cwd: str
    file_name: str
    modified: int  # milliseconds since 1970: when its last entry was written
    lines: Iterator[bytes]  # without newlines, header first
    artifacts: Mapping[str, bytes]
    torn: bool = False  # the file ends in the middle of its last line

    def content(self) -> Iterator[bytes]:
        """The bytes of the file, in pieces. They can be taken once, as `lines` can."""
        between = b""
        for line in self.lines:
            yield between + line
            between = b"\n"
        if not self.torn:
            yield between


class _Story(NamedTuple):
    """What is known of a session before it is told."""

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


def demo_sessions(now: int) -> Iterator[DemoSession]:
    """The sessions of the demo, as they are at a moment in milliseconds since 1970; the newest ended two hours before."""
    webhook, fork, *others = _stories()
    steps = tell(webhook.name, webhook.script)
    start = _start(webhook, now, steps[-1].at)
    yield _session(webhook, start, steps)
    copied = _path(steps, _FORKED_AT)
    yield _session(fork._replace(parent=_WEBHOOK), start, tell(fork.name, fork.script, copied), len(copied))
    for story in others:
        steps = tell(story.name, story.script)
        yield _session(story, _start(story, now, steps[-1].at), steps)
    yield _long_session(now)


def _stories() -> Iterator[_Story]:
    yield from _read(STORIES)
    for story in _read(EVERYDAY + dull_stories()):
        model = list(MODELS)[draw(0, len(MODELS) - 1, story.name)]
        yield story._replace(script=f":model {model}\n:level low\n{story.script}")


def _read(stories: str) -> Iterator[_Story]:
    for name, project, hours, title, script in _STORY.findall(stories):
        told = fill(script, _not_real) if name == "leak" else script
        yield _Story(name, f"{_HOME}/{project}", float(hours), None if title == "-" else title, told)


def _not_real(alphabet: str, length: int) -> str:
    """The inside of a key of which everybody sees that it is none."""
    text = "deadbeef0123456789" if len(alphabet) == 16 else "N0tARealKey" if "a" in alphabet else "NOTAREALKEY23456"
    return (text * length)[:length]


def _start(story: _Story, now: int, duration: int) -> int:
    return now - int(story.hours_ago * _HOUR) - duration


def _path(steps: Iterable[Step], entry_id: str) -> list[Step]:
    """The entries from the root to one of them."""
    by_id = {step.entry_id: step for step in steps}
    path = [by_id[entry_id]]
    while (parent := path[-1].parent_id) is not None:
        path.append(by_id[parent])
    return path[::-1]


def _session(story: _Story, start: int, steps: list[Step], copied: int = 0) -> DemoSession:
    began = start + (steps[copied].at if copied else 0)
    artifacts = _scout(story, start) if story.name == "scouts" else {}
    end, lines = start + steps[-1].at, _lines(story, began, start, steps)
    return DemoSession(story.cwd, _file_name(story, began), end, lines, artifacts, steps[-1].torn)


def _long_session(now: int) -> DemoSession:
    story = _Story("tenants", f"{_HOME}/data-pipeline", 100, "Move every tenant to schema v7")
    duration = long_at(LONG - 1)
    start = _start(story, now, duration)
    lines = _lines(story, start, start, long_steps())
    return DemoSession(story.cwd, _file_name(story, start), start + duration, lines, {})


def _scout(story: _Story, start: int) -> dict[str, bytes]:
    """The session and the report of a sub-agent."""
    scout = _Story("scout-1", story.cwd, story.hours_ago, None, SCOUT, story.session_id)
    lines = _lines(scout, start, start, tell(scout.name, scout.script))
    return {"scout-1.jsonl": b"".join(line + b"\n" for line in lines), "scout-1.md": SCOUT_REPORT.encode()}


def _file_name(story: _Story, began: int) -> str:
    stamp = iso_timestamp(began).replace(":", "-").replace(".", "-")
    return f"{stamp}_{story.session_id}.jsonl"


def _lines(story: _Story, began: int, start: int, steps: Iterable[Step]) -> Iterator[bytes]:
    named = {"title": story.title, "titleSource": "auto"} if story.title else {}
    header = make.header(story.session_id, iso_timestamp(began), story.cwd, **named, parentSession=story.parent)
    version = header["version"] = _OLD.get(story.name, VERSION)
    if version == 1:
        del header["version"]
    yield encode(header)
    places: dict[str, int] = {}  # of entries, as version 1 counted them
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
