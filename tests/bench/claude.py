"""A1, A2, S11: Claude Code's sessions listed, resumed and converted, against the functions of its own SDK.

The SDK runs in an environment of its own below `.cache/peers`. Where that is missing, or with PEERS=1 cannot be made, the
rows have figures of ours only, and say why.
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

from sessile import Filter, Library, SessionContext, Source, Store
from sessile.converting import converted, import_session
from sessile.storage.filesystem import PosixFilesystem
from sessile.stores.claude.reading import ClaudeSessions

from .claude_corpus import Transcript, sessions, transcript
from .measure import Row, Work, interleaved, median, ratio, timed
from .scale import ROOT, Scale

SDK = "claude-agent-sdk"
SDK_VERSION = "0.2.182"
_ENVIRONMENT = ROOT / ".cache" / "peers" / f"{SDK}-{SDK_VERSION}"
_INSTALL_SECONDS = 600
_ANSWER_SECONDS = 300
_ROUNDS = 3  # the SDK takes seconds for each
_COMMAND = str(Path(sys.executable).with_name("sessile"))
_PIECE = 1 << 20
_SHARE = 0.2  # of the large size, for conversions


# -- the SDK


class Answer(msgspec.Struct):
    """What one call of the SDK took and gave."""

    seconds: float
    memory_mb: float
    count: int
    hash: str


class Sdk:
    """The SDK in processes of its own, or the reason why there is none."""

    def __init__(self, scale: Scale) -> None:
        self.missing = _why_missing(scale)

    def ask(self, call: str, home: str, *arguments: str) -> Answer:
        """One call in a fresh process; starting it does not count."""
        return msgspec.json.decode(self.run(call, home, *arguments), type=Answer)

    def run(self, call: str, home: str, *arguments: str) -> bytes:
        """The same as a whole process."""
        script = str(Path(__file__).with_name("claude_peer.py"))
        command = [str(_ENVIRONMENT / "bin" / "python"), script, call, home, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_ANSWER_SECONDS).stdout


def _why_missing(scale: Scale) -> str | None:
    """`None` if the SDK is there by now."""
    if (_ENVIRONMENT / "ready").exists():
        return None
    if not scale.peers:
        return f"{SDK} {SDK_VERSION} is not installed; PEERS=1 does that"
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(_ENVIRONMENT)],
        [str(_ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{SDK}=={SDK_VERSION}"],
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
        except subprocess.CalledProcessError as error:
            return f"{SDK} {SDK_VERSION} cannot be installed: {error.stderr.strip()[-60:]}"
        except subprocess.TimeoutExpired:
            return f"installing {SDK} {SDK_VERSION} took more than {_INSTALL_SECONDS} s"
    (_ENVIRONMENT / "ready").touch()
    return None


def _against(
    subject: str, call: str, sdk: Sdk, scale: Scale, home: str, theirs: Work, ours: Sequence[_Ours]
) -> list[Row]:
    """How much faster ours are than theirs, one row each; without the SDK, how long ours take."""
    rounds = scale.heavy_rounds
    works: dict[str, Work] = {work.name: partial(_in_memory, home, work.run) for work in ours}
    theirs = partial(_in_memory, home, theirs)
    if sdk.missing is not None:
        times = interleaved(rounds, **works)
        return [Row(subject, work.name, median(times[work.name]), skipped=sdk.missing) for work in ours]
    times = interleaved(min(rounds, _ROUNDS), **works, **{call: theirs})
    return [
        Row(
            subject,
            work.name,
            median(times[work.name]),
            baseline=f"sdk {call}",
            baseline_median=median(times[call]),
            ratio=ratio(times[call], times[work.name]),
            sense="≥",
            limit=work.limit,
        )
        for work in ours
    ]


def _in_memory(home: str, work: Work) -> float:
    """The time of some work when the system has the files in memory: the disk is not what is compared."""
    for path in Path(home, "projects").rglob("*.jsonl"):
        with path.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass
    return work()


class _Ours(msgspec.Struct):
    """Some work of ours, and how many times faster than the SDK it should be."""

    name: str
    run: Work
    limit: float | None = None


# -- A1: listing


def list_all(home: str, root: str, cache: str) -> int:
    """Catch up with the files of a config home, and list all sessions."""
    with Library(Store(root), [Source("claude", home, f"{home}/projects")], cache=cache) as library:
        library.catch_up()
        rows = library.list(Filter()).rows
        assert not library.notices and all(row.format == "claude" and row.first_text for row in rows)
        return len(rows)


def listing(scale: Scale) -> list[Row]:
    """A1: thousands of sessions by the library, with a catalog that is verified and with none."""
    home, count = sessions(scale)
    root, cold, warm = (str(scale.scratch() / name) for name in ("a1-root", "a1-cold", "a1-warm"))
    assert list_all(home, root, warm) == count
    sdk = Sdk(scale)

    def anew() -> float:
        shutil.rmtree(cold, ignore_errors=True)
        return timed(lambda: list_all(home, root, cold))

    def theirs() -> float:
        answer = sdk.ask("list_sessions", home)
        assert answer.count == count
        return answer.seconds

    ours = [
        _Ours(f"list {count} Claude sessions, warm", lambda: timed(lambda: list_all(home, root, warm)), 20),
        _Ours(f"list {count} Claude sessions, nothing cached", anew, 5),
    ]
    return _against("A1", "list_sessions", sdk, scale, home, theirs, ours)


def list_once(scale: Scale) -> None:
    """The memory of a first listing."""
    cache = scale.scratch() / "a1-once"
    shutil.rmtree(cache, ignore_errors=True)
    list_all(sessions(scale)[0], str(scale.scratch() / "a1-root"), str(cache))


def listing_as_a_process(scale: Scale) -> list[Row]:
    """A1b: `sessile ls --json` against a process that asks the SDK."""
    home, count = sessions(scale)
    place = scale.scratch() / "a1b"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    sdk = Sdk(scale)
    _ls(place, home, "warm", "--sort", "cost", "-n", "1")  # counts everything
    assert len(_ls(place, home, "warm")["items"]) == count

    def anew() -> float:
        shutil.rmtree(place / "cold", ignore_errors=True)
        return timed(lambda: _ls(place, home, "cold"))

    ours = [
        _Ours(f"sessile ls --json of {count}, warm", lambda: timed(lambda: _ls(place, home, "warm")), 20),
        _Ours(f"sessile ls --json of {count}, nothing cached", anew, 5),
    ]
    theirs = partial(timed, partial(sdk.run, "list_sessions", home))
    return _against("A1b", "list_sessions as a process", sdk, scale, home, theirs, ours)


def _ls(place: Path, home: str, cache: str, *options: str) -> dict[str, Any]:
    """The document of the command in a home where only Claude's sessions are."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    places = {"HOME": str(place), "SESSILE_CACHE": str(place / cache), "CLAUDE_CONFIG_DIR": home}
    done = subprocess.run([_COMMAND, "ls", "--json", *options], env=kept | places, stdout=subprocess.PIPE, check=True)
    document: dict[str, Any] = msgspec.json.decode(done.stdout)
    return document


