"""The lines of one session, read on from where a catalog left them: counted, and handed out for their words.

    counting = Counting(reading, index=True)
    for chunk in …:                                the bytes of the file from `counting.start`
        for offset, entry in counting.feed(chunk): …       entries whose words are not written yet
    counting.covered, counting.state()             where to go on another time
    counting.finish()                              a line that has no newline yet is counted for show, and read again
    counting.told()                                what is shown of the session

It does not know where the bytes come from, nor where its answers are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Digest
from sessile.storage.base import NATIVE
from sessile.storage.glance import Record
from sessile.storage.native_rows import NativeRows

if TYPE_CHECKING:
    from sessile.storage.foreign_rows import RowReader

NEAR = 64 * 1024  # bytes behind the place where counting stopped that are counted with a look
TINY = 1024  # bytes of a new session that is counted with a look: one without a message is not shown
FIT = 4096  # bytes before that place that must not have changed


class Reading(msgspec.Struct):
    """How far the lines of one session were read."""

    number: int
    path: bytes
    size: int
    covered: int
    fit: bytes | None
    state: bytes | None
    indexed: int
    passages: int
    header_at: int
    version: int
    header_title: str | None
    format: str = NATIVE

    def start(self, index: bool) -> int:
        """Where reading on begins: words may be less far than counts."""
        return min(self.covered, self.indexed) if index else self.covered


class Counting:
    """Goes on counting one session."""

    def __init__(self, reading: Reading, *, index: bool) -> None:
        self.digest = Digest() if reading.state is None else msgspec.convert(decode(reading.state), Digest)
        self.start = reading.start(index)
        self._counted, self._written = reading.covered, reading.indexed
        self._header_title = reading.header_title
        self._index = index
        self._lines = _rows_of(reading, self.digest)
        self._scanner = self._lines.scanner(self.start)

    def feed(self, chunk: bytes) -> list[tuple[int, Record]]:
        """Count the entries that a chunk completes, and give those whose words are asked for, with their places."""
        found: list[tuple[int, Record]] = []
        for offset, entry in self._lines.split(self._scanner.split(chunk)):
            if offset >= self._counted:
                self._count(entry)
            if self._index and entry is not None and offset >= self._written:
                found.append((offset, entry))
        self.digest.translator = self._lines.saved()
        return found

    @property
    def covered(self) -> int:
        """Up to where lines are complete and counted."""
        return max(self._counted, self._scanner.line_start)

    @property
    def indexed(self) -> int:
        """Up to where words were asked for."""
        return self._scanner.line_start if self._index else self._written

    def state(self) -> bytes:
        """What is needed to go on counting at `covered`."""
        return encode_plain(msgspec.to_builtins(self.digest))

    def finish(self) -> None:
        """Count the last line, which has no newline."""
        for _, entry in self._lines.judged(self._scanner.finish()):
            self._count(entry)

    def told(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Title, first text, last role and last status."""
        digest = self.digest
        title = digest.name if digest.named else self._header_title
        return title, digest.first_text, digest.last_role, digest.last_status

    def _count(self, entry: Record | None) -> None:
        if entry is None:
            self.digest.findings += 1
        else:
            self.digest.add(entry)


def _rows_of(reading: Reading, digest: Digest) -> NativeRows | RowReader:
    """What makes entries of the lines of a file."""
    if reading.format == NATIVE:
        return NativeRows(reading.header_at, reading.version)
    from sessile.storage.foreign_rows import RowReader

    return RowReader(reading.format, digest.translator, reading.covered)
