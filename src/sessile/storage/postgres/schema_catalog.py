"""The tables of the catalog: what is known of every session, and the words of their entries.

Rules: they are a cache that all processes share. Whatever is in them is in the journals too, so that they can be dropped at any
time; a catalog that misses one drops the others, too, and makes all of them again.

Texts are compared byte by byte, whatever the database thinks of languages. A passage is one field of one entry: its words in
order, each between two spaces, and the same as a set that an index can hold; a passage with too many of them has no set.
"""

from __future__ import annotations

from sessile.storage.catalog_rows import COUNTS

_WHOLE, _TEXT, _BYTES = "bigint", 'text COLLATE "C"', "bytea"
_COUNTED = {"roles": _BYTES, "models": _BYTES, "cost": "double precision"}

FILE = {"path": _BYTES, "size": _WHOLE, "mtime_ns": _WHOLE, "inode": _WHOLE, "sub_agent": "boolean"}
"""The file as it was when the row was made; without a size it is looked at again every time."""

GLANCE = {
    "format": _TEXT,
    "problem": _TEXT,
    "id": _TEXT,
    "cwd": _TEXT,
    "title": _TEXT,
    "created": _TEXT,
    "parent": _TEXT,
    "first_text": _TEXT,
    "last_role": _TEXT,
    "last_status": _TEXT,
    "header_title": _TEXT,
    "header_at": _WHOLE,
    "version": _WHOLE,
    "origin": _BYTES,
    "started": _WHOLE,  # `created` as a moment
    "folded_title": _TEXT,
    "folded_text": _TEXT,
}
"""What the ends of a file say."""

PLACE = {"covered": _WHOLE, "fit": _BYTES, "state": _BYTES, "indexed": _WHOLE, "passages": _WHOLE}
"""How far its lines were counted and indexed, and what is needed to go on."""

COUNTED = {name: _COUNTED.get(name, _WHOLE) for name in COUNTS} | {"spending": _BYTES}
"""What its lines say."""

_KEPT = {"covered", "indexed", "passages"}  # are zero of a session that nobody has read
_REQUIRED = {"path", "mtime_ns", "inode", "sub_agent"}


def _columns() -> str:
    columns = FILE | GLANCE | PLACE | COUNTED
    rules = dict.fromkeys(_KEPT, " NOT NULL DEFAULT 0") | dict.fromkeys(_REQUIRED, " NOT NULL")
    return ", ".join(f"{name} {kind}{rules.get(name, '')}" for name, kind in columns.items())


GONE = ("DROP TABLE IF EXISTS catalog, passage", "DROP SEQUENCE IF EXISTS catalog_number")

TABLES: tuple[str, ...] = (
    "CREATE SEQUENCE catalog_number",
    f"""CREATE TABLE catalog (
        number bigint PRIMARY KEY DEFAULT nextval('catalog_number'), {_columns()},
        counted boolean NOT NULL DEFAULT false, searchable boolean NOT NULL DEFAULT false,
        revision bigint NOT NULL DEFAULT 0,
        claimed bigint NOT NULL DEFAULT 0)""",
    "CREATE UNIQUE INDEX catalog_files ON catalog (path)",
    "CREATE INDEX catalog_newest ON catalog (mtime_ns)",
    "CREATE INDEX catalog_ids ON catalog (id)",
    "CREATE INDEX catalog_origins ON catalog (origin) WHERE origin IS NOT NULL",
    """CREATE TABLE passage (
        number bigint NOT NULL, start bigint NOT NULL, field bigint NOT NULL,
        length bigint NOT NULL, words text COLLATE "C" NOT NULL, vector tsvector)""",
    "CREATE INDEX passage_places ON passage (number, start)",
    "CREATE INDEX passage_words ON passage USING gin (vector)",
    "CREATE INDEX passage_wordy ON passage (number) WHERE vector IS NULL",
)
