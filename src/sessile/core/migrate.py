"""Migrate older versions of the native format to version 3, in memory.

Version 1 had no ids: entries are chained in file order, and the `firstKeptEntryIndex` of a compaction (which counts the header
as 0) becomes `firstKeptEntryId`. Version 2 called custom messages `hookMessage`. Ids are derived from the session id and the
record number, so that reading a file twice returns the same ids.
"""

from __future__ import annotations

import math
from typing import Any

from sessile.core.ids import derived_entry_id

VERSION = 3


def version_of(header: dict[str, Any]) -> int:
    """Return the version of a header; the default is 1. A version that is not a number counts as current."""
    version = header.get("version", 1)
    if version is None:
        return 1
    return int(version) if isinstance(version, int | float) and math.isfinite(version) else VERSION


def migrate_session_entries(entries: list[dict[str, Any]]) -> bool:
    """Migrate records, including the header, to version 3 in place; return whether anything changed."""
    headers = [record for record in entries if record.get("type") == "session"]
    version = version_of(headers[0]) if headers else 1
    if version >= VERSION or not entries:
        return False
    if version < 2:
        _chain(entries, str(headers[0].get("id", "")) if headers else "")
    for record in entries:
        if record.get("type") == "session":
            record["version"] = VERSION
        elif record.get("type") == "message":
            message = record.get("message")
            if isinstance(message, dict) and message.get("role") == "hookMessage":
                message["role"] = "custom"
    return True


def _chain(records: list[dict[str, Any]], session_id: str) -> None:
    parent: str | None = None
    taken: set[str] = set()
    for number, record in enumerate(records):
        if record.get("type") == "session":
            continue
        entry_id = derived_entry_id(session_id, number)
        while entry_id in taken:
            entry_id = derived_entry_id(session_id, number, entry_id)
        taken.add(entry_id)
        record["id"] = entry_id
        record["parentId"] = parent
        parent = entry_id
        if record.get("type") == "compaction" and "firstKeptEntryIndex" in record:
            _link_first_kept(record, records, number)


def _link_first_kept(compaction: dict[str, Any], records: list[dict[str, Any]], number: int) -> None:
    index = compaction["firstKeptEntryIndex"]
    if not isinstance(index, int | float) or isinstance(index, bool):
        return
    del compaction["firstKeptEntryIndex"]
    # A record further down has no id yet and stays unlinked, as in pi.
    if 0 <= index <= number and index == int(index) and records[int(index)].get("type") != "session":
        compaction["firstKeptEntryId"] = records[int(index)]["id"]
