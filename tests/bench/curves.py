"""Generate the page on speed and its curves from the results of a benchmark.

    python -m tests.bench.curves [.cache/bench/last.json]

The result is saved as docs/explanation/measured.json. speed.md and curves/*.svg beside it are generated from that file only, and
a test compares them. Without an argument, only the page and the curves are generated again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .drawing import Axis, Kind, Line, Point, chart
from .measure import Measured, Row
from .reasons import REASONS
from .scale import ROOT, Scale
from .tables import amount, markdown, peers_of
from .worker import SUBJECTS

FOLDER = ROOT / "docs" / "explanation"
MEASURED = FOLDER / "measured.json"

_METHOD = """\
`make bench` generates its files from a seed, so that they have the same bytes everywhere, and prints this table.
`make bench PEERS=1` installs the peers first.

- **Ratios** are what counts. The speed of a machine varies by a factor of two, so each round measures the work and its limit.
  A ratio is the median of the ratios of all rounds.
- **The limit** is the least that the machine must do for the work: a bare `os.write`, a C loop that reads the file, the system
  calls of a directory walk, a handler that only syncs. It is measured in the same run on the same files.
- **A peer** does the same work on the same file in its own process. The time to start the process does not count. After the
  peer's time, the table shows how many times as long as ours it is, and the target; `!` marks a missed target.
- **Memory** is the peak of a process that does nothing but the work.
- **Instructions** (S14) are counted by valgrind and do not depend on the load of the machine; `make test` checks them.
"""

Of = Literal["ours", "limit"] | str
"""Which time of a row: ours, the limit, or the peer with this name."""


class Series(NamedTuple):
    """The rows of one line: their subject, the words in their work, and which time."""

    name: str
    kind: Kind
    subject: str
    of: Of
    words: str = ""


class Picture(NamedTuple):
    """One chart of the page."""

    title: str
    about: str
    across: Axis
    series: Sequence[Series]


def _megabytes(value: float) -> str:
    return f"{value / 1000:g} GB" if value >= 1000 else f"{value:g} MB"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _time(value: float) -> str:
    """Format a round time for an axis."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 0.999:
            return f"{value * factor:,.0f} {unit}"
    return f"{value * 1e6:g} µs"


_TIME = Axis("time", _time)

PICTURES = {
    "resume": Picture(
        "Resume a session, by size",
        "The time to open a session and build the context for the model, by the size of its file. The Claude Agent SDK reads one "
        "of its own transcripts of the same size.",
        Axis("size of the session", _megabytes),
        [
            Series("Sessile", "ours", "S1", "ours"),
            Series("Sessile, nothing cached", "ours", "S2", "ours"),
            Series("pi", "peer", "S1", "pi"),
            Series("oh-my-pi", "peer", "S1", "oh-my-pi"),
            Series("Claude Agent SDK", "peer", "A2", "claude-sdk"),
            Series("limit: decode what is live", "limit", "S1", "limit"),
            Series("limit: read the file once", "limit", "S2", "limit"),
        ],
    ),
    "append": Picture(
        "Append a message, by number of entries",
        "The time to append a short message without a sync, by the number of entries in the session.",
        Axis("entries in the session", _count),
        [
            Series("Sessile", "ours", "S4", "ours"),
            Series("pi", "peer", "S4", "pi"),
            Series("oh-my-pi", "peer", "S4", "oh-my-pi"),
            Series("limit: os.write", "limit", "S4", "limit"),
        ],
    ),
    "list": Picture(
        "List sessions, by number of sessions",
        "The time to list the newest sessions with their titles, by the number of sessions.",
        Axis("sessions", _count),
        [
            Series("Sessile", "ours", "S7", "ours", "warm"),
            Series("Sessile, nothing cached", "ours", "S7", "ours", "nothing cached"),
            Series("pi", "peer", "S7", "pi", "warm"),
            Series("oh-my-pi", "peer", "S7", "oh-my-pi", "warm"),
            Series("limit: walk and stat", "limit", "S7", "limit", "warm"),
        ],
    ),
}


def load(path: Path = MEASURED) -> Measured:
    """Load a saved result."""
    return msgspec.json.decode(path.read_bytes(), type=Measured)


