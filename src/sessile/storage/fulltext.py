"""Words of sessions in the catalog: FTS5 over every branch, one row for each entry that says something.

    texts    text, thinking and tool input as columns of their own, contentless; the row's number is session and offset
    titles   trigrams of titles, so that a part of a word is enough
    gone     sessions whose words are still in `texts`: SQLite 3.40 cannot take them out of a contentless table

Rules: tool results are not indexed: `scan` finds them. When more words belong to sessions that are gone than to others, all
are written anew. How the index is asked is in `catalog_words`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sessile.core.passages import INDEXED, passages
from sessile.core.words import fold, indexed
from sessile.storage.catalog_rows import storable

TEXTS = (
    f"CREATE VIRTUAL TABLE texts USING fts5({', '.join(INDEXED)}, content = '',"
    ' tokenize = "unicode61 remove_diacritics 2")',
    # Words are gathered in memory and written at the end of a transaction; of the megabyte that is usual many parts are made
    # and merged again.
    f"INSERT INTO texts (texts, rank) VALUES ('hashsize', {8 << 20})",
    "CREATE VIRTUAL TABLE titles USING fts5(title, tokenize = 'trigram')",
    "CREATE TABLE gone (number INTEGER PRIMARY KEY, passages INTEGER NOT NULL)",
)

OFFSET_BITS = 40  # a terabyte; leaves room for eight million sessions
OFFSETS = (1 << OFFSET_BITS) - 1

Words = tuple[int, str, str, str]


def words_of(number: int, offset: int, entry: dict[str, Any]) -> list[Words]:
    """The row of an entry, if it says something."""
    told = passages(entry).get
    text, thinking, tool_input = told("text", ""), told("thinking", ""), told("tool_input", "")
    if offset > OFFSETS or not (text or thinking or tool_input):
        return []
    return [(number << OFFSET_BITS | offset, indexed(text), indexed(thinking), indexed(tool_input))]


def add(database: sqlite3.Connection, rows: Sequence[Words]) -> None:
    """Index some entries."""
    database.executemany("INSERT INTO texts (rowid, text, thinking, tool_input) VALUES (?, ?, ?, ?)", rows)


def retitle(database: sqlite3.Connection, number: int, title: str | None) -> None:
    """Index the title that a session has now."""
    database.execute("DELETE FROM titles WHERE rowid = ?", (number,))
    if title is not None:
        database.execute("INSERT INTO titles (rowid, title) VALUES (?, ?)", (number, storable(fold(title))))


def forget(database: sqlite3.Connection, number: int) -> None:
    """A session is gone, or was rewritten."""
    database.execute(
        "INSERT INTO gone SELECT number, passages FROM sessions WHERE number = ? AND passages > 0", (number,)
    )
    database.execute("DELETE FROM titles WHERE rowid = ?", (number,))


def renew_if_stale(database: sqlite3.Connection) -> None:
    """Begin anew when most words belong to sessions that are gone."""
    (stale,) = database.execute("SELECT coalesce(sum(passages), 0) FROM gone").fetchone()
    (live,) = database.execute("SELECT coalesce(sum(passages), 0) FROM sessions").fetchone()
    if stale > max(live, 1000):
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
        database.execute("DELETE FROM gone")
        database.execute("UPDATE sessions SET indexed = 0, searchable = 0, passages = 0")
        database.execute("COMMIT")
