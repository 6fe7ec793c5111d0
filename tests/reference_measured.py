"""The table of README.md: figures compared with other systems, from docs/explanation/measured.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.curves import MEASURED, load
from bench.measure import Measured, Rival, Row
from bench.tables import amount, peers_of

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"

NAMES = {
    "claude-sdk": "Claude Agent SDK",
    "openai": "OpenAI Agents `SQLiteSession`",
    "langgraph": "LangGraph `SqliteSaver`",
}
PLAIN = {  # the name of a row, by its subject and the start of its work
    ("S1", "resume"): "resume, with the context",
    ("S4", "… append_message, the same texts"): "append a message",
    ("S5", "… append_message"): "append a message, safe from a power cut",
}


def readme(path: Path = MEASURED) -> str:
    """Return the expected README.md."""
    text = README.read_text()
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark and end, "README.md has no place for the table"
    table = "\n".join(_table(load(path))) if path.exists() else "Not measured yet: `make bench PEERS=1`."
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _table(measured: Measured) -> Iterator[str]:
    rows = list(chosen(measured.rows))
    peers = peers_of(rows)
    yield f"| | Sessile | {' | '.join(NAMES.get(name, name) for name in peers)} |"
    yield "|---" * (len(peers) + 2) + "|"
    for row in rows:
        assert row.median is not None
        best = min([row.median, *(rival.median for rival in row.rivals.values() if rival.median is not None)])
        theirs = " | ".join(_cell(row, row.rivals.get(name), best) for name in peers)
        yield f"| {_name(row)} | {_figure(row, row.median, best)} | {theirs} |"
    versions = ", ".join(f"{NAMES.get(name, name)} {measured.peers[name]}" for name in peers if name in measured.peers)
    yield (
        f"\nMeasured on {measured.day} with {versions}, on {measured.cores} cores, on the same files in the same run. The best "
        "of a row is bold; an empty cell was not measured. "
        "[All figures, with the limits of the machine](docs/explanation/speed.md)."
    )


def chosen(rows: Sequence[Row]) -> Iterator[Row]:
    """Return the rows with peers; for the same work at several sizes, only the largest."""
    compared = [row for row in rows if row.median is not None and any(rival.median for rival in row.rivals.values())]
    for row in compared:
        larger = [other for other in compared if (other.id, other.curve) == (row.id, row.curve) and row.curve]
        if not larger or row.at == max(other.at or 0 for other in larger):
            yield row


def _name(row: Row) -> str:
    plain = next(
        (name for (subject, start), name in PLAIN.items() if row.id == subject and row.work.startswith(start)), None
    )
    if plain is None:
        return row.work.removeprefix("… ")
    return plain if row.at is None else f"{plain}, {row.at:,.0f} MB"


def _cell(row: Row, rival: Rival | None, best: float) -> str:
    if rival is None:
        return ""
    return "failed" if rival.median is None else _figure(row, rival.median, best)


def _figure(row: Row, value: float, best: float) -> str:
    """Format a time or a size; the best is bold."""
    text = amount(value, row.unit)
    return f"**{text}**" if value == best else text
