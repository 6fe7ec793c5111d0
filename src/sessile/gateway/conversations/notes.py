"""The notes of a memory flush, kept in the workspace of an agent: `<workspace>/memory/YYYY-MM-DD.md`.

Rules: notes are appended to the file of the day in the user's time zone, and are durable when `append_notes` returns. The same
flush is appended once, however often it is repeated: its mark is looked for in the file of the day and in that of the day before.
Nothing that is in a file is ever changed. A folder that is missing is made for its owner alone (0700), and so is a file (0600).
Symbolic links in the workspace are not followed, because they may lead out of it.

What is worth a note, and whether it may be kept, is decided elsewhere (`core.memory_flush`).
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
    """Append a model's notes to the file of the day; gives its path below the workspace, or `None` if nothing was appended.

    `key` is that of the flush (`flush_key`). `now`, in milliseconds, is the time at which it was decided upon.
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
        # The workspace is a person's folder, and may itself be a link; what is below it may not.
        atomic.make_folders(fs, posixpath.dirname(path), set(), below_links=True)
        return name if append_text(fs, path, addition) else None
    except StorageFull as error:
        error.hint = "free some space; nothing of the file is lost, and the notes are asked for again"
        raise


def _is_kept(fs: Filesystem, path: str, key: str) -> bool:
    """Whether a file that may be missing holds the notes of a flush, durably."""
    with storage_failures(path, "read earlier notes"):
        try:
            if not atomic.is_plain(fs, path) or not holds_block(_text(atomic.read_all(fs, path)), key):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
    make_durable(fs, path)  # whoever appended them may have died before they were
    return True


def _text(content: bytes) -> str:
    """What a file says, whatever somebody else has written into it."""
    return content.decode("utf-8", "replace")
