"""S14: instructions counted by valgrind, which do not depend on the load of the machine.

One process runs each work once uncounted and then again under callgrind; a small library marks where a work starts and
ends, so that the start of the interpreter is not counted. Each work has a waste: the cost of one needless pass over the
same bytes. A guard must be tight enough to notice it.

    python -m tests.bench.instructions LIBRARY SCALE [WORK…]        under valgrind

The guards apply to the sizes of a smoke run, which `make test` counts.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from sessile import Store

from .appending import append_lines, append_messages, new_journal, new_session
from .corpus import Corpus, corpus, sample_lines, sample_messages
from .listing import list_newest, some_sessions
from .measure import Row, drop
from .reading import resume, warm
from .scale import ROOT, Scale

_LIBRARY = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
_DUMP = re.compile(r"^desc: Trigger: Client Request: ([^\n]+)$.*?^(?:totals|summary): (\d+)", re.M | re.S)
_APPENDS = 100
_SHOWN, _LISTED = 10, 50  # sessions; the same number is shown for few and many
_PYTHON = (3, 11)

Run = Callable[[], None]


class Missing(Exception):
    """Instructions cannot be counted here; the message says what is missing."""


class Parts(NamedTuple):
    """A prepared work, its waste, its number of units, its constant part and its cleanup."""

    work: Run
    waste: Run
    units: float = 1
    base: Run | None = None  # the part that does not depend on the units, and is not counted
    close: Run = lambda: None


def _resuming(scale: Scale) -> Parts:
    made = warm(corpus(scale, scale.large_mb))
    with open(made.path, "rb") as file:
        live = [os.pread(file.fileno(), length, offset) for offset, length in made.live]
    return Parts(lambda: resume(made).close(), lambda: _decode(live))


def _appending(scale: Scale) -> Parts:
    lines = sample_lines(corpus(scale, scale.small_mb), 50)
    journal = new_journal(scale, "counted")

    def close() -> None:
        journal.close()
        drop(journal.path)

    again = lines * (_APPENDS // len(lines) + 1)
    return Parts(
        lambda: append_lines(journal, lines, _APPENDS), lambda: _decode(again[:_APPENDS]), _APPENDS, close=close
    )


def _messages(scale: Scale) -> Parts:
    texts = sample_messages(corpus(scale, scale.small_mb), 50)
    session = new_session(scale, "counted-session")

    def close() -> None:
        session.close()
        shutil.rmtree(scale.scratch() / "counted-session")

    again = texts * (_APPENDS // len(texts) + 1)
    return Parts(
        lambda: append_messages(session, texts, _APPENDS),
        lambda: _encode(again[:_APPENDS]),
        _APPENDS,
        close=close,
    )


def _indexing(scale: Scale) -> Parts:
    made = warm(corpus(scale, scale.small_mb))
    cache = scale.scratch() / "counted-index"
    with open(made.path, "rb") as file:
        lines = file.read().splitlines()
    return Parts(
        lambda: _index(made, cache), lambda: _decode(lines), made.size / 1e6, base=lambda: _index(made, made.cache)
    )


def _index(made: Corpus, cache: str | Path) -> None:
    """Open a session and build its context; any cache but the warm one is removed afterwards."""
    with Store(made.root, cache=cache).open(made.path, readonly=True) as session:
        session.context()
    if cache != made.cache:
        shutil.rmtree(cache)


def _listing(scale: Scale) -> Parts:
    few, many = some_sessions(scale, _SHOWN), some_sessions(scale, _LISTED)
    tails = [path.read_bytes()[-4096:] for path in sorted(Path(many).iterdir())]

    def look_again() -> None:
        _decode([line for tail in tails[_SHOWN:] for line in tail.splitlines()[1:]])

    return Parts(lambda: _list(scale, many), look_again, _LISTED - _SHOWN, base=lambda: _list(scale, few))


def _list(scale: Scale, folder: str) -> None:
    cache = scale.scratch() / "counted-catalog"
    shutil.rmtree(cache, ignore_errors=True)
    list_newest(str(cache), folder, _SHOWN)


def _decode(lines: Sequence[bytes]) -> None:
    for line in lines:
        msgspec.json.decode(line)


def _encode(messages: Sequence[object]) -> None:
    for message in messages:
        msgspec.json.encode(message)


class Work(NamedTuple):
    """The function to count, its description, the target per unit, and the guard per unit."""

    make: Callable[[Scale], Parts]
    words: str
    target: float | None
    guard: float


WORKS = {
    "append": Work(_appending, "append an encoded line", 60e3, 54e3),
    "message": Work(_messages, "append_message", None, 243e3),
    "index": Work(_indexing, "index a megabyte", 9e6, 16.5e6),
    "resume": Work(_resuming, "resume the large session", 25e6, 26.9e6),
    "list": Work(_listing, "list a session, no cache", 100e3, 190e3),
}
GUARDED = ("append", "index", "resume", "list")


class Count(NamedTuple):
    """Instructions per unit, and those that a waste would add."""

    work: float
    waste: float


def counting(scale: Scale) -> list[Row]:
    """S14: the number of instructions of each work."""
    try:
        counts = count(scale)
    except Missing as missing:
        return [Row("S14", "instructions", skipped=str(missing))]
    rows = []
    for name, work in WORKS.items():
        row = Row("S14", f"instructions: {work.words}", counts[name].work, unit="")
        if work.target is not None:
            row.baseline, row.baseline_median = "the target itself", work.target
            row.ratio, row.limit = counts[name].work / work.target, 1
        rows.append(row)
    return rows


def bound(name: str) -> float | None:
    """Return the maximum per unit in `make test`; other Python versions may use the target if it is larger."""
    work = WORKS[name]
    return work.guard if sys.version_info[:2] == _PYTHON else max(work.target or 0, work.guard)


def count(scale: Scale, names: Sequence[str] = tuple(WORKS)) -> dict[str, Count]:
    """Return the instructions of these works."""
    valgrind, compiler = shutil.which("valgrind"), shutil.which("gcc") or shutil.which("cc")
    if valgrind is None or compiler is None:
        raise Missing("valgrind is not installed" if valgrind is None else "there is no C compiler")
    for name in names:
        parts = WORKS[name].make(scale)  # sessions are prepared in advance: only the work is counted
        parts.close()
    with tempfile.TemporaryDirectory(dir=scale.scratch()) as folder:
        library = _compiled(compiler, Path(folder))
        out = Path(folder, "counts")
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        done = subprocess.run(
            [valgrind, *options, *command(scale, str(library), *names)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"under valgrind: {done.stderr[-1000:]}")
        found = dict(counted(Path(folder)))
    return {name: Count(found[name] - found.get(f"{name} base", 0), found[f"{name} waste"]) for name in names}


def command(scale: Scale, library: str, *names: str) -> list[str]:
    """Return the command that runs the works; without a library nothing is counted."""
    encoded = msgspec.json.encode(scale).decode()
    return [sys.executable, "-m", "tests.bench.instructions", library, encoded, *names]


def _compiled(compiler: str, folder: Path) -> Path:
    source, library = folder / "counter.c", folder / "counter.so"
    source.write_text(_LIBRARY)
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise Missing("valgrind's header files are not installed")
    return library


def counted(folder: Path) -> Iterator[tuple[str, float]]:
    """Parse the dumps, one file per work."""
    for path in folder.glob("counts.*"):
        dump = _DUMP.search(path.read_text())
        if dump is not None:
            name, _, units = dump[1].rpartition("/")
            yield name, int(dump[2]) / float(units)


# -- under valgrind


def main(library: str, encoded: str, *names: str) -> None:
    """Run each work and its waste once uncounted, then once counted."""
    scale = msgspec.json.decode(encoded, type=Scale)
    for name in names or WORKS:
        parts = WORKS[name].make(scale)
        runs = {name: parts.work, f"{name} waste": parts.waste, f"{name} base": parts.base}
        for as_name, run in runs.items():
            if run is None:
                continue
            if run is not parts.waste:
                run()
            with _under(library, f"{as_name}/{parts.units}"):
                run()
        parts.close()


@contextmanager
def _under(library: str, name: str) -> Iterator[None]:
    if not library:
        yield
        return
    counter = ctypes.CDLL(library)
    counter.begin()
    yield
    counter.end(name.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
