"""A1, A2, S11: listing, resuming and converting Claude Code sessions, compared with its own SDK.

Without the SDK, the rows have only our figures and say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sessile import Filter, Library, SessionContext, Store
from sessile.agents.claude.sdk import ClaudeSessions
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.layout import Source
from sessile.transfer import converted, import_session

from . import limits
from .claude_corpus import Transcript, sessions, transcript
from .listing import walk_and_read, walk_and_stat
from .measure import Row, Work, interleaved, median, ratio, timed
from .peers import Challenge, against, ask
from .scale import Scale

SDK = "claude-sdk"
_LEAST_RESUME = 100
_ROUNDS = 3
_COMMAND = str(Path(sys.executable).with_name("sessile"))
_PIECE = 1 << 20
_SHARE = 0.2  # of the large size, for conversions


# -- the SDK


class _Ours(msgspec.Struct):
    """A piece of work, its baseline, and the minimum speedup over the SDK."""

    name: str
    run: Work
    least: float | None = None
    baseline: str = ""
    limit: Work | None = None
    at: float | None = None


def _rows(subject: str, scale: Scale, home: str, works: Sequence[_Ours], challenge: Challenge) -> list[Row]:
    """Return our times and the speedup over the SDK; without the SDK, our times and what is missing."""
    rows = []
    for ours in works:
        run = partial(_in_memory, home, ours.run)
        limit = None if ours.limit is None else partial(_in_memory, home, ours.limit)
        times = interleaved(scale.heavy_rounds, ours=run, **({} if limit is None else {"limit": limit}))
        row = Row(subject, ours.name, median(times["ours"]), curve=None if ours.at is None else "resume", at=ours.at)
        if limit is not None:
            row.baseline, row.baseline_median = ours.baseline, median(times["limit"])
            row.ratio = ratio(times["ours"], times["limit"])
        row.rivals = against(scale, run, challenge._replace(least=ours.least))
        if not row.rivals:
            row.skipped = f"{SDK} is not compared"
        rows.append(row)
    return rows


def _in_memory(home: str, work: Work) -> float:
    """Return the time of a work with warm file caches, because the disk is not compared."""
    for path in Path(home, "projects").rglob("*.jsonl"):
        with path.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass
    return work()


# -- A1: listing


def list_all(home: str, root: str, cache: str) -> int:
    """Catch up with the files of a config home and list all sessions."""
    with Library(Store(root), [Source("claude", home, f"{home}/projects")], cache=cache) as library:
        library.catch_up()
        rows = library.list(Filter()).rows
        assert not library.notices and all(row.format == "claude" and row.first_text for row in rows)
        return len(rows)


def listing(scale: Scale) -> list[Row]:
    """A1: list thousands of sessions with the library, with a verified catalog and without one."""
    home, count = sessions(scale)
    root, cold, warm = (str(scale.scratch() / name) for name in ("a1-root", "a1-cold", "a1-warm"))
    assert list_all(home, root, warm) == count

    def anew() -> float:
        shutil.rmtree(cold, ignore_errors=True)
        return timed(lambda: list_all(home, root, cold))

    projects = f"{home}/projects"
    walk = partial(timed, partial(walk_and_stat, projects))
    read = partial(timed, partial(walk_and_read, projects))
    ours = [
        _Ours(
            f"list {count:,} Claude sessions, warm",
            lambda: timed(lambda: list_all(home, root, warm)),
            20,
            "walk+lstat",
            walk,
        ),
        _Ours(f"list {count:,} Claude sessions, nothing cached", anew, 5, "walk+lstat+head+tail", read),
    ]
    return _rows("A1", scale, home, ours, Challenge(SDK, "list_sessions", [home], found=count))


def list_once(scale: Scale) -> None:
    """Do a first listing to measure its memory."""
    cache = scale.scratch() / "a1-once"
    shutil.rmtree(cache, ignore_errors=True)
    list_all(sessions(scale)[0], str(scale.scratch() / "a1-root"), str(cache))


def listing_as_a_process(scale: Scale) -> list[Row]:
    """A1b: `sessile ls --json` against a process that calls the SDK."""
    home, count = sessions(scale)
    place = scale.scratch() / "a1b"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    _ls(place, home, "warm", "--sort", "cost", "-n", "1")  # sorting by cost counts all sessions
    assert len(_ls(place, home, "warm")["items"]) == count

    def anew() -> float:
        shutil.rmtree(place / "cold", ignore_errors=True)
        return timed(lambda: _ls(place, home, "cold"))

    ours = [
        _Ours(f"sessile ls --json of {count}, warm", lambda: timed(lambda: _ls(place, home, "warm")), 20),
        _Ours(f"sessile ls --json of {count}, nothing cached", anew, 5),
    ]
    return _rows("A1b", scale, home, ours, Challenge(SDK, "list_sessions", [home], found=count, as_process=True))


def _ls(place: Path, home: str, cache: str, *options: str) -> dict[str, Any]:
    """Return the JSON of the command in a home with only Claude Code sessions."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    places = {"HOME": str(place), "SESSILE_CACHE": str(place / cache), "CLAUDE_CONFIG_DIR": home}
    done = subprocess.run([_COMMAND, "ls", "--json", *options], env=kept | places, capture_output=True, check=True)
    document: dict[str, Any] = msgspec.json.decode(done.stdout)
    return document


# -- A2: resuming