def pages(measured: Measured) -> dict[Path, str]:
    """Return the text of the page and of the curves, by path."""
    made = {FOLDER / "speed.md": "\n".join(_page(measured)) + "\n"}
    for name, picture in PICTURES.items():
        lines = _lines(measured, name, picture)
        made[FOLDER / "curves" / f"{name}.svg"] = chart(picture.title, picture.about, picture.across, _TIME, lines)
    return made


def _lines(measured: Measured, name: str, picture: Picture) -> list[Line]:
    found = ((series, _points(measured, name, series)) for series in picture.series)
    return [Line(series.name, series.kind, points) for series, points in found if points]


def _points(measured: Measured, curve: str, series: Series) -> list[Point]:
    return sorted(
        (row.at, taken)
        for row in measured.rows
        if row.curve == curve and row.id == series.subject and series.words in row.work and row.at is not None
        if (taken := _taken(row, series.of)) is not None
    )


def _taken(row: Row, of: Of) -> float | None:
    if of == "ours":
        return row.median
    if of == "limit":
        return row.baseline_median
    rival = row.rivals.get(of)
    return None if rival is None else rival.median


# -- the page


def _page(measured: Measured) -> Iterator[str]:
    yield "# Speed\n"
    yield f"Generated by `python -m tests.bench.curves` from [measured.json](measured.json). {_where(measured)}\n"
    yield "## Method\n"
    yield _METHOD
    for name, picture in PICTURES.items():
        yield f"## {picture.title}\n"
        yield f"![{picture.title}](curves/{name}.svg)\n"
        yield f"{picture.about}\n"
        yield from _twin(picture, _lines(measured, name, picture))
    yield "## All figures\n"
    yield markdown(measured.rows) + "\n"
    yield from _skipped(measured.rows)
    yield "## Missed targets\n"
    yield from _missed(measured.rows)


def _where(measured: Measured) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in measured.peers.items()) or "no peers"
    return (
        f"Measured on {measured.day} on {measured.system} with {measured.cores} cores and Python {measured.python}; "
        f"peers: {peers}."
    )


def _twin(picture: Picture, lines: Sequence[Line]) -> Iterator[str]:
    """Yield the chart as a table."""
    places = sorted({x for line in lines for x, _ in line.points})
    yield "| | " + " | ".join(picture.across.write(place) for place in places) + " |"
    yield "|---|" + "---|" * len(places)
    for line in lines:
        times = dict(line.points)
        yield f"| {line.name} | " + " | ".join(amount(times[x]) if x in times else "" for x in places) + " |"
    yield ""


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.failed is not None:
            yield f"- Failed: {row.id}: {row.failed}"
        if row.skipped is not None:
            yield f"- Skipped: {row.work}: {row.skipped}"
        for name in peers_of([row]):
            if (failed := row.rivals[name].failed) is not None:
                yield f"- Failed: {name} at “{row.work}”: {failed}"
    yield ""


def _missed(rows: Sequence[Row]) -> Iterator[str]:
    missed = [row for row in rows if row.verdict == "MISSED"]
    if not missed:
        yield "No target is missed."
    explained: set[str] = set()
    for row in missed:
        yield f"- **{row.id}, {row.work.removeprefix('… ')}**: {'; '.join(_shortfalls(row))}."
        if row.id not in explained:
            yield f"  {REASONS.get(row.id, 'The cause is not known yet.')}"
            explained.add(row.id)


def _shortfalls(row: Row) -> Iterator[str]:
    if not row.within and row.ratio is not None:
        yield f"{row.ratio:.2f} (target: {row.sense} {row.limit:g})"
    if not row.fits and row.memory_mb is not None:
        yield f"{row.memory_mb:.0f} MB (target: {row.memory_limit_mb:g} MB)"
    for name, rival in row.rivals.items():
        if not rival.ok:
            yield f"{rival.ratio:.1f} times as fast as {name} (target: {rival.limit:g})"
    if row.lost:
        yield f"{row.lost} entries were lost"


def main(*arguments: str) -> None:
    """Save the named result, if any, and write the page and the curves."""
    if arguments:
        result = load(Path(arguments[0]))
        if result.sizes_mb != list(Scale("").sizes) or {row.id for row in result.rows} < set(SUBJECTS):
            raise SystemExit(
                "the page needs figures of all subjects with sessions of full size: run `make bench PEERS=1`"
            )
        MEASURED.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    for path, text in pages(load()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:])
