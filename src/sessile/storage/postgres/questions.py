"""What a reader asks the database: one statement each.

A question is about the file `now`. Whatever it is, `asked` makes a statement of it that also tells how the journal is at that
moment, and which file its name means.
"""

from __future__ import annotations

from sessile.core import kinds
from sessile.storage.postgres.ahead import MOST
from sessile.storage.postgres.schema_journals import HASHED, HEADER, MARKED, SLOT

ROWS_AT_ONCE = 1024
_STEPS = 1024  # towards the root, in one query
_STRETCH = 4096  # rows that the first query of a walk brings along at most

ROW = (
    f"e.start, e.id, e.parent, e.flags, octet_length(e.body), CASE WHEN e.flags & {HASHED} <> 0 THEN e.body END AS told"
)
OPEN = f"""
    SELECT f.id, f.journal, f.size, f.epoch, h.body, t.body, z.gap, e.*, s.after
    FROM name n JOIN file f ON f.id = n.file
    LEFT JOIN LATERAL (
        SELECT start, body FROM entry WHERE file = f.id AND flags & {HEADER} <> 0 ORDER BY start LIMIT 1) h ON true
    LEFT JOIN LATERAL (
        SELECT body FROM entry WHERE file = f.id AND start < h.start AND flags & {SLOT} <> 0
        ORDER BY start DESC LIMIT 1) t ON true
    LEFT JOIN LATERAL (SELECT gap FROM entry WHERE file = f.id ORDER BY start DESC LIMIT 1) z ON true
    LEFT JOIN LATERAL (
        SELECT {ROW}, e.state, e.cut FROM entry e WHERE e.file = f.id AND e.id IS NOT NULL
        ORDER BY e.start DESC LIMIT 1) e ON true
    LEFT JOIN entry s ON s.file = f.id AND s.start = e.state
    WHERE n.folder = %b AND n.base = %b"""
_ASK = """
    WITH now AS (
        SELECT f.id, f.size, f.entries, f.damaged, f.doubled, f.parentless,
            (SELECT n.file FROM name n WHERE n.folder = %b AND n.base = %b) AS named
        FROM file f WHERE f.id = %b)
    SELECT now.*, q.* FROM now LEFT JOIN LATERAL (SELECT true AS found, a.* FROM ({}) a) q ON true"""
NOTHING_ELSE = "SELECT 1"
LAST = f"""
    SELECT e.*, s.after FROM (
        SELECT {ROW}, e.state, e.cut FROM entry e WHERE e.file = now.id AND e.id IS NOT NULL
        ORDER BY e.start DESC LIMIT 1) e
    LEFT JOIN entry s ON s.file = now.id AND s.start = e.state"""
FIND = f"SELECT {ROW} FROM entry e WHERE e.file = now.id AND e.id = %b ORDER BY e.copy DESC LIMIT 1"
BODIES = "SELECT e.start, e.id, e.body FROM entry e WHERE e.file = now.id AND e.start = ANY(%b::bigint[])"
WINDOW = """
    SELECT e.start, e.id, e.body FROM entry e
    WHERE e.file = now.id AND e.start >= %b AND e.start < %b AND e.id IS NOT NULL"""
MOVED = """
    SELECT w.start, w.id, e.body FROM unnest(%b::bigint[], %b::bytea[]) AS w (start, id) CROSS JOIN LATERAL (
        SELECT e.body FROM entry e WHERE e.file = now.id AND e.id = w.id ORDER BY e.copy DESC LIMIT 1) e"""
ROWS = f"""
    SELECT {ROW} FROM entry e WHERE e.file = now.id AND e.start >= %b AND e.start < %b AND e.id IS NOT NULL
    ORDER BY e.start LIMIT {ROWS_AT_ONCE} OFFSET %b"""
STATE = """
    SELECT e.state, s.after FROM entry e LEFT JOIN entry s ON s.file = e.file AND s.start = e.state
    WHERE e.file = now.id AND e.id = %b ORDER BY e.copy DESC LIMIT 1"""
STRAIGHT = f"""
    SELECT leaf.state, s.after, e.*
    FROM (
        SELECT l.start, l.state, l.cut FROM entry l WHERE l.file = now.id AND l.id = %b ORDER BY l.copy DESC LIMIT 1) leaf
    LEFT JOIN entry s ON s.file = now.id AND s.start = leaf.state
    CROSS JOIN LATERAL (
        SELECT e.body, {ROW} FROM entry e WHERE e.file = now.id AND e.id IS NOT NULL
            AND e.start <= leaf.start AND e.start >= greatest(leaf.cut, leaf.start - {MOST})
        ORDER BY e.start DESC LIMIT {_STRETCH}) e"""
WALK = f"""
    WITH RECURSIVE path AS (
        (SELECT 1 AS step, {ROW} FROM entry e WHERE e.file = now.id AND e.id = %b ORDER BY e.copy DESC LIMIT 1)
        UNION ALL
        SELECT path.step + 1, e.* FROM path, LATERAL (
            SELECT {ROW} FROM entry e WHERE e.file = now.id AND e.id = path.parent ORDER BY e.copy DESC LIMIT 1) e
        WHERE path.step < {_STEPS})
    SELECT start, id, parent, flags, octet_length, told FROM path ORDER BY step"""
_MARKED = f"FROM entry e WHERE e.file = now.id AND e.flags & {MARKED} <> 0"
TITLE = f"SELECT {ROW} {_MARKED} AND e.flags & {kinds.TITLE} <> 0 ORDER BY e.start DESC LIMIT 1"
LABELS = f"SELECT e.body {_MARKED} AND e.flags & {kinds.LABEL} <> 0 ORDER BY e.start"
BEFORE = f"""
    SELECT {ROW} FROM entry e
    WHERE e.file = now.id AND e.start < %b AND e.id IS NOT NULL ORDER BY e.start DESC LIMIT 1"""


def asked(question: str) -> str:
    """The statement that asks a question; it has rows for what the answer has, or one if the answer is empty."""
    return _ASK.format(question)
