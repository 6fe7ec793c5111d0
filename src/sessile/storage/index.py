"""The row index: where each entry of a journal lies, what it hangs from, and the state of its path.

It is a cache. It is never written while appending; whoever reads a line through it checks that line too, and any mismatch
throws the index away. A path costs one row a step, and the state of any entry one look-up. That only holds while parents
come before their children and ids are unique: a journal where they do not is `irregular`, and is read without an index.

How it is saved is in `index_file`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from sessile.core.codec import decode
from sessile.core.kinds import LABEL, MARKER, MESSAGE, STATE, TITLE, State, fold, fold_label
from sessile.core.lines import Finding, Head, Line
from sessile.storage.base import Filesystem, Stat
from sessile.storage.index_file import HASHED, NO_CACHE, ORPHAN, ROW, Header, IndexFile, Place, key_of, write
from sessile.storage.states import BEGINNING, UNKNOWN, StateTable

NOWHERE = -1
MAX_FINDINGS = 1000  # kept in full; a file of garbage would otherwise fill the memory
SAVE_AFTER_ROWS = 64  # fewer new rows, or bytes, are scanned again sooner than the index is written again
SAVE_AFTER_BYTES = 1 << 20

_HASH = b"#"  # behind the key of an id that is a hash


class RowIndex:
    """The rows of one journal: those of a cache file, if there is one, and those added since."""

    def __init__(self) -> None:
        self.covered = 0
        self.irregular = False
        self.entries = 0
        self.labels: dict[str, str] = {}
        self.title = NOWHERE
        self.findings: list[Finding] = []
        self.found = 0
        self.extra: Any = None  # what a translator of another format has to keep
        self._file: IndexFile | None = None
        self._saved = 0  # the rows of the cache file; those in memory come after them
        self._kept = (0, 0)  # the rows and bytes of the journal that some cache file covers
        self._tail = bytearray()
        self._tail_states = array("i")
        self._numbers: dict[bytes, int] = {}  # by name: the texts of a million ids would be most of the memory
        self._last = ("", NOWHERE, BEGINNING)  # id, number and state of the entry before: most hang from that one
        self._missing: set[str] = set()
        self._states = StateTable()
        self._answers: dict[tuple[int, str | None, str | None], int] = {}

    def __len__(self) -> int:
        return self._saved + len(self._tail_states)

    @property
    def worth_saving(self) -> bool:
        """Whether scanning what no cache file covers costs more than writing one."""
        rows, covered = self._kept
        new = self.covered - covered
        enough = len(self) - rows >= SAVE_AFTER_ROWS or new >= SAVE_AFTER_BYTES
        return enough and new >= self.covered >> 8

    @property
    def has_orphans(self) -> bool:
        """Whether some entry hangs from one that is not there."""
        return bool(self._missing)

    def report(self, finding: Finding) -> None:
        """Note something that is not as it should be."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def add(self, line: Line, head: Head, flags: int, entry: bytes | None = None) -> int:
        """Add the next entry of the journal; gives the number of the one that it hangs from.

        `head` and `entry` are what the line means, if it is not one of ours.
        """
        offset, raw, _ = line
        number = len(self._tail_states) + self._saved
        numbers, saved = self._numbers, self._file
        entry_id, parent_id = str(head.id), head.parentId
        key, hashed = key_of(entry_id)
        name = key + _HASH if hashed else key
        marks = HASHED if hashed else 0
        last_id, parent, state = self._last
        if not parent_id:
            parent, state = NOWHERE, BEGINNING
        elif parent_id != last_id:
            found = self.find(parent_id)
            if found is None:
                parent, state = NOWHERE, BEGINNING
                marks |= ORPHAN
                self._missing.add(parent_id)
            else:
                parent, state = found, self._state_number(found)
        if name in numbers or entry_id in self._missing or (saved and saved.find(entry_id) is not None):
            self.irregular = True
        if flags & STATE and state != UNKNOWN:
            state = self._state_after(state, flags, head, entry or raw)
        self._tail += ROW.pack(key, offset << 16 | flags | marks, len(raw), parent, state)
        self._tail_states.append(state)
        numbers[name] = number
        self._last = (entry_id, number, state)
        if not flags & MARKER:
            self.entries += 1
        if flags & LABEL:
            fold_label(self.labels, decode(entry or raw))
        elif flags & TITLE:
            self.title = number
        return parent

    def _state_number(self, number: int) -> int:
        in_memory = number - self._saved
        return self._tail_states[in_memory] if in_memory >= 0 else self.place(number).state

    def _state_after(self, before: int, flags: int, head: Head, entry: bytes) -> int:
        if not flags & MESSAGE:
            return self._states.number_of(fold(self._states[before], decode(entry)))
        # Of a message the head says all that counts: its body is not decoded, and most answers repeat their model.
        message = head.message
        assert message is not None
        answer = (before, message.provider, message.model)
        number = self._answers.get(answer)
        if number is None:
            number = self._states.number_of(fold(self._states[before], {"type": "message", "message": asdict(message)}))
            self._answers[answer] = number
        return number

    def place(self, number: int) -> Place:
        """The row of an entry."""
        if number >= self._saved:
            return Place._make(ROW.unpack_from(self._tail, (number - self._saved) * ROW.size))
        assert self._file is not None
        return self._file.place(number)

    def places(self, start: int, stop: int) -> list[Place]:
        """The rows of entries that follow each other."""
        found = self._file.places(start, min(stop, self._saved)) if self._file and start < self._saved else []
        tail = self._tail[max(0, start - self._saved) * ROW.size : max(0, stop - self._saved) * ROW.size]
        return found + list(map(Place._make, ROW.iter_unpack(tail)))

    def find(self, entry_id: str) -> int | None:
        """The number of an entry."""
        number = self._numbers.get(_name(entry_id))
        if number is None and self._file is not None:
            number = self._file.find(entry_id)
        return number

    def state(self, number: int) -> State | None:
        """The state after an entry; `None` if it has to be folded."""
        state = self._state_number(number)
        return None if state == UNKNOWN else self._states[state]

    def save(self, fs: Filesystem, path: str, journal: Stat, tail: bytes) -> None:
        """Write the whole index to the cache; the file that this one was loaded from stays as good as it was."""
        rows = bytearray(self._file.read(0, self._saved * ROW.size) if self._file else b"")
        rows += self._tail
        header = Header(
            inode=journal.st_ino,
            device=journal.st_dev,
            covered=self.covered,
            entries=self.entries,
            labels=self.labels,
            title=self.title,
            missing=sorted(self._missing),
            findings=self.findings,
            found=self.found,
            extra=self.extra,
        )
        write(fs, path, header, tail, rows, self._states.encoded())
        self._kept = (len(self), self.covered)

    @classmethod
    def load(cls, fs: Filesystem, path: str, journal: Stat, read_tail: Callable[[int], bytes]) -> RowIndex | None:
        """The saved index, or `None` if there is none that fits the journal."""
        try:
            file = IndexFile(fs, path)
        except NO_CACHE:
            return None
        index = cls()
        try:
            if file.fits(journal, read_tail):
                index._adopt(file)
                return index
        except NO_CACHE:
            pass
        file.close()
        return None

    def _adopt(self, file: IndexFile) -> None:
        header = file.header
        self._states = StateTable(file.states())
        self._file = file
        self._saved = header.rows
        self._kept = (header.rows, header.covered)
        self.covered = header.covered
        self.entries = header.entries
        self.labels = header.labels
        self.title = header.title
        self._missing = set(header.missing)
        self.findings = header.findings
        self.found = header.found
        self.extra = header.extra

    def close(self) -> None:
        """Let go of the cache file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _name(entry_id: str) -> bytes:
    """What an id is known by in memory; the hash of one may look like another."""
    key, hashed = key_of(entry_id)
    return key + _HASH if hashed else key
