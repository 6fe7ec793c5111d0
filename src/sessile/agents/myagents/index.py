"""MyAgents' index, `sessions.json`: read without a lock, changed under MyAgents' lock.

Rules:

- The file is replaced atomically, never written in place. The new content is made durable before the lock is taken, and
  the lock is held only to check that the index has not changed: about a millisecond.
- Every row keeps its text, so rows that a change does not touch stay the same byte for byte. Rows that are not metadata
  are kept but not shown.
- A damaged index is salvaged for reading: rows that are whole, with findings. It is saved in our folder before a change
  replaces it. If no row can be salvaged it is not replaced, since that would turn damage into loss.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.agents.myagents.lock import PATIENT, RETRIES, DirectoryLock
from sessile.agents.myagents.places import Places, new_stamp
from sessile.agents.myagents.types import Metadata
from sessile.core.codec import decode, encode_plain, exact_decoder, plain
from sessile.core.lines import Finding
from sessile.core.text import without_surrogates
from sessile.errors import Damaged, SessionExists, SessionNotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem


class IndexRow(NamedTuple):
    """One element of the array: its text and its value."""

    text: str
    value: Any

    @property
    def metadata(self) -> Metadata | None:
        """The row as metadata, if it is that."""
        value = self.value
        return Metadata(value) if isinstance(value, Mapping) and isinstance(value.get("id"), str) else None


class Parsed(NamedTuple):
    """The rows of an index. If it is not `sound`, it was damaged, and rows may be missing."""

    rows: tuple[IndexRow, ...]
    findings: tuple[Finding, ...]
    sound: bool


Edit = Callable[[Sequence[IndexRow]], Sequence[IndexRow] | None]
"""Return the rows to store, or `None` to change nothing. It may be called more than once."""

_UNLOCKED_TRIES = 2  # attempts to prepare a change without the lock


class Index:
    """The index of one MyAgents folder."""

    def __init__(
        self, fs: Filesystem, places: Places, lock: DirectoryLock, stamp: Callable[[], str] = new_stamp
    ) -> None:
        self._fs = fs
        self._places = places
        self._lock = lock
        self._stamp = stamp
        self._known: tuple[bytes, Parsed] | None = None  # the last sound index, with its exact bytes

    # -- reading

    def read(self) -> Parsed:
        """Return the current index; nothing is locked or written.

        The first versions write in place, so an index that looks damaged may be incomplete while the lock is held, or
        may just have been completed. It counts as damaged only if it is the same twice and the lock was not held in
        between.
        """
        data = self._bytes()
        parsed = self._parse(data)
        for _ in range(RETRIES):
            if parsed.sound:
                break
            held = self._lock.is_held_by_another()
            if held:
                self._lock.wait()
            again = self._bytes()
            if again == data and not held:
                break
            data, parsed = again, self._parse(again)
        return parsed

    def rows(self) -> dict[str, Metadata]:
        """Return the metadata of every session, by id."""
        found = (row.metadata for row in self.read().rows)
        return {row.id: row for row in found if row is not None}

    def find(self, session_id: str) -> Metadata | None:
        """Return the metadata of a session."""
        return self.rows().get(session_id)

    def _bytes(self) -> bytes | None:
        with storage_failures(self._places.index, "read MyAgents' index"):
            try:
                return atomic.read_all(self._fs, self._places.index)
            except FileNotFoundError:
                return None

    def _parse(self, data: bytes | None) -> Parsed:
        if data is None:
            return Parsed((), (), True)
        known = self._known
        if known is not None and known[0] == data:
            return known[1]
        parsed = parse(data)
        if not parsed.sound:
            return self._from_temp(parsed)
        self._known = (data, parsed)
        return parsed

    def _from_temp(self, parsed: Parsed) -> Parsed:
        """Return the file that a later version was about to put in place, if it is sound and not older than the index."""
        temp = f"{self._places.index}.tmp"
        with storage_failures(temp, "read MyAgents' index"):
            try:
                newer = self._fs.lstat(temp).st_mtime_ns >= self._fs.lstat(self._places.index).st_mtime_ns
                candidate = parse(atomic.read_all(self._fs, temp))
            except FileNotFoundError:
                return parsed
        if newer and candidate.sound and candidate.rows:
            return Parsed(candidate.rows, (*parsed.findings, *candidate.findings), False)
        return parsed

    # -- changing

    def create(self, row: Metadata, retries: int = RETRIES) -> None:
        """Add the row of a new session."""

        def edit(rows: Sequence[IndexRow]) -> Sequence[IndexRow]:
            if _place_of(rows, row.id) is not None:
                raise SessionExists(f"the index already has a row for {row.id}", path=self._places.index)
            return [*rows, row_of(row.value)]

        self.change(edit, retries)

    def update(
        self, session_id: str, change: Callable[[Metadata], Metadata | None], retries: int = RETRIES
    ) -> Metadata | None:
        """Replace a row by the result of `change`, and return it; `None` means no change.

        `change` receives the current row, so it can refuse: a title of a user is not replaced by a generated one.
        """
        result: list[Metadata | None] = [None]

        def edit(rows: Sequence[IndexRow]) -> Sequence[IndexRow] | None:
            place = _place_of(rows, session_id)
            known = rows[place].metadata if place is not None else None
            if place is None or known is None:
                raise SessionNotFound(f"session not found in MyAgents' index: {session_id!r}", path=self._places.index)
            result[0] = change(known)
            if result[0] is None or result[0].value == known.value:
                return None
            return [*rows[:place], row_of(result[0].value), *rows[place + 1 :]]

        self.change(edit, retries)
        return result[0]

    def remove(self, session_id: str, before: Callable[[Metadata | None], None], retries: int = PATIENT) -> None:
        """Remove the row of a session; `before` is called first, with the lock held and the current row."""

        def edit(rows: Sequence[IndexRow]) -> Sequence[IndexRow] | None:
            left = [row for row in rows if row.metadata is None or row.metadata.id != session_id]
            return left if len(left) < len(rows) else None

        with self._lock.held(retries):
            before(self.find(session_id))
            self._change_locked(edit)
        self._sync()

    def change(self, edit: Edit, retries: int = RETRIES) -> bool:
        """Store the result of `edit`, and return whether anything changed."""
        atomic.make_folders(self._fs, self._places.root, below_links=True)
        for _ in range(_UNLOCKED_TRIES):
            before = self._bytes()
            parsed = self._parse(before)
            if not parsed.sound:
                break
            rows = edit(parsed.rows)
            if rows is None:
                return False
            after = render(rows)
            if self._swap(before, after, retries):
                self._known = (after, parsed._replace(rows=tuple(rows)))
                self._sync()
                return True
        with self._lock.held(retries):
            changed = self._change_locked(edit)
        self._sync()
        return changed

    def _swap(self, before: bytes | None, after: bytes, retries: int) -> bool:
        """Put a prepared file in place if the index is unchanged."""
        index = self._places.index
        with (
            storage_failures(index, "write MyAgents' index"),
            atomic.prepared(self._fs, index, (after,)) as temp,
            self._lock.held(retries),
        ):
            if self._bytes() != before:
                return False
            self._lock.check()
            self._fs.rename(temp, index)
            return True

    def _change_locked(self, edit: Edit) -> bool:
        before = self._bytes()
        parsed = self._parse(before)
        rows = edit(parsed.rows)
        if rows is None:
            return False
        if not parsed.sound and before is not None:
            if not parsed.rows:
                raise Damaged(
                    "MyAgents' index cannot be read, so it was not changed",
                    path=self._places.index,
                    hint="restore a backup, or repair the index to start a new one; the session files stay",
                )
            self._save_damaged(before)
        self._replace(rows)
        return True

    def _replace(self, rows: Sequence[IndexRow]) -> None:
        index = self._places.index
        with (
            storage_failures(index, "write MyAgents' index"),
            atomic.prepared(self._fs, index, (render(rows),)) as temp,
        ):
            self._lock.check()
            self._fs.rename(temp, index)

    def _save_damaged(self, data: bytes) -> str:
        kept = f"{self._places.originals}/sessions.json.corrupt-{self._stamp()}"
        atomic.make_folders(self._fs, self._places.originals)
        atomic.replace(self._fs, kept, (data,))
        return kept

    def repair(self) -> str | None:
        """Replace a damaged index by the rows that can be salvaged, even if there are none; return where it was saved.

        Return `None` if the index is sound.
        """
        with self._lock.held(PATIENT):
            before = self._bytes()
            parsed = self._parse(before)
            if before is None or parsed.sound:
                return None
            kept = self._save_damaged(before)
            self._replace(parsed.rows)
        self._sync()
        return kept

    def _sync(self) -> None:
        with storage_failures(self._places.index, "make MyAgents' index durable"):
            self._fs.sync_directory(posixpath.dirname(self._places.index))
        atomic.sweep(self._fs, posixpath.dirname(self._places.index))


def _place_of(rows: Sequence[IndexRow], session_id: str) -> int | None:
    """Return the position of a session's row; of several the last."""
    for place in range(len(rows) - 1, -1, -1):
        metadata = rows[place].metadata
        if metadata is not None and metadata.id == session_id:
            return place
    return None


