"""The tables of a database, and their migration.

Rules: each part has a list of steps that only grows; `schema_version` is the number of steps that a database has taken. All
missing steps are taken in one transaction, with those rows locked, so that only one of many processes that start together does
the work. A database with more steps than are known here belongs to a later release and is refused.

Files: a name without a file is a folder. The content of a file that is not a journal is stored in pieces of 256 KB; a missing
piece, and the part after the end of a short one, are zeros. `unnamed` is when a file lost its last name. Leases are the locks of
files.

Journals: each line of a session is a row of `entry`, with its exact bytes.

    start   the offset of the first byte of the line in the file; orders the rows
    id      of an entry; the header, the title slot and lines without an id have none
    copy    0, or the start of an entry whose id exists already; the last one counts
    state   the start of the last entry on its path that changed the state (0: none did; NULL: it must be folded)
    after   the state after an entry that changed it
    cut     the start of the earliest entry that the context of this one needs, if the path is contiguous
    gap     the bytes between the line and the next one; NULL is a newline

The row of `file` has facts about the whole journal: the number of `entries` without leaf markers, and whether there are bytes
that are not entries (`damaged`), ids that occur more than once (`doubled`) or parents that were missing (`parentless`). `epoch`
counts how often it was replaced, so that no process appends to a journal that was just replaced.

Catalog: a cache that all processes share, with facts about every session and the words of their entries. Everything in it is in
the journals too, so the tables can be dropped at any time; if one is missing, all of them are made again. Texts are compared
byte by byte, whatever the locale of the database. A passage is one field of one entry: its words in order, each between two
spaces, and the same words as a set for an index; a passage with too many words has no set.

Gateway: the bindings of conversations, and the turns that run or wait. A lane is the order of turns in one session. `last` is
the highest number given so far, so that no number is given twice; `running` is the turn that runs, and NULL if the lane is
empty. Turns run in order of `place`.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors

from sessile.errors import Unsupported, UnsupportedVersion
from sessile.storage.catalog_rows import COUNTS
from sessile.storage.postgres.database import Cursor, Database

# -- catalog

_WHOLE, _TEXT, _BYTES = "bigint", 'text COLLATE "C"', "bytea"
_COUNTED = {"roles": _BYTES, "models": _BYTES, "cost": "double precision"}

FILE = {"path": _BYTES, "size": _WHOLE, "mtime_ns": _WHOLE, "inode": _WHOLE, "sub_agent": "boolean"}
"""The file when the row was made; without a size it is looked at again every time."""

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
    "started": _WHOLE,  # `created` as a number
    "folded_title": _TEXT,
    "folded_text": _TEXT,
}
"""From the ends of the file."""

PLACE = {"covered": _WHOLE, "fit": _BYTES, "state": _BYTES, "indexed": _WHOLE, "passages": _WHOLE}
"""How far its lines were counted and indexed, and the state to continue from."""

COUNTED = {name: _COUNTED.get(name, _WHOLE) for name in COUNTS} | {"spending": _BYTES}
"""From all its lines."""

_ZERO_AT_FIRST = {"covered", "indexed", "passages"}
_REQUIRED = {"path", "mtime_ns", "inode", "sub_agent"}


def _columns() -> str:
    columns = FILE | GLANCE | PLACE | COUNTED
    rules = dict.fromkeys(_ZERO_AT_FIRST, " NOT NULL DEFAULT 0") | dict.fromkeys(_REQUIRED, " NOT NULL")
    return ", ".join(f"{name} {kind}{rules.get(name, '')}" for name, kind in columns.items())


DROP_CATALOG = ("DROP TABLE IF EXISTS catalog, passage", "DROP SEQUENCE IF EXISTS catalog_number")

CATALOG_TABLES: tuple[str, ...] = (
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
# Short summaries, errors and tags are indexed too, so every session is indexed again.
_REINDEX = (
    "DELETE FROM passage",
    "UPDATE catalog SET indexed = 0, passages = 0, searchable = false, revision = revision + 1",
)


# -- names, files and leases

FILE_TABLES: tuple[str, ...] = (
    "CREATE SEQUENCE file_number",
    """CREATE TABLE file (
        id bigint PRIMARY KEY DEFAULT nextval('file_number'),
        journal boolean NOT NULL,
        size bigint NOT NULL,
        modified bigint NOT NULL,
        links bigint NOT NULL,
        rows bigint NOT NULL DEFAULT 0,
        damaged boolean NOT NULL DEFAULT false,
        unnamed bigint)""",
    "CREATE INDEX file_unnamed ON file (unnamed) WHERE links = 0",
    "CREATE TABLE name (folder bytea NOT NULL, base bytea NOT NULL, file bigint, PRIMARY KEY (folder, base))",
    "INSERT INTO name (folder, base) VALUES ('', ''), ('/', 'sessile:postgresql')",
    "CREATE TABLE piece (file bigint NOT NULL, number bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (file, number))",
    """CREATE TABLE lease (
        name text PRIMARY KEY, holder text NOT NULL, token bigint NOT NULL, until timestamptz NOT NULL)""",
)


# -- gateway

GATEWAY_TABLES: tuple[str, ...] = (
    "CREATE TABLE bindings (agent text PRIMARY KEY, revision bigint NOT NULL)",
    """
    CREATE TABLE binding (
        agent text NOT NULL,
        key bytea NOT NULL,
        body bytea,                    -- NULL: it was removed
        revision bigint NOT NULL,      -- of the agent's bindings at the last change
        stamp bytea NOT NULL,          -- of that change
        PRIMARY KEY (agent, key)
    )
    """,
    "CREATE INDEX binding_by_revision ON binding (agent, revision)",
    "CREATE TABLE lane (session text PRIMARY KEY, last bigint NOT NULL, running bigint)",
    """
    CREATE TABLE turn (
        session text NOT NULL,
        number bigint NOT NULL,
        place bigint NOT NULL,
        node text NOT NULL,            -- the gateway that owns it
        conversation bytea NOT NULL,
        name bytea NOT NULL,           -- unique in the conversation
        body bytea,                    -- what another gateway needs to run it; NULL: there is nothing to run
        stopped text,                  -- why it should stop
        PRIMARY KEY (session, number),
        UNIQUE (conversation, name)
    )
    """,
    "CREATE INDEX turn_by_node ON turn (node)",
)


# -- journals

# These flags use the bits above those of the entry kinds. They are stored, and used in an index: never change one.
NO_ENTRY = 1 << 16
HASHED = 1 << 17  # the id or the parent is stored as a hash; the text is in the line
HEADER = 1 << 18
SLOT = 1 << 19
KIND_FLAGS = (1 << 14) - 1
MARKED = NO_ENTRY | 2 | 16 | 32  # lines that are not entries, leaf markers, labels, titles: few, and often looked up

JOURNAL_TABLES: tuple[str, ...] = (
    "ALTER TABLE file ADD COLUMN epoch bigint NOT NULL DEFAULT 0",
    "ALTER TABLE file ADD COLUMN entries bigint NOT NULL DEFAULT 0",
    "ALTER TABLE file ADD COLUMN doubled boolean NOT NULL DEFAULT false",
    "ALTER TABLE file ADD COLUMN parentless boolean NOT NULL DEFAULT false",
    """
    CREATE TABLE entry (
        file bigint NOT NULL,
        start bigint NOT NULL,
        id bytea,
        copy bigint NOT NULL,
        parent bytea,
        flags integer NOT NULL,
        state bigint,
        cut bigint NOT NULL,
        after bytea,
        body bytea NOT NULL,
        gap bytea,
        PRIMARY KEY (file, start)
    )
    """,
    "CREATE UNIQUE INDEX entry_by_id ON entry (file, id, copy)",
    f"CREATE INDEX entry_marked ON entry (file, start) WHERE flags & {MARKED} <> 0",
)


# -- migration

Steps = tuple[tuple[str, ...], ...]

PARTS: tuple[tuple[str, Steps], ...] = (
    ("files", (FILE_TABLES,)),
    ("journals", (JOURNAL_TABLES,)),
    ("catalog", (CATALOG_TABLES, _REINDEX)),
    ("gateway", (GATEWAY_TABLES,)),
)
"""The parts in the order in which they are made. Add a step to a part's tuple; never change an existing one."""

