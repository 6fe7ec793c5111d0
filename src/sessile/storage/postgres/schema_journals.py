"""The tables of journals: each line of a session is a row, with its exact bytes.

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

# Flags of our own above those of the kinds. These numbers are stored, and in an index: never change one.
NO_ENTRY = 1 << 16
HASHED = 1 << 17  # the id or the parent is a hash: the text is in the line
HEADER = 1 << 18
SLOT = 1 << 19
KIND_FLAGS = (1 << 14) - 1
MARKED = NO_ENTRY | 2 | 16 | 32  # no entries, leaf markers, labels, titles: few, and asked for

TABLES: tuple[str, ...] = (
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