# -- the text of an index

_json = exact_decoder()
_SPACES = re.compile(r"[ \t\r\n]*")
_INDENT = "  "
_BOM = b"\xef\xbb\xbf"
_TRIES = 2000  # attempts to find a row after a damaged place
_ROW_MEMBERS = {"agentDir", "title", "createdAt", "lastActiveAt"}  # a row has one of them, an object in a row has none


def row_of(value: Mapping[str, Any]) -> IndexRow:
    """Return a new row with this value."""
    return IndexRow(_indented(plain(dict(value)).value, _INDENT), dict(value))


def _indented(value: Any, margin: str) -> str:
    """Format a value as `JSON.stringify` does with an indent of two; `plain` has limited its depth."""
    inner = margin + _INDENT
    if isinstance(value, dict) and value:
        members = (f"{inner}{_indented(str(name), '')}: {_indented(item, inner)}" for name, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{margin}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{_indented(item, inner)}" for item in value) + f"\n{margin}]"
    return encode_plain(value).decode("utf-8")


def render(rows: Iterable[IndexRow]) -> bytes:
    """Return the text of an index: indented by two spaces, no newline at the end."""
    inner = ",\n  ".join(row.text for row in rows)
    return f"[\n  {inner}\n]".encode("utf-8", "surrogateescape") if inner else b"[]"