_ENCODINGS = ("UTF8", "UTF-8")
_LOOK = "SELECT current_setting('server_encoding'), EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s)"
# Two processes may create the same object at the same moment: IF NOT EXISTS of PostgreSQL does not prevent that.
# The error depends on how far the slower one came; a table also creates a type of its name, a "duplicate object".
_MADE_AT_ONCE = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateSchema, errors.DuplicateObject)


def migrate(database: Database, parts: Sequence[tuple[str, Steps]] = PARTS) -> None:
    """Create missing tables and migrate old ones; one query if there is nothing to do."""
    if _behind(_versions(database), parts, database.place):
        _begin(database, parts)
        database.transact(lambda cursor: _catch_up(cursor, parts, database.place), again=True)


def _versions(database: Database) -> dict[str, int]:
    """Return the number of steps that the database has taken, by part."""
    try:
        return dict(database.query("SELECT part, version FROM schema_version", again=True))
    except errors.UndefinedTable:
        return {}


def _behind(versions: dict[str, int], parts: Sequence[tuple[str, Steps]], place: str) -> bool:
    """Return whether steps are missing; raise if the database has unknown steps."""
    known = {part: len(steps) for part, steps in parts}
    for part, version in versions.items():
        if version > known.get(part, 0):
            latest = known.get(part, 0)
            message = f"the database has schema version {version} of {part}; this release supports {latest}"
            raise UnsupportedVersion(
                message, path=place, hint="use the release of Sessile that created it, or a later one"
            )
    return any(versions.get(part, 0) < version for part, version in known.items())


