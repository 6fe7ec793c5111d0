"""Memory notes in the workspace of an agent: `<workspace>/memory/YYYY-MM-DD.md`.

Rules: notes are appended to the file of the day in the user's time zone, and are durable when `append_notes` returns. A
flush is appended once, however often it is repeated: its marker is looked up in the files of the day and of the day
before. Existing text is never changed. Missing folders and files are created for their owner only (0700, 0600).
Symbolic links in the workspace are not followed, because they may lead out of it.

What is worth a note is decided in `core.memory_flush`.
"""

from __future__ import annotations

import posixpath
from datetime import tzinfo

from sessile.core.memory_flush import block_to_append, holds_block, memory_file, memory_file_before
from sessile.errors import StorageFull, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import append_text, make_durable


def append_notes(fs: Filesystem, workspace: str, reply: str, *, key: str, now: int, zone: tzinfo) -> str | None:
    """Append a model's notes to the file of the day. Return its path below the workspace; `None` if nothing was appended.

    `key` identifies the flush (`flush_key`). `now`, in milliseconds, is the time of the flush.
    """
    if not block_to_append("", reply, key, now, zone):
        return None
    if _is_kept(fs, posixpath.join(workspace, memory_file_before(now, zone)), key):
        return None
    name = memory_file(now, zone)
    path = posixpath.join(workspace, name)

    def addition(content: bytes) -> bytes:
        return block_to_append(_text(content), reply, key, now, zone).encode()

    try:
        # The workspace belongs to the user and may itself be a link; folders below it may not.
        atomic.make_folders(fs, posixpath.dirname(path), set(), below_links=True)
        return name if append_text(fs, path, addition) else None
    except StorageFull as error:
        error.hint = "free some space; the file is unchanged, and notes will be taken again"
        raise


def _is_kept(fs: Filesystem, path: str, key: str) -> bool:
    """Return whether a file, if it exists, durably holds the notes of a flush."""
    with storage_failures(path, "read earlier notes"):
        try:
            if not atomic.is_plain(fs, path) or not holds_block(_text(atomic.read_all(fs, path)), key):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
    make_durable(fs, path)  # the process that appended them may have died before they were durable
    return True


def _text(content: bytes) -> str:
    """Decode a file, replacing invalid bytes."""
    return content.decode("utf-8", "replace")
