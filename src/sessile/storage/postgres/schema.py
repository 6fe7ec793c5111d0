"""The tables of a database, and the way from an older set of them to this one.

Rules: each part has a list of steps that only ever grows; `schema_version` says how many of them a database has
taken. All missing steps are taken in one transaction under the lock of those rows, so that of many processes that begin
at once one does the work. A database with more steps than are known here belongs to a later release and is refused.

The tables of the catalog: what is known of every session, and the words of their entries.

Rules: they are a cache that all processes share. Whatever is in them is in the journals too, so that they can be dropped at any
time; a catalog that misses one drops the others, too, and makes all of them again.

Texts are compared byte by byte, whatever the database thinks of languages. A passage is one field of one entry: its words in
order, each between two spaces, and the same as a set that an index can hold; a passage with too many of them has no set.

The tables of names and files, and of the leases that stand for their locks.

A name without a file is a folder. The content of a file that is no journal lies in pieces of 256 KB; a piece that is
missing, and the part of a file behind a short piece, are zeros. `unnamed` is when a file lost its last name.

The tables of gateways that share a database: bindings of conversations, and turns that run or wait.

A lane is the order of turns in one session. `last` counts everybody who ever entered it, so that no number is given twice;
`running` is the turn that has it, and none exactly if nobody is in it. A turn of `place` less than others comes before them.

The tables of journals: each line of a session is a row, with its exact bytes.

    start   the offset of the first byte of the line: orders the rows, and places them in the file that they make up
    id      of an entry; the header, the title slot and lines without an id have none
    copy    0, or the start of an entry whose id another one has already: of several the last is meant
    state   the start of the entry on its path that changed the state last (0: none did; null: it has to be folded)
    after   the state behind an entry that changed it
    cut     the start of the earliest entry that the context of this one needs, if nothing else lies between
    gap     what follows the line up to the next one; null is a newline

What is known of a whole journal is in its row of `file`: how many `entries` are no leaf markers; whether some bytes are no
entries (`damaged`), some ids are there more than once (`doubled`), some parents were not there yet (`parentless`). `epoch`
counts how often its place was taken, so that nobody appends to a journal that was just replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors

from sessile.errors import Unsupported, UnsupportedVersion
from sessile.storage.catalog_rows import COUNTS
from sessile.storage.postgres.database import Cursor, Database

# --- schema catalog

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


# --- schema files

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


# --- schema gateway

GATEWAY_TABLES: tuple[str, ...] = (
    "CREATE TABLE bindings (agent text PRIMARY KEY, revision bigint NOT NULL)",
    """
    CREATE TABLE binding (
        agent text NOT NULL,
        key bytea NOT NULL,
        body bytea,                    -- none: it was removed
        revision bigint NOT NULL,      -- of the agent's bindings when it was changed last
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
        node text NOT NULL,            -- of the gateway that looks after it
        conversation bytea NOT NULL,
        name bytea NOT NULL,           -- tells it from every other turn of the conversation
        body bytea,                    -- what another gateway has to know to run it; none: nothing is to be run
        stopped text,                  -- why somebody wants it to end
        PRIMARY KEY (session, number),
        UNIQUE (conversation, name)
    )
    """,
    "CREATE INDEX turn_by_node ON turn (node)",
)


# --- schema journals

# Flags of our own above those of the kinds. These numbers are stored, and in an index: never change one.
NO_ENTRY = 1 << 16
HASHED = 1 << 17  # the id or the parent is a hash: the text is in the line
HEADER = 1 << 18
SLOT = 1 << 19
KIND_FLAGS = (1 << 14) - 1
MARKED = NO_ENTRY | 2 | 16 | 32  # no entries, leaf markers, labels, titles: few, and asked for

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


# --- schema

Steps = tuple[tuple[str, ...], ...]

PARTS: tuple[tuple[str, Steps], ...] = (
    ("files", (FILE_TABLES,)),
    ("journals", (JOURNAL_TABLES,)),
    ("catalog", (CATALOG_TABLES,)),
    ("gateway", (GATEWAY_TABLES,)),
)
"""In the order in which they are made. A further step is one more member of a part's tuple, never a change of one."""

_ENCODINGS = ("UTF8", "UTF-8")
_LOOK = "SELECT current_setting('server_encoding'), EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s)"
# Two processes may find that something is missing and make it at the same moment: PostgreSQL does not keep them apart.
# How far the slower one came says which error it gets; a table also makes a type of its name, a "duplicate object".
_MADE_AT_ONCE = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateSchema, errors.DuplicateObject)


def migrate(database: Database, parts: Sequence[tuple[str, Steps]] = PARTS) -> None:
    """Make the tables that are missing; one query if there is nothing to do."""
    if _behind(_versions(database), parts, database.place):
        _begin(database, parts)
        database.transact(lambda cursor: _catch_up(cursor, parts, database.place), again=True)


def _versions(database: Database) -> dict[str, int]:
    """How many steps of each part the database has taken."""
    try:
        return dict(database.query("SELECT part, version FROM schema_version", again=True))
    except errors.UndefinedTable:
        return {}


def _behind(versions: dict[str, int], parts: Sequence[tuple[str, Steps]], place: str) -> bool:
    """Whether steps are missing. A database that is ahead is refused."""
    known = {part: len(steps) for part, steps in parts}
    for part, version in versions.items():
        if version > known.get(part, 0):
            message = f"the database has version {version} of its {part}, this release knows {known.get(part, 0)}"
            raise UnsupportedVersion(
                message, path=place, hint="use the release of Sessile that made it, or a later one"
            )
    return any(versions.get(part, 0) < version for part, version in known.items())


def _begin(database: Database, parts: Sequence[tuple[str, Steps]]) -> None:
    """Make the schema and the rows that are locked while steps are taken."""
    (encoding, there), *_ = database.query(_LOOK, (database.schema,), again=True)
    if encoding.upper() not in _ENCODINGS:
        hint = "make one with: createdb --encoding=UTF8 --template=template0 NAME"
        raise Unsupported(f"the database keeps its texts as {encoding}", path=database.place, hint=hint)
    if not there:  # who may not make schemas may still use one
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
    """Take the steps that are missing, unless somebody else has while we waited for the rows."""
    cursor.execute("SELECT part, version FROM schema_version ORDER BY part FOR UPDATE")
    versions: dict[str, int] = dict(cursor.fetchall())
    if not _behind(versions, parts, place):
        return
    for part, steps in parts:
        for step in steps[versions[part] :]:
            if step:
                cursor.execute(";".join(step), binary=False)  # as text many statements can go at once
        cursor.execute("UPDATE schema_version SET version = %s WHERE part = %s", (len(steps), part))