def _begin(database: Database, parts: Sequence[tuple[str, Steps]]) -> None:
    """Create the schema, and the rows that are locked during a migration."""
    (encoding, there), *_ = database.query(_LOOK, (database.schema,), again=True)
    if encoding.upper() not in _ENCODINGS:
        hint = "create a database with `createdb --encoding=UTF8 --template=template0 NAME`"
        raise Unsupported(f"database encoding {encoding} is not supported", path=database.place, hint=hint)
    if not there:  # a user without the right to create schemas can use an existing one
        _make(database, f"CREATE SCHEMA IF NOT EXISTS {database.schema}")
    _make(database, "CREATE TABLE IF NOT EXISTS schema_version (part text PRIMARY KEY, version bigint NOT NULL)")
    names = [part for part, _ in parts]
    sql = "INSERT INTO schema_version SELECT part, 0 FROM unnest(%s::text[]) AS part ON CONFLICT DO NOTHING"
    database.query(sql, (names,), again=True)


def _make(database: Database, statement: str) -> None:
    try:
        database.query(statement, again=True)
    except _MADE_AT_ONCE:
        database.query(statement, again=True)


def _catch_up(cursor: Cursor, parts: Sequence[tuple[str, Steps]], place: str) -> None:
    """Take the missing steps, unless another process has while we waited for the lock."""
    cursor.execute("SELECT part, version FROM schema_version ORDER BY part FOR UPDATE")
    versions: dict[str, int] = dict(cursor.fetchall())
    if not _behind(versions, parts, place):
        return
    for part, steps in parts:
        for step in steps[versions[part] :]:
            if step:
                cursor.execute(";".join(step), binary=False)  # several statements at once need the text format
        cursor.execute("UPDATE schema_version SET version = %s WHERE part = %s", (len(steps), part))
