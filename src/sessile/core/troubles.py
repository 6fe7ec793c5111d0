"""The table of what can be wrong with a session file: how bad it is, and what a repair does about it.

A note is nothing to worry about; a warning is something that a reader works around; damage is bytes or content that
cannot be read, by us or by others. A repair mends the damage that it can without inventing anything.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["note", "warning", "damage"]


class Problem(NamedTuple):
    """One thing that is not as it should be; what is unknown, or does not apply, is `None`.

    `excerpt` shows a few characters of the bytes that it is about; what cannot be printed is a dot.
    """

    kind: str
    message: str
    offset: int | None
    length: int | None
    line: int | None
    entry_id: str | None
    severity: Severity
    repairable: bool
    excerpt: str = ""


class Trouble(NamedTuple):
    """One row of the table: `remedy` is what a repair does, `None` if it leaves the thing alone."""

    severity: Severity
    remedy: str | None = None


_TAKEN_OUT = "is taken out; the file as it was is kept"

TROUBLES: dict[str, Trouble] = {
    # what the scanner finds
    "torn_tail": Trouble("damage", _TAKEN_OUT),
    "nul_run": Trouble("damage", _TAKEN_OUT),
    "not_json": Trouble("damage", _TAKEN_OUT),
    "bad_utf8": Trouble("damage", _TAKEN_OUT),
    "bom": Trouble("damage", _TAKEN_OUT),
    "glued": Trouble("damage", "each entry gets a line of its own"),
    "too_long": Trouble("damage"),
    "bad_utf8_inside": Trouble("warning"),
    "not_an_entry": Trouble("warning"),
    "blank": Trouble("note"),
    # the header
    "no_header": Trouble("damage", "a header is made from the file name and the first date"),
    "bad_header": Trouble("damage", "a header is made before it; the line stays"),
    "long_header": Trouble("note"),
    "hidden_header": Trouble("warning"),
    "second_header": Trouble("warning"),
    "unsafe_id": Trouble("warning"),
    "old_version": Trouble("note"),
    "new_version": Trouble("warning"),
    # the tree
    "no_id": Trouble("warning"),
    "duplicate_id": Trouble("warning"),
    "missing_parent": Trouble("warning"),
    "forward_parent": Trouble("warning"),
    "cycle": Trouble("warning"),
    "unreachable": Trouble("warning"),
    # what entries name
    "lost_label": Trouble("note"),
    "lost_cut": Trouble("warning"),
    "unanswered_call": Trouble("note"),
    "uncalled_result": Trouble("note"),
    "missing_blob": Trouble("damage"),
    "damaged_blob": Trouble("damage"),
    # a transcript of Claude Code
    "dangling_parent": Trouble("warning"),
    "parent_before_boundary": Trouble("warning"),
    "boundary_with_parent": Trouble("warning"),
    "double_boundary": Trouble("note"),
    "progress_in_chain": Trouble("note"),
    "repeated_uuid": Trouble("note"),
    "foreign_session": Trouble("warning"),
    "path_mismatch": Trouble("warning"),
    # the file
    "unreadable": Trouble("damage"),
    "draft": Trouble("note"),
    "permissions": Trouble("warning"),
}

UNREADABLE = frozenset({"torn_tail", "nul_run", "not_json", "bad_utf8", "bom", "too_long"})
"""The kinds whose bytes nobody can read."""

REASONS: dict[str, str] = {
    "too_long": "stays: it is longer than what is read, and may be whole",
    "bad_utf8_inside": "stays: the entry can be read, with U+FFFD for the bytes",
    "not_an_entry": "stays: another program may know what it means",
    "missing_parent": "stays: readers take the entry for a root, and no parent is invented",
    "forward_parent": "stays: the order of lines is never changed",
    "cycle": "stays: readers cut the circle at its earliest entry",
    "unreachable": "stays: readers cut the circle at its earliest entry",
    "duplicate_id": "stays: readers take the later entry, and both lines are kept",
    "missing_blob": "stays: look for the blob in the trash or in a backup",
    "damaged_blob": "stays: look for the blob in the trash or in a backup",
    "old_version": "stays: opening the session for writing brings it up to date",
    "draft": "stays: opening the session recovers it",
    "permissions": "stays: change them yourself",
}
"""Why a repair leaves something alone, where that needs saying."""


def problem(
    kind: str,
    message: str,
    *,
    offset: int | None = None,
    length: int | None = None,
    line: int | None = None,
    entry_id: str | None = None,
    excerpt: str = "",
) -> Problem:
    """A problem of a kind that the table knows."""
    severity, remedy = TROUBLES[kind]
    return Problem(kind, message, offset, length, line, entry_id, severity, remedy is not None, excerpt)


def remedy(kind: str) -> str:
    """What a repair does about a kind of problem."""
    return TROUBLES[kind].remedy or REASONS.get(kind, "stays as it is")


def printable(raw: bytes) -> str:
    """Bytes as a person may look at them: nothing in it can drive a terminal."""
    return "".join(c if c.isprintable() else "·" for c in raw.decode("utf-8", "replace"))