# -- A2: resuming


def resume(made: Transcript, cache: str) -> SessionContext:
    """Open for reading, with the context."""
    with Store(made.root, cache=cache).open(made.path, readonly=True) as session:
        context = session.context()
        assert len(context.messages) > 50 and not context.findings
        return context


def resume_anew(made: Transcript, cache: Path) -> SessionContext:
    """The same with an empty cache: all bytes are read."""
    shutil.rmtree(cache, ignore_errors=True)
    return resume(made, str(cache))


def resuming(scale: Scale) -> list[Row]:
    """A2: a large transcript with our index, against reading it as the SDK does."""
    made = transcript(scale, scale.large_mb)
    resume(made, made.cache)
    name = f"resume {made.size / 1e6:.0f} MB of Claude with an index"
    return _messages_against("A2", made, scale, _Ours(name, lambda: timed(lambda: resume(made, made.cache)), 100))


def resuming_anew(scale: Scale) -> list[Row]:
    """A2b: the same with nothing cached."""
    made = transcript(scale, scale.large_mb)
    name = f"resume {made.size / 1e6:.0f} MB of Claude, nothing cached"
    cache = scale.scratch() / "a2-index"
    return _messages_against("A2b", made, scale, _Ours(name, lambda: timed(lambda: resume_anew(made, cache)), 8))


def reading(scale: Scale) -> list[Row]:
    """A2c: the same call as the SDK's, with the same answer and without any cache."""
    made = transcript(scale, scale.large_mb)
    name = f"get_session_messages of {made.size / 1e6:.0f} MB"
    return _messages_against(
        "A2c", made, scale, _Ours(name, lambda: timed(lambda: read_messages(made)), 8), _hash(made)
    )


def _messages_against(subject: str, made: Transcript, scale: Scale, ours: _Ours, expected: str = "") -> list[Row]:
    sdk = Sdk(scale)
    memory: list[float] = []

    def theirs() -> float:
        answer = sdk.ask("get_session_messages", made.home, made.session_id)
        assert answer.count and expected in ("", answer.hash)
        memory.append(answer.memory_mb)
        return answer.seconds

    rows = _against(subject, "get_session_messages", sdk, scale, made.home, theirs, [ours])
    told = [Row(subject, "… memory of the SDK for that", median(memory), unit="MB")] if memory else []
    return rows + told


def read_messages(made: Transcript) -> list[dict[str, Any]]:
    """What the SDK's function of that name gives, by our reader."""
    found = ClaudeSessions(PosixFilesystem(), made.home).get_session_messages(made.session_id, view="python-sdk")
    return [asdict(message) for message in found]


def _hash(made: Transcript) -> str:
    """As the peer hashes its answer."""
    members = ("type", "uuid", "session_id", "message", "parent_tool_use_id", "parent_agent_id")
    whole = hashlib.sha256()
    for message in read_messages(made):
        whole.update(json.dumps({name: message[name] for name in members}, sort_keys=True).encode())
    return whole.hexdigest()


def _once(work: Callable[[Transcript, Path], object]) -> Callable[[Scale], None]:
    """The work on the large transcript, for its memory."""

    def run(scale: Scale) -> None:
        work(transcript(scale, scale.large_mb), scale.scratch() / "a2-once")

    return run


resume_once = _once(lambda made, cache: resume(made, made.cache))
resume_anew_once = _once(resume_anew)
read_once = _once(lambda made, cache: read_messages(made))


# -- S11: converting


def convert_in(made: Transcript, root: str) -> str:
    """Import a transcript into a new store; gives the path of the session."""
    shutil.rmtree(root, ignore_errors=True)
    imported = import_session(Store(root, durability="process"), made.path)
    assert imported.added == made.rows and not imported.unreadable
    return imported.path


def convert_out(made: Transcript, root: str, path: str) -> None:
    """Convert the session back: the same bytes come out."""
    with Store(root).open(path, readonly=True) as session:
        assert sum(map(len, converted(session, "claude", {}))) == made.size


def converting(scale: Scale) -> list[Row]:
    """S11: a transcript as a session of ours, and back."""
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
    """The memory of both ways."""
    made, root = transcript(scale, scale.large_mb * _SHARE), str(scale.scratch() / "s11-once")
    convert_out(made, root, convert_in(made, root))
    shutil.rmtree(root)
