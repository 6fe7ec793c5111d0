"""The session files of MyAgents: rows added at the end, and stored ones put right when their usage arrives late.

Rules: an append costs the same however long the session is. What is stored is counted by the reader itself, once, and then
caught up with what others appended: a line that cannot be read shifts nothing. Before new rows the line end is repaired. A
row that is replaced is kept in our folder first. A list that is shorter than what is stored is refused: it comes from a
memory that has forgotten something. Of a full list the last few stored messages are compared, for an answer may get its usage
after the next question was asked; one further back is put right by its id.

It knows nothing of the index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sessile.errors import Conflict, LeafMoved, NotFound, Unsupported
from sessile.formats.myagents.messages import Given, Row, encode_row, late_members, scan, stored_form
from sessile.formats.myagents.stats import Tally, tally
from sessile.formats.myagents.types import Json, Message
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.raw_file import RawFile
from sessile.storage.row_file import add_chosen_rows, add_rows, replace_row
from sessile.stores.myagents.migration import migrate
from sessile.stores.myagents.places import Places, new_stamp
from sessile.stores.myagents.reading import load, load_lines

_COMPARED = 8  # stored messages that a full list may have news of


Choose = Callable[[Sequence[Row]], Sequence[Json]]
"""Says, with the lock of the file held, which messages are to be stored; is given the last rows that are."""


class _Counted(NamedTuple):
    """How many messages a file holds, and what tells whether that is still so."""

    inode: int
    device: int
    size: int
    whole: bool  # ends with a newline
    settled: bool  # its name is durable
    messages: int
    latest: tuple[Row, ...]  # the last ones, at most as many as are compared

    @property
    def last(self) -> Row | None:
        return self.latest[-1] if self.latest else None


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
        announce: Callable[[str], None] = lambda session_id: None,
    ) -> None:
        """`guard` gives what is to be held while the file of a session is replaced; `announce` is told before any change."""
        self._fs = fs
        self._places = places
        self._guard = guard
        self._stamp = stamp
        self._announce = announce
        self._cache: dict[str, _Counted] = {}

    def exists(self, session_id: str) -> bool:
        """Whether the session has a file of any form."""
        paths = (self._places.session, self._places.legacy, self._places.archive, self._places.transcript_v2)
        return any(atomic.exists(self._fs, path(session_id)) for path in paths)

    def count(self, session_id: str) -> int:
        """How many messages the reader reads, in whatever form they are stored."""
        places = self._places
        others = (places.legacy, places.archive, places.transcript_v2)
        if any(atomic.exists(self._fs, path(session_id)) for path in others):
            return len(load(self._fs, places, session_id).rows)
        return self._counted(session_id).messages

    def forget(self, session_id: str) -> None:
        """Count anew the next time."""
        self._cache.pop(session_id, None)

    # -- writing

    def save(self, session_id: str, messages: Sequence[Given]) -> Written:
        """Store what is new in the full list of a session's messages; the last stored ones may have changed."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if len(messages) < known.messages:
            raise Conflict(
                f"the list has {len(messages)} messages, the file {known.messages}: nothing was written",
                path=self._places.session(session_id),
                hint="load the session again, then add to that",
            )
        late = self._late(session_id, known, messages)
        change = Tally()
        for row, value in late:
            change = change.plus(self._replace(session_id, row, value))
        written = self._append(session_id, messages[known.messages :])
        kept = [*kept, self._places.replaced_rows(session_id)] if late else kept
        return written._replace(updated=bool(late), tally=written.tally.plus(change), kept=tuple(kept))

    def _late(self, session_id: str, known: _Counted, messages: Sequence[Given]) -> list[tuple[Row, Json]]:
        """The stored rows that the list has news of, with their new values; the last first, so that places stay right."""
        news = []
        given = messages[known.messages - len(known.latest) : known.messages]
        for row, message in zip(known.latest, given, strict=True):
            stored, listed = row.message, Message(stored_form(message))
            if stored.id != listed.id:
                raise LeafMoved(
                    f"the file has message {stored.id!r} where the list has {listed.id!r}: nothing was written",
                    path=self._places.session(session_id),
                    hint="load the session again, then add to that",
                )
            members = late_members(stored, message)
            if members:
                news.append((row, {**stored.value, **members}))
        return news[::-1]

    def append(self, session_id: str, messages: Sequence[Given] | Choose) -> Written:
        """Store new messages."""
        kept = self.make_writable(session_id)
        return self._append(session_id, messages)._replace(kept=tuple(kept))

    def update_last(self, session_id: str, members: Mapping[str, Any]) -> Written:
        """Put members of the last message right: usage, the number of tools, how long it took."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if known.last is None:
            raise Conflict("the session has no message yet", path=self._places.session(session_id))
        return self._put_right(session_id, known.last, members, kept)

    def update(self, session_id: str, message_id: str, members: Mapping[str, Any]) -> Written:
        """Put members of any message right; of several with that id the last."""
        kept = self.make_writable(session_id)
        path = self._places.session(session_id)
        rows = load_lines(self._fs, path).rows if atomic.exists(self._fs, path) else ()
        for row in reversed(rows):
            if row.message.id == message_id:
                return self._put_right(session_id, row, members, kept)
        raise NotFound(f"the session has no message {message_id[:80]!r}", path=path)

    def _put_right(self, session_id: str, row: Row, members: Mapping[str, Any], kept: list[str]) -> Written:
        """A member that is `None` is taken out."""
        count = self._counted(session_id).messages
        gone = {name for name, item in members.items() if item is None}
        value = {name: item for name, item in row.message.value.items() if name not in gone} | stored_form(members)
        if value == row.message.value:
            return Written(0, False, count, Tally(), tuple(kept))
        change = self._replace(session_id, row, value)
        return Written(0, True, count, change, (*kept, self._places.replaced_rows(session_id)))

    def _append(self, session_id: str, messages: Sequence[Given] | Choose) -> Written:
        known = self._counted(session_id)
        if not messages:
            return Written(0, False, known.messages, Tally(), ())
        path = self._places.session(session_id)
        values = [] if callable(messages) else [stored_form(message) for message in messages]
        lines = [encode_row(value) for value in values]

        def choose() -> Sequence[bytes]:
            nonlocal known, values, lines
            if callable(messages):
                known = self._counted(session_id)
                values = list(messages(known.latest))
                lines = [encode_row(value) for value in values]
            return lines

        atomic.make_folders(self._fs, self._places.sessions, below_links=True)
        self._announce(session_id)
        added = add_chosen_rows(self._fs, path, choose, create=known.size == 0, settled=known.settled)
        self._remember(session_id, known, added.offset, lines, added.stat)
        count = known.messages + len(lines)
        return Written(len(lines), False, count, tally(Message(value) for value in values), ())

    def _remember(self, session_id: str, known: _Counted, offset: int, lines: list[bytes], status: Stat) -> None:
        """Keep the count, if nobody else has written at the same time."""
        length = sum(len(line) + 1 for line in lines)
        alone = known.whole and offset == known.size and status.st_size == offset + length
        if not alone or (known.size and known.inode != status.st_ino):
            self.forget(session_id)
            return
        latest = list(known.latest)
        for line in lines:
            latest.append(Row(offset, line))
            offset += len(line) + 1
        count = known.messages + len(lines)
        self._cache[session_id] = _Counted(
            status.st_ino, status.st_dev, status.st_size, True, True, count, tuple(latest[-_COMPARED:])
        )

    def _replace(self, session_id: str, row: Row, value: Json) -> Tally:
        """Put another row in place of one; gives what that changes in the statistics."""
        path = self._places.session(session_id)
        atomic.make_folders(self._fs, self._places.originals)
        add_rows(self._fs, self._places.replaced_rows(session_id), row.raw + b"\n", create=True)
        self.forget(session_id)
        self._announce(session_id)
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
            return _Counted(0, 0, 0, True, False, 0, ())
        with RawFile(self._fs, path) as file:
            known = self._cache.get(session_id)
            start, count, settled = 0, 0, False
            latest: deque[Row] = deque(maxlen=_COMPARED)
            if known is not None and _still_begins_with(file, known):
                if file.size == known.size:
                    return known
                start, count, settled = known.size, known.messages, known.settled
                latest.extend(known.latest)
            for item in scan(file.chunks(start), start):
                if isinstance(item, Row):
                    count += 1
                    latest.append(item)
            whole = file.size == 0 or file.peek(file.size - 1, 1) == b"\n"
            status = file.stat
            known = _Counted(status.st_ino, status.st_dev, status.st_size, whole, settled, count, tuple(latest))
        self._cache[session_id] = known
        return known


def _still_begins_with(file: RawFile, known: _Counted) -> bool:
    """Whether a file is the one that was counted, perhaps with more behind it."""
    if (file.stat.st_ino, file.stat.st_dev) != (known.inode, known.device) or not known.whole:
        return False
    if file.size < known.size:
        return False
    return known.last is None or file.peek(known.last.offset, len(known.last.raw)) == known.last.raw