def resume(made: Transcript, cache: str) -> SessionContext:
    """Open for reading and build the context."""
    with Store(made.root, cache=cache).open(made.path, readonly=True) as session:
        context = session.context()
        assert len(context.messages) > 50 and not context.findings
        return context


def resume_anew(made: Transcript, cache: Path) -> SessionContext:
    """Resume with an empty cache, which reads all bytes."""
    shutil.rmtree(cache, ignore_errors=True)
    return resume(made, str(cache))


def resuming(scale: Scale) -> list[Row]:
    """A2: resume large transcripts with our index, against reading them as the SDK does."""
    return [row for size in scale.sizes for row in _resuming(scale, size)]


def _resuming(scale: Scale, size: float) -> list[Row]:
    made = transcript(scale, size)
    resume(made, made.cache)
    least = _LEAST_RESUME if size == scale.large_mb else None
    ours = _Ours(
        f"resume {size:g} MB of Claude with an index", lambda: timed(lambda: resume(made, made.cache)), least, at=size
    )
    return _messages_rows("A2", scale, made, ours)


def resuming_anew(scale: Scale) -> list[Row]:
    """A2b: resume the largest transcript with nothing cached."""
    made = transcript(scale, scale.large_mb)
    cache = scale.scratch() / "a2-index"
    name, scan = limits.read_scan(scale)
    ours = _Ours(
        f"resume {scale.large_mb:g} MB of Claude, nothing cached",
        lambda: timed(lambda: resume_anew(made, cache)),
        8,
        name,
        lambda: timed(lambda: scan(made.path)),
    )
    return _messages_rows("A2b", scale, made, ours)


def reading(scale: Scale) -> list[Row]:
    """A2c: the same call and result as the SDK's, without a cache."""
    made = transcript(scale, scale.large_mb)
    name = f"get_session_messages of {scale.large_mb:g} MB"
    rows = _messages_rows("A2c", scale, made, _Ours(name, lambda: timed(lambda: read_messages(made)), 8))
    if rows[0].rivals:
        answer = ask(scale, SDK, "get_session_messages", made.home, made.session_id)
        assert answer.hash == _hash(made), "the SDK answers with something else"
    return rows


def _messages_rows(subject: str, scale: Scale, made: Transcript, ours: _Ours) -> list[Row]:
    asked = Challenge(SDK, "get_session_messages", [made.home, made.session_id])
    return _rows(subject, scale, made.home, [ours], asked)


def read_messages(made: Transcript) -> list[dict[str, Any]]:
    """Return what the SDK's function of that name returns, with our reader."""
    found = ClaudeSessions(PosixFilesystem(), made.home).get_session_messages(made.session_id, view="python-sdk")
    return [asdict(message) for message in found]


def _hash(made: Transcript) -> str:
    """Hash the messages as the peer does."""
    members = ("type", "uuid", "session_id", "message", "parent_tool_use_id", "parent_agent_id")
    whole = hashlib.sha256()
    for message in read_messages(made):
        whole.update(json.dumps({name: message[name] for name in members}, sort_keys=True).encode())
    return whole.hexdigest()


def _once(work: Callable[[Transcript, Path], object]) -> Callable[[Scale], None]:
    """Run a work once on the large transcript to measure its memory."""

    def run(scale: Scale) -> None:
        work(transcript(scale, scale.large_mb), scale.scratch() / "a2-once")

    return run


resume_once = _once(lambda made, cache: resume(made, made.cache))
resume_anew_once = _once(resume_anew)
read_once = _once(lambda made, cache: read_messages(made))


# -- S11: converting


def convert_in(made: Transcript, root: str) -> str:
    """Import a transcript into a new store and return the path of the session."""
    shutil.rmtree(root, ignore_errors=True)
    imported = import_session(Store(root, durability="process"), made.path)
    assert imported.added == made.rows and not imported.unreadable
    return imported.path


def convert_out(made: Transcript, root: str, path: str) -> None:
    """Convert the session back to the same bytes."""
    with Store(root).open(path, readonly=True) as session:
        assert sum(map(len, converted(session, "claude", {}))) == made.size


def converting(scale: Scale) -> list[Row]:
    """S11: convert a transcript to a native session and back."""
    made = transcript(scale, scale.large_mb * _SHARE)
    root = str(scale.scratch() / "s11")
    megabytes = made.size / 1e6
    speeds: dict[str, list[float]] = {"import": [], "convert": []}
    for _ in range(min(scale.heavy_rounds, _ROUNDS)):
        start = time.perf_counter()
        path = convert_in(made, root)
        between = time.perf_counter()
        convert_out(made, root, path)
        speeds["import"].append(megabytes / (between - start))
        speeds["convert"].append(megabytes / (time.perf_counter() - between))
    shutil.rmtree(root)
    return [
        _speed_row(f"import {megabytes:.0f} MB of Claude", speeds["import"]),
        _speed_row("… and convert it back", speeds["convert"]),
    ]


def _speed_row(work: str, speeds: Sequence[float]) -> Row:
    speed = median(speeds)
    return Row("S11", work, speed, unit="MB/s", ratio=speed, sense="≥", limit=50)


def convert_once(scale: Scale) -> None:
    """Convert both ways to measure the memory."""
    made, root = transcript(scale, scale.large_mb * _SHARE), str(scale.scratch() / "s11-once")
    convert_out(made, root, convert_in(made, root))
    shutil.rmtree(root)
