"""The tables of names and files, and of the leases that stand for their locks.

A name without a file is a folder. The content of a file that is no journal lies in pieces of 256 KB; a piece that is
missing, and the part of a file behind a short piece, are zeros. `unnamed` is when a file lost its last name.
"""

from __future__ import annotations

TABLES: tuple[str, ...] = (
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
