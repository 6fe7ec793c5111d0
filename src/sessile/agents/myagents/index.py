"""MyAgents' index, `sessions.json`: read without a lock, changed under theirs.

Rules: the file is replaced at once, never written in place. What is written is made durable before the lock is taken, and the
lock is held only to see that nobody else was faster: about a millisecond. Rows that a change does not name stay byte for
byte. A damaged index is salvaged for reading; before a change replaces it, it is kept in our folder. One of which nothing can
be salvaged is not replaced: that would turn damage into loss.

The text of MyAgents' index: a JSON array of rows, read strictly, salvaged where it is damaged, written as they write it.

Every row keeps its text, so that writing one row again leaves all others as they are, byte for byte. A damaged index gives
the rows that are whole, and findings; it is never taken for an empty one. Rows that are no metadata are kept and not shown.

What MyAgents' index says of its sessions, for lists that show the sessions of every agent: title, folder, Claude Code's id.

It never fails: of a damaged index it tells what can be salvaged, of anything else nothing. What is not said is `None`. Texts
come without lone surrogates, so that they can be stored and shown anywhere.
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

# --- index text

_json = exact_decoder()
_SPACES = re.compile(r"[ \t\r\n]*")
_INDENT = "  "
_BOM = b"\xef\xbb\xbf"
_TRIES = 2000  # starts behind a damaged place that may turn out to be none
_MARKS = {"agentDir", "title", "createdAt", "lastActiveAt"}  # one of them tells a row from an object inside of one


class IndexRow(NamedTuple):
    """One element of the array: its text, and its value."""

    text: str
    value: Any

    @property
    def metadata(self) -> Metadata | None:
        """The row as metadata, if it is that."""
        value = self.value
        return Metadata(value) if isinstance(value, Mapping) and isinstance(value.get("id"), str) else None


class Parsed(NamedTuple):
    """The rows of an index. One that is not `sound` was damaged: more may have been in it."""

    rows: tuple[IndexRow, ...]
    findings: tuple[Finding, ...]
    sound: bool


def row_of(value: Mapping[str, Any]) -> IndexRow:
    """A new row, or one with another value."""
    return IndexRow(_indented(plain(dict(value)).value, _INDENT), dict(value))


def _indented(value: Any, margin: str) -> str:
    """A value as `JSON.stringify` writes it two spaces deep; `plain` has seen to it that it is not nested too deeply."""
    inner = margin + _INDENT
    if isinstance(value, dict) and value:
        members = (f"{inner}{_indented(str(name), '')}: {_indented(item, inner)}" for name, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{margin}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{_indented(item, inner)}" for item in value) + f"\n{margin}]"
    return encode_plain(value).decode("utf-8")


def render(rows: Iterable[IndexRow]) -> bytes:
    """The whole index: two spaces deep, no newline at its end."""
    inner = ",\n  ".join(row.text for row in rows)
    return f"[\n  {inner}\n]".encode("utf-8", "surrogateescape") if inner else b"[]"


def parse(data: bytes) -> Parsed:
    """The rows of an index."""
    text = data.removeprefix(_BOM).decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 keep their places
    at = _past(text, 0)
    if not text.startswith("[", at):
        return _salvaged(text, 0, (), "the index does not begin with an array")
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
        return _salvaged(text, at, rows, "the array does not end where it should")
    return Parsed(tuple(rows), _oddities(rows), True)


def _salvaged(text: str, at: int, rows: Iterable[IndexRow], problem: str) -> Parsed:
    """The rows before a damaged place, and the whole ones behind it; of two with one id the last."""
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
            if isinstance(value, dict) and isinstance(value.get("id"), str) and not _MARKS.isdisjoint(value):
                found.append(_read_row(text[at:end], value))
        at = text.find("{", end)
    unique = {row.metadata.id if row.metadata else row.text: row for row in found}
    finding = Finding("damaged_index", offset, length, f"the index is damaged: {problem}")
    return Parsed(tuple(unique.values()), (finding, *_oddities(unique.values())), False)


def _read_row(text: str, value: Any) -> IndexRow:
    """A row of a file: its text gives the same bytes back, in its value bytes that are not UTF-8 are U+FFFD."""
    raw = text.encode("utf-8", "surrogateescape")
    return IndexRow(text, value if text.isascii() or _is_utf8(raw) else decode(raw))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _oddities(rows: Iterable[IndexRow]) -> tuple[Finding, ...]:
    """What is strange about rows of a sound array."""
    findings = []
    seen: set[str] = set()
    for row in rows:
        metadata = row.metadata
        if metadata is None:
            findings.append(
                Finding("not_metadata", 0, 0, f"a row without an id is kept, but not shown: {row.text[:60]}")
            )
        elif metadata.id in seen:
            findings.append(
                Finding("duplicate_row", 0, 0, f"more than one row for {metadata.id[:99]}: the last counts")
            )
        else:
            seen.add(metadata.id)
    return tuple(findings)


def _past(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


# --- index

Edit = Callable[[Sequence[IndexRow]], Sequence[IndexRow] | None]
"""Gives the rows that are to be stored, or `None` to leave all as it is. May be asked more than once."""

_OPTIMISM = 2  # times that a change is prepared without the lock


class Index:
    """The index of one MyAgents folder."""

    def __init__(
        self, fs: Filesystem, places: Places, lock: DirectoryLock, stamp: Callable[[], str] = new_stamp
    ) -> None:
        self._fs = fs
        self._places = places
        self._lock = lock
        self._stamp = stamp
        self._known: tuple[bytes, Parsed] | None = None  # the last sound index; only its very bytes mean it

    # -- reading

    def read(self) -> Parsed:
        """What the index holds now; nothing is locked or written.

        The first versions write in place: what looks damaged may just not be finished while the lock is held, or just
        have been finished when it is not. Only what is the same twice without a lock between is damage.
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
        """The metadata of every session, by its id."""
        found = (row.metadata for row in self.read().rows)
        return {row.id: row for row in found if row is not None}

    def find(self, session_id: str) -> Metadata | None:
        """The metadata of a session."""
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
        """The file that a later version was about to put in place, if that is whole and not older than the damaged one."""
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
                raise SessionExists(f"the index has a row for {row.id} already", path=self._places.index)
            return [*rows, row_of(row.value)]

        self.change(edit, retries)

    def update(
        self, session_id: str, change: Callable[[Metadata], Metadata | None], retries: int = RETRIES
    ) -> Metadata | None:
        """Put what `change` makes of a row in its place; says what that is, or `None` if it wants no change.

        `change` sees the row as it is at that moment, and so can refuse: a title of a person is not replaced by another.
        """
        result: list[Metadata | None] = [None]

        def edit(rows: Sequence[IndexRow]) -> Sequence[IndexRow] | None:
            place = _place_of(rows, session_id)
            known = rows[place].metadata if place is not None else None
            if place is None or known is None:
                raise SessionNotFound(f"the index has no row for {session_id}", path=self._places.index)
            result[0] = change(known)
            if result[0] is None or result[0].value == known.value:
                return None
            return [*rows[:place], row_of(result[0].value), *rows[place + 1 :]]

        self.change(edit, retries)
        return result[0]

    def remove(self, session_id: str, before: Callable[[Metadata | None], None], retries: int = PATIENT) -> None:
        """Remove the row of a session; `before` is done first, with the lock held, and gets the row as it is then."""

        def edit(rows: Sequence[IndexRow]) -> Sequence[IndexRow] | None:
            left = [row for row in rows if row.metadata is None or row.metadata.id != session_id]
            return left if len(left) < len(rows) else None

        with self._lock.held(retries):
            before(self.find(session_id))
            self._change_locked(edit)
        self._settle()

    def change(self, edit: Edit, retries: int = RETRIES) -> bool:
        """Store what `edit` makes of the rows; says whether that is anything new."""
        atomic.make_folders(self._fs, self._places.root, below_links=True)
        for _ in range(_OPTIMISM):
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
                self._settle()
                return True
        with self._lock.held(retries):
            changed = self._change_locked(edit)
        self._settle()
        return changed

    def _swap(self, before: bytes | None, after: bytes, retries: int) -> bool:
        """Put a prepared file in place if the index is still what it was."""
        temp = atomic.temp_beside(self._places.index)
        done = False
        with storage_failures(self._places.index, "write MyAgents' index"):
            atomic.write_new(self._fs, temp, (after,))
            try:
                with self._lock.held(retries):
                    if self._bytes() == before:
                        self._lock.check()
                        self._fs.rename(temp, self._places.index)
                        done = True
            finally:
                if not done:
                    atomic.remove(self._fs, temp)
        return done

    def _change_locked(self, edit: Edit) -> bool:
        before = self._bytes()
        parsed = self._parse(before)
        rows = edit(parsed.rows)
        if rows is None:
            return False
        if not parsed.sound and before is not None:
            if not parsed.rows:
                raise Damaged(
                    "nothing of MyAgents' index can be read; it is left as it is",
                    path=self._places.index,
                    hint="put a backup in its place, or repair the index to begin a new one; the session files stay",
                )
            self._keep_damaged(before)
        self._put(rows)
        return True

    def _put(self, rows: Sequence[IndexRow]) -> None:
        temp = atomic.temp_beside(self._places.index)
        with storage_failures(self._places.index, "write MyAgents' index"):
            atomic.write_new(self._fs, temp, (render(rows),))
            try:
                self._lock.check()
                self._fs.rename(temp, self._places.index)
            except OSError:
                atomic.remove(self._fs, temp)
                raise

    def _keep_damaged(self, data: bytes) -> str:
        kept = f"{self._places.originals}/sessions.json.corrupt-{self._stamp()}"
        atomic.make_folders(self._fs, self._places.originals)
        atomic.replace(self._fs, kept, (data,))
        return kept

    def repair(self) -> str | None:
        """Put the rows that can be salvaged in place of a damaged index, and be it none; gives where that is kept.

        A sound index stays as it is: `None`.
        """
        with self._lock.held(PATIENT):
            before = self._bytes()
            parsed = self._parse(before)
            if before is None or parsed.sound:
                return None
            kept = self._keep_damaged(before)
            self._put(parsed.rows)
        self._settle()
        return kept

    def _settle(self) -> None:
        with storage_failures(self._places.index, "make MyAgents' index durable"):
            self._fs.sync_directory(posixpath.dirname(self._places.index))


def _place_of(rows: Sequence[IndexRow], session_id: str) -> int | None:
    """Where the row of a session is; of several the last."""
    for place in range(len(rows) - 1, -1, -1):
        metadata = rows[place].metadata
        if metadata is not None and metadata.id == session_id:
            return place
    return None


# --- naming


class Described(NamedTuple):
    """What the index says of one session; `sdk_session_id` is the name of its transcript in Claude Code."""

    title: str | None
    cwd: str | None
    sdk_session_id: str | None


def described(index_bytes: bytes) -> dict[str, Described]:
    """The sessions in the bytes of an index, by their ids; of two rows for one id the last counts."""
    found = {}
    for row in parse(index_bytes).rows:
        metadata = row.metadata
        if metadata is not None:
            told = (metadata.title, metadata.agent_dir, metadata.sdk_session_id)
            found[metadata.id] = Described(*(_shown(text) for text in told))
    return found


def _shown(text: str | None) -> str | None:
    """A text that says something, or `None`."""
    return without_surrogates(text) if text and not text.isspace() else None