def parse(data: bytes) -> Parsed:
    """Parse an index."""
    text = data.removeprefix(_BOM).decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 keep their offsets
    at = _past(text, 0)
    if not text.startswith("[", at):
        return _salvaged(text, 0, (), "it does not start with an array")
    rows: list[IndexRow] = []
    at = _past(text, at + 1)
    if not text.startswith("]", at):
        while True:
            try:
                value, end = _json.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                return _salvaged(text, at, rows, str(error))
            rows.append(_read_row(text[at:end], value))
            at = _past(text, end)
            if not text.startswith(",", at):
                break
            at = _past(text, at + 1)
    if not text.startswith("]", at) or _past(text, at + 1) != len(text):
        return _salvaged(text, at, rows, "the array does not end properly")
    return Parsed(tuple(rows), _oddities(rows), True)


def _salvaged(text: str, at: int, rows: Iterable[IndexRow], problem: str) -> Parsed:
    """Return the rows before a damaged place, and the whole ones after it; of two with the same id the last."""
    offset = len(text[:at].encode("utf-8", "surrogateescape"))
    length = len(text.encode("utf-8", "surrogateescape")) - offset
    found = list(rows)
    tries = _TRIES
    at = text.find("{", at)
    while at >= 0 and tries:
        try:
            value, end = _json.raw_decode(text, at)
        except (ValueError, RecursionError):
            tries -= 1
            end = at + 1
        else:
            if isinstance(value, dict) and isinstance(value.get("id"), str) and not _ROW_MEMBERS.isdisjoint(value):
                found.append(_read_row(text[at:end], value))
        at = text.find("{", end)
    unique = {row.metadata.id if row.metadata else row.text: row for row in found}
    finding = Finding("damaged_index", offset, length, f"damaged index: {problem}")
    return Parsed(tuple(unique.values()), (finding, *_oddities(unique.values())), False)


def _read_row(text: str, value: Any) -> IndexRow:
    """Return a row of a file: the text gives the same bytes again, in the value invalid UTF-8 becomes U+FFFD."""
    raw = text.encode("utf-8", "surrogateescape")
    return IndexRow(text, value if text.isascii() or _is_utf8(raw) else decode(raw))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _oddities(rows: Iterable[IndexRow]) -> tuple[Finding, ...]:
    """Return findings about the rows of a sound array."""
    findings = []
    seen: set[str] = set()
    for row in rows:
        metadata = row.metadata
        if metadata is None:
            findings.append(Finding("not_metadata", 0, 0, f"a row without an id is not shown: {row.text[:60]}"))
        elif metadata.id in seen:
            findings.append(Finding("duplicate_row", 0, 0, f"several rows for {metadata.id[:99]}: the last counts"))
        else:
            seen.add(metadata.id)
    return tuple(findings)


def _past(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


# -- for listings


class Described(NamedTuple):
    """A session in the index; `sdk_session_id` is the name of its transcript in Claude Code."""

    title: str | None
    cwd: str | None
    sdk_session_id: str | None


def described(index_bytes: bytes) -> dict[str, Described]:
    """Return the sessions in the bytes of an index, by id, for listings.

    It never fails: a damaged index gives the rows that can be salvaged. Texts have no lone surrogates, so they can be
    stored and shown anywhere.
    """
    found = {}
    for row in parse(index_bytes).rows:
        metadata = row.metadata
        if metadata is not None:
            texts = (metadata.title, metadata.agent_dir, metadata.sdk_session_id)
            found[metadata.id] = Described(*(_shown(text) for text in texts))
    return found


def _shown(text: str | None) -> str | None:
    """Return a text that is not blank, or `None`."""
    return without_surrogates(text) if text and not text.isspace() else None
