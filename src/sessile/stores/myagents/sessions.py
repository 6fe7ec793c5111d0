"""The session files of MyAgents: rows added at the end, and the last one put right when its usage arrives late.

Rules: an append costs the same however long the session is. What is stored is counted by the reader itself, once, and then
caught up with what others appended: a line that cannot be read shifts nothing. Before new rows the line end is repaired. A
row that is replaced is kept in our folder first. A list that is shorter than what is stored is refused: it comes from a
memory that has forgotten something.

It knows nothing of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sessile.errors import Conflict, LeafMoved, Unsupported
from sessile.formats.myagents.messages import Row, encode_row, scan
from sessile.formats.myagents.stats import Tally, tally
from sessile.formats.myagents.types import Json, Message
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.raw_file import RawFile
from sessile.storage.row_file import add_rows, replace_row
from sessile.stores.myagents.migration import migrate
from sessile.stores.myagents.places import Places, new_stamp


class _Counted(NamedTuple):
    """How many messages a file holds, and what tells whether that is still so."""

    inode: int
    device: int
    size: int
    whole: bool  # ends with a newline
    settled: bool  # its name is durable
    messages: int
    last: Row | None


class Written(NamedTuple):
    """What a save did: how many rows are new, what they add to the statistics, the files that keep what was replaced."""

    appended: int
    updated: bool
    messages: int
    tally: Tally
    kept: tuple[str, ...]


class SessionFiles:
    """The session files of one folder."""

    def __init__(
        self,
        fs: Filesystem,
        places: Places,
        guard: Callable[[str], AbstractContextManager[None]],
        stamp: Callable[[], str] = new_stamp,
    ) -> None:
        """`guard` gives what is to be held while the file of a session is replaced."""
        self._fs = fs
        self._places = places
        self._guard = guard
        self._stamp = stamp
        self._cache: dict[str, _Counted] = {}

    def exists(self, session_id: str) -> bool:
        """Whether the session has a file of any form."""
        paths = (self._places.session, self._places.legacy, self._places.archive, self._places.transcript_v2)
        return any(atomic.exists(self._fs, path(session_id)) for path in paths)

    def count(self, session_id: str) -> int:
        """How many messages the reader reads."""
        return self._counted(session_id).messages

    def forget(self, session_id: str) -> None:
        """Count anew the next time."""
        self._cache.pop(session_id, None)

    # -- writing

    def save(self, session_id: str, messages: Sequence[Mapping[str, Any]]) -> Written:
        """Store what is new in the full list of a session's messages; the last stored one may have changed."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if len(messages) < known.messages:
            raise Conflict(
                f"the list has {len(messages)} messages, the file {known.messages}: nothing was written",
                path=self._places.session(session_id),
                hint="load the session again, then add to that",
            )
        late = Tally()
        updated = False
        if known.last is not None:
            # What a line gives back is compared: 1.0 is 1 there.
            stored, given = known.last.message, Row(0, encode_row(messages[known.messages - 1])).message
            if stored.id != given.id:
                raise LeafMoved(
                    f"the file has message {stored.id!r} where the list has {given.id!r}: nothing was written",
                    path=self._places.session(session_id),
                    hint="load the session again, then add to that",
                )
            if {**stored.value, **given.value} != stored.value:
                late = self._replace_last(session_id, known.last, {**stored.value, **given.value})
                updated = True
        written = self._append(session_id, messages[known.messages :])
        kept = [*kept, self._places.replaced_rows(session_id)] if updated else kept
        return written._replace(updated=updated, tally=written.tally.plus(late), kept=tuple(kept))

    def append(self, session_id: str, messages: Sequence[Mapping[str, Any]]) -> Written:
        """Store new messages."""
        kept = self.make_writable(session_id)
        return self._append(session_id, messages)._replace(kept=tuple(kept))

    def update_last(self, session_id: str, members: Mapping[str, Any]) -> Written:
        """Put members of the last message right: usage, the number of tools, how long it took."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if known.last is None:
            raise Conflict("the session has no message yet", path=self._places.session(session_id))
        value = {**known.last.message.value, **members}
        if value == known.last.message.value:
            return Written(0, False, known.messages, Tally(), tuple(kept))
        late = self._replace_last(session_id, known.last, value)
        return Written(0, True, known.messages, late, (*kept, self._places.replaced_rows(session_id)))

    def _append(self, session_id: str, messages: Sequence[Mapping[str, Any]]) -> Written:
        known = self._counted(session_id)
        if not messages:
            return Written(0, False, known.messages, Tally(), ())
        path = self._places.session(session_id)
        lines = [encode_row(message) for message in messages]
        atomic.make_folders(self._fs, self._places.sessions)
        added = add_rows(
            self._fs, path, b"".join(line + b"\n" for line in lines), create=known.size == 0, settled=known.settled
        )
        self._remember(session_id, known, added.offset, lines, added.stat)
        count = known.messages + len(lines)
        return Written(len(lines), False, count, tally(Message(message) for message in messages), ())

    def _remember(self, session_id: str, known: _Counted, offset: int, lines: list[bytes], status: Stat) -> None:
        """Keep the count, if nobody else has written at the same time."""
        length = sum(len(line) + 1 for line in lines)
        alone = known.whole and offset == known.size and status.st_size == offset + length
        if not alone or (known.size and known.inode != status.st_ino):
            self.forget(session_id)
            return
        last = Row(status.st_size - len(lines[-1]) - 1, lines[-1])
        self._cache[session_id] = _Counted(
            status.st_ino, status.st_dev, status.st_size, True, True, known.messages + len(lines), last
        )

    def _replace_last(self, session_id: str, row: Row, value: Json) -> Tally:
        """Put another row in place of the last one; gives what that changes in the statistics."""
        path = self._places.session(session_id)
        atomic.make_folders(self._fs, self._places.originals)
        add_rows(self._fs, self._places.replaced_rows(session_id), row.raw + b"\n", create=True)
        self.forget(session_id)
        aside = f"{self._places.originals}/{session_id}.whole-{self._stamp()}"
        with self._guard(session_id):
            replace_row(self._fs, path, row.offset, row.raw, encode_row(value), aside)
        return tally([Message(value)]).minus(tally([row.message]))

    def make_writable(self, session_id: str) -> list[str]:
        """Refuse forms that are only read, migrate the legacy one; gives the files that were kept."""
        if atomic.exists(self._fs, self._places.transcript_v2(session_id)):
            raise Unsupported(
                "transcripts of this version are only read",
                path=self._places.transcript_v2(session_id),
                hint="continue it as a session of ours: sessile fork",
            )
        path = self._places.session(session_id)
        if not atomic.exists(self._fs, path) and atomic.exists(self._fs, self._places.archive(session_id)):
            raise Unsupported(
                "the session is archived",
                path=self._places.archive(session_id),
                hint="take it out of the archive first",
            )
        if not atomic.exists(self._fs, self._places.legacy(session_id)):
            return []
        self.forget(session_id)
        with self._guard(session_id):
            return migrate(self._fs, self._places, session_id, self._stamp())

    # -- counting

    def _counted(self, session_id: str) -> _Counted:
        """How much is stored; only what is new since the last time is read."""
        path = self._places.session(session_id)
        if not atomic.exists(self._fs, path):
            self.forget(session_id)
            return _Counted(0, 0, 0, True, False, 0, None)
        with RawFile(self._fs, path) as file:
            known = self._cache.get(session_id)
            start, count, last, settled = 0, 0, None, False
            if known is not None and _still_begins_with(file, known):
                if file.size == known.size:
                    return known
                start, count, last, settled = known.size, known.messages, known.last, known.settled
            for item in scan(file.chunks(start), start):
                if isinstance(item, Row):
                    count, last = count + 1, item
            whole = file.size == 0 or file.peek(file.size - 1, 1) == b"\n"
            known = _Counted(file.stat.st_ino, file.stat.st_dev, file.size, whole, settled, count, last)
        self._cache[session_id] = known
        return known


def _still_begins_with(file: RawFile, known: _Counted) -> bool:
    """Whether a file is the one that was counted, perhaps with more behind it."""
    if (file.stat.st_ino, file.stat.st_dev) != (known.inode, known.device) or not known.whole:
        return False
    if file.size < known.size:
        return False
    return known.last is None or file.peek(known.last.offset, len(known.last.raw)) == known.last.raw
