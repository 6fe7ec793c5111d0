"""Reading the session files of other agents in place, as journals.

Rows are indexed like native ones, under the ids and parents that the format's translator gives them; an entry is made when it is
read. The state of the translator is saved with the index. Nothing is written to the file, beside it, or to its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sessile.agents.base import Agent, Completing, Entry, Format, Glimpse, Known, Look, Near, Stretch, Translator, fill
from sessile.agents.registry import AGENTS
from sessile.core.codec import encode_plain
from sessile.core.diagnosis import TROUBLES, Problem, problem
from sessile.core.digest import FIRST_TEXT, shown
from sessile.core.kinds import DEFAULT_ROLE, LABEL, LEAF_MARKER, MARKER, MARKERS, MESSAGE, STATE, TITLE, State
from sessile.core.lines import MAX_LINE, Finding, Head, Item, Line, Scanner
from sessile.errors import NotASession, SessileError, storage_failure, storage_failures
from sessile.storage.atomic import write_all
from sessile.storage.base import CHUNK, Filesystem, Row, Stamp, Stat, stamp_of
from sessile.storage.formats import Record
from sessile.storage.head import Glance, starts_native
from sessile.storage.index import NOWHERE, IndexDamaged, Place, RowIndex, key_of
from sessile.storage.layout import stem_of
from sessile.storage.packed import chunks_of, copy_start, is_packed, open_rows, renderer_of
from sessile.storage.reader import JournalReader
from sessile.storage.session_lists import told_of

_WINDOW = 64 * 1024
_NEAR = 4 * 1024  # bytes that are read first to look at the rows around an entry


def beginning(fs: Filesystem, fd: int, start: int = 0) -> bytes:
    """Return the start of a file: at least its first row, however long."""
    first = fs.read(fd, _WINDOW, start)
    while b"\n" not in first and len(first) <= MAX_LINE and (more := fs.read(fd, len(first), start + len(first))):
        first += more
    return first


def ends(fs: Filesystem, fd: int, size: int) -> tuple[bytes, bytes]:
    """Return the two ends of an open file; they are equal if it is short."""
    first = beginning(fs, fd)
    return first, first if size <= len(first) else fs.read(fd, _WINDOW, size - _WINDOW)


def glance_foreign(fs: Filesystem, fd: int, size: int, path: str) -> tuple[str, Glance] | None:
    """Return the agent of an open file and what its ends show; `None` if no agent recognises it."""
    first, last = ends(fs, fd, size)
    agent = AGENTS.recognise(first)
    known = None if agent is None else agent.format
    if agent is None or known is None:
        return None
    stem = stem_of(path)
    glimpse = known.glimpse(stem, first, last)
    if glimpse is None:
        return None
    header = known.header(stem, first)
    related = agent.related(fs, path, first)
    told = shown(glimpse.title) or ""
    said = (shown(glimpse.first_text) or "")[:FIRST_TEXT]
    seen = Glance(
        id=str(header["id"]),
        cwd=shown(header.get("cwd")) or "",
        title=told,
        created=shown(header.get("timestamp")) or "",
        parent=shown(related.parent) or "",
        first_text=said,
        last_role=glimpse.last_role,
        last_status="",
        header_title=told,
        header_at=-1,
        version=3,
        origin=shown(related.before) or "",
    )
    return agent.name, seen


class RowReader:
    """Turns the rows of one file into entries, in order.

    Rows from `start` on continue from the saved state. Rows before it are read again only for their words, where parents do not
    matter.
    """

    def __init__(self, known: Format, saved: Any, start: int) -> None:
        self._format = known
        self._start = start
        self._again: Translator = known.translator()
        self._translator: Translator = known.translator(saved)
        self._calls: dict[str, str] = {}  # the tools of calls without a result so far

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner that splits the file into rows."""
        return self._format.scanner(offset)

    def saved(self) -> Any:
        """Return what is needed to continue later."""
        return self._translator.saved()

    def split(self, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, Record | None]]:
        """Yield each entry with its offset, and `None` for a damaged row; markers are left out."""
        for offset, raw in lines:
            if raw is None:
                yield offset, None
            elif raw:
                yield from self.judged(self.scanner(offset).feed(raw + b"\n"))

    def judged(self, items: Iterable[Item]) -> Iterator[tuple[int, Record | None]]:
        """Do the same for lines that the scanner has already looked at."""
        for item in items:
            if not isinstance(item, Line):
                yield item.offset, None
                continue
            for known in (self._translator if item.offset >= self._start else self._again).take(item):
                head, flags = known.head, known.flags
                if flags & MARKER and known.filled and "usage" in known.filled:
                    yield item.offset, {"type": "usage", **known.filled}
                if not known.counted or (flags & MARKER and not flags & TITLE):
                    continue
                entry = self._format.entry(item.raw, str(head.id), head.parentId, lambda entry_id: None)
                fill(entry, known)
                if head.message is not None and head.message.model is not None and "message" in entry:
                    entry["message"].setdefault("model", head.message.model)  # earlier rows named it
                self._name_tool(entry.get("message"))
                if flags & MARKER:
                    del entry["id"]  # a title that is not part of the conversation
                yield item.offset, entry

    def _name_tool(self, message: object) -> None:
        """Give a result the name of its tool, which some agents store with the call only."""
        if not isinstance(message, dict):
            return
        if message.get("role") == "toolResult":
            name = self._calls.pop(str(message.get("toolCallId")), "")
            message["toolName"] = message.get("toolName") or name
            return
        content = message.get("content") if message.get("role") == "assistant" else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") == "toolCall":
                self._calls[str(block.get("id"))] = str(block.get("name") or "")


def entries_at(known: Format, line: Line) -> Iterator[tuple[str | None, Record]]:
    """Yield the entries of one row with their ids; their parents are unknown here."""
    for entry_id in known.ids_of(line.raw, line.offset):
        yield entry_id, known.entry(line.raw, entry_id, None, lambda other: None)


def agent_of(fs: Filesystem, path: str) -> Agent | None:
    """Return the agent that wrote a file, by its first bytes; `None` for native and unknown files."""
    with storage_failures(path, "look at the file"):
        if (renderer := renderer_of(fs, path, AGENTS)) is not None:
            return AGENTS.get(renderer)
        fd, *_ = open_rows(fs, path, AGENTS)
        try:
            first = beginning(fs, fd)
        finally:
            fs.close(fd)
    return None if starts_native(first) else AGENTS.recognise(first)


class ForeignReader(JournalReader):
    """One file of another agent, open for reading."""

    def __init__(self, fs: Filesystem, path: str, agent: Agent, *, index_path: str | None = None) -> None:
        if agent.format is None:
            raise NotASession(f"{agent.name} has no format of its own", path=path)
        self.agent = agent
        self.format: Format = agent.format
        self._translator: Translator = self.format.translator()
        self._damage: list[Finding] = []
        self._second: ForeignReader | None = None
        self._origin = 0  # where the rows of the session's own file start; those before it come from other files
        self._memory: dict[str, Any] = {}
        self._complete = self.format.complete if isinstance(self.format, Completing) else None
        super().__init__(fs, path, index_path=None if is_packed(path) or agent.rendered else index_path)

    def _open(self) -> None:
        try:
            fd, size, damage, *_ = open_rows(self._fs, self.path, AGENTS)
            self._damage = list(damage)
            history = self.agent.history(self._fs, self.path, beginning(self._fs, fd))
            if history:
                fd = self._after(history, fd, size)
        except OSError as error:
            raise storage_failure(error, self.path, "open the session") from error
        self._begin(fd)

    def _after(self, history: Sequence[Stretch], own: int, size: int) -> int:
        """Return a descriptor of the rows in other files, followed by those of the open one, which is closed."""
        self._index_path = None  # an index would be one of both
        whole = self._fs.temporary()
        try:
            for path, length, problem in history:
                if problem:
                    self._damage.append(Finding("missing_history", -1, 0, problem))
                if path is not None:
                    self._origin += copy_start(self._fs, path, length, whole, AGENTS)
            for chunk in chunks_of(self._fs, own, size):
                write_all(self._fs, whole, chunk)
        except BaseException:
            self._fs.close(whole)
            raise
        finally:
            self._fs.close(own)
        return whole

    def _stat_by_name(self, identity: int) -> Stat | None:
        return None  # a compressed file has another size than its rows

    def _is_replaced(self) -> bool:
        return False  # the open file stays readable; reopen to read a new one

    def findings(self) -> Sequence[Finding]:
        found = super().findings()
        return [*found, *self._damage]

    def _scanner(self, offset: int) -> Scanner:
        return self.format.scanner(offset)

    def _find_header(self, size: int) -> Line:
        self._slot = None
        with storage_failures(self.path, "read the session"):
            first = beginning(self._fs, self._fd, self._origin)
            if not self.format.recognises(first):
                raise NotASession(f"the file is not a {self.format.name} session", path=self.path)
            related = self.agent.related(self._fs, self.path, first)
        header = self.format.header(stem_of(self.path), first, told_of(self._fs, self.path, AGENTS))
        if related.parent:
            header["parentSession"] = related.parent
        return Line(-1, encode_plain(header), Head("session", header["id"]))

    def raw(self, row: Row) -> bytes:
        """Return the row as the agent wrote it."""
        return self._read(*row.position)

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the file."""
        return self._chunks(0, self._stat().st_size)

    def beside(self, wanted: bytes) -> ForeignReader | None:
        """Open another session in the same folder whose file has these bytes; `None` if there is none."""
        folder, _, own = self.path.rpartition("/")
        with storage_failures(folder, "list the folder"):
            names = [name for name in self._fs.names(folder) if name.endswith(".jsonl") and name != own]
        for name in names:
            try:
                other = ForeignReader(self._fs, f"{folder}/{name}", self.agent)
            except SessileError:  # not a session of this agent, or removed since
                continue
            before = b""
            for piece in other.pieces():
                if wanted in before + piece:
                    return other
                before = piece[-len(wanted) :]
            other.close()
        return None

    # -- the index

    def _forget_index(self, *, distrust: bool = False) -> None:
        super()._forget_index(distrust=distrust)
        self._translator = self.format.translator()

    def _load_index(self, stamp: Stamp) -> RowIndex | None:
        index = super()._load_index(stamp)
        if index is None:
            return None
        name, saved = index.extra if isinstance(index.extra, list) and len(index.extra) == 2 else (None, None)
        if name != self.format.name:  # more rows may show that the file is another agent's than its first rows did
            index.close()
            return None
        self._translator = self.format.translator(saved)
        return index

    def _save_index(self, *, closing: bool = False) -> None:
        self._index.extra = [self.format.name, self._translator.saved()]
        super()._save_index(closing=closing)

    def _unindexed(self) -> JournalReader:
        return ForeignReader(self._fs, self.path, self.agent)

    def _take(self, index: RowIndex, line: Line, report: Callable[[Finding], None]) -> None:
        for known in self._translator.take(self._placed(line)):
            self._add(index, line, known)

    def _placed(self, line: Line) -> Line:
        """Return a line with its place in the session's own file, after which its entries may be named."""
        return line._replace(offset=line.offset - self._origin) if self._origin else line

    def _add(self, index: RowIndex, line: Line, known: Known) -> int:
        head, flags, entry = known.head, known.flags, None
        if flags & (STATE | LABEL) and not flags & MESSAGE:  # the index needs more than the head of these
            made = self.format.entry(line.raw, str(head.id), head.parentId, lambda other: None)
            fill(made, known)
            entry = encode_plain(made)
        return index.add(line, head, flags, entry)

    def _head(self, place: Place, raw: bytes | None = None) -> Head:
        raw = self._read(place.offset, place.length) if raw is None else raw
        for known in self.format.ids_of(raw, place.offset - self._origin):
            if key_of(known)[0] == place.key:
                return Head("custom", known)
        raise IndexDamaged("a row no longer has its id")

    def _is(self, raw: bytes, row: Row) -> bool:
        return row.id in self.format.ids_of(raw, row.position[0] - self._origin)

    def _all_rows(self) -> Sequence[Row]:
        translator = self.format.translator()
        rows: list[Row] = []
        for item in self._scan(0, self._indexed):
            if isinstance(item, Line):
                place = (item.offset, len(item.raw))
                rows += [_row(known, place) for known in translator.take(self._placed(item))]
        return rows

    # -- entries

    def last(self) -> Row | None:
        """Return the entry from which the conversation continues; other rows may follow it."""
        leaf = self._ask(lambda index: self._translator.leaf)
        return super().last() if leaf is None else self.find(leaf)

    def entries(self) -> Iterator[tuple[Row, Entry]]:
        """Yield every entry with its row, in file order. The same pass over the file builds the index."""
        self._forget_index()
        index, stat = self._index, self._stat()
        size, self._stamp = stat.st_size, stamp_of(stat)

        def look(entry_id: str) -> bytes | None:  # an entry refers only to earlier rows
            number = index.find(entry_id)
            place = None if number is None else index.place(number)
            return None if place is None else self._read(place.offset, place.length)

        scanner = self._scanner(0)
        for chunk in self._chunks(0, size):
            index.note(scanner.offset, chunk)
            for item in scanner.feed(chunk):
                if isinstance(item, Finding):
                    index.report(item)
                    continue
                for known in self._translator.take(self._placed(item)):
                    row = _row(known, (item.offset, len(item.raw)))
                    parent = self._add(index, item, known)
                    if row.parent_id and parent == NOWHERE and not self._comes_later(row.parent_id):
                        row = row._replace(parent_id=None)
                    yield row, self._entry(item.raw, row, look, index)
        behind = len(index)
        self._caught_up(index, scanner, size)
        for row in self._numbered(range(behind, len(index))):
            yield row, self._entry(self.raw(row), row, self._look)

    def _comes_later(self, entry_id: str) -> bool:
        """Return whether a parent comes after its child. That is rare, so a second reader looks for it."""
        if self._second is None:
            self._second = ForeignReader(self._fs, self.path, self.agent)
        return self._second.find(entry_id) is not None

    def close(self) -> None:
        """Close the descriptors."""
        if self._second is not None:
            self._second.close()
            self._second = None
        super().close()

    def glimpse(self) -> Glimpse | None:
        """Return what the two ends of the file show."""
        with storage_failures(self.path, "read the session"):
            first, last = ends(self._fs, self._fd, self._stat().st_size)
            if self._origin:
                first = beginning(self._fs, self._fd, self._origin)
        return self.format.glimpse(stem_of(self.path), first, last)

    def _shown(self, raw: bytes, row: Row) -> bytes:
        return encode_plain(self._entry(raw, row, self._look))

    def _entry(self, raw: bytes, row: Row, look: Look, index: RowIndex | None = None) -> Entry:
        """Return a row as an entry; a row outside of the conversation is a marker that keeps its content."""
        entry = self.format.entry(raw, row.id, row.parent_id, look)
        if self._complete is not None and not row.flags & MARKER:
            self._complete(entry, raw, _Around(self, row, index))
        if not row.flags & MARKER or row.flags & TITLE or entry.get("customType") in MARKERS:
            return entry
        base: Entry = {name: entry[name] for name in ("id", "parentId", "timestamp") if name in entry}
        rest = {name: value for name, value in entry.items() if name not in base}
        return {"type": "custom", **base, "customType": LEAF_MARKER, "data": rest}

    def _look(self, entry_id: str) -> bytes | None:
        row = self.find(entry_id)
        return None if row is None else self._read(*row.position)


class _Around(Near):
    """The rows around an entry, read from the file as they are needed."""

    def __init__(self, reader: ForeignReader, row: Row, index: RowIndex | None) -> None:
        self._reader = reader
        self._row = row
        self._index = index

    @property
    def memory(self) -> dict[str, Any]:
        return self._reader._memory

    @property
    def model(self) -> str | None:
        if self._index is None:
            state: State | None = self._reader.state(self._row)
        else:  # the index is being made: the entry is its last one
            state = None if self._index.irregular else self._index.state(len(self._index) - 1)
        return None if state is None else state.models.get(DEFAULT_ROLE)

    def first(self) -> bytes:
        return beginning(self._reader._fs, self._reader._fd, self._reader._origin).partition(b"\n")[0]

    def before(self) -> Iterator[bytes]:
        end = self._row.position[0]
        rest, size = b"", _NEAR
        while end > 0:
            start = max(0, end - size)
            lines = (self._reader._read(start, end - start) + rest).split(b"\n")
            rest = lines[0]
            yield from (line for line in reversed(lines[1:]) if line)
            end, size = start, min(2 * size, CHUNK)
        if rest:
            yield rest

    def after(self) -> Iterator[bytes]:
        start = sum(self._row.position)
        rest, size = b"", _NEAR
        while chunk := self._reader._read(start, size):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line for line in lines if line)
            start, size = start + len(chunk), min(2 * size, CHUNK)
        if rest:
            yield rest


def _row(known: Known, place: tuple[int, int]) -> Row:
    head = known.head
    return Row(str(head.id), head.parentId, known.flags, place)


# --- foreign

_HINT = "no agent writes files that start like this; the file was not changed; run sessile check to see what is in it"


def open_foreign(fs: Filesystem, path: str, index_path: str | None = None) -> ForeignReader:
    """Open another agent's file for reading."""
    agent = agent_of(fs, path)
    if agent is None:
        raise NotASession(path=path, hint=_HINT)
    with storage_failures(path, "open the session"):
        return ForeignReader(fs, path, agent, index_path=index_path)


def describe_foreign(fs: Filesystem, path: str) -> tuple[Glance, Stat] | None:
    """Return what the two ends of another agent's file show; `None` if it is not a session, or must not be listed."""
    with storage_failures(path, "look at a session"):
        fd, *_ = open_rows(fs, path, AGENTS)
        try:
            status = fs.fstat(fd)
            found = glance_foreign(fs, fd, status.st_size, path)
        finally:
            fs.close(fd)
    return None if found is None else (found[1], status)


def problems_of(findings: Iterable[Finding]) -> Iterator[Problem]:
    """Yield the problems of another agent's file. None of them can be repaired from here."""
    for code, offset, length, detail in findings:
        kind = code if code in TROUBLES else "not_an_entry"
        found = problem(kind, detail)._replace(repairable=False)
        yield found._replace(offset=offset, length=length) if offset >= 0 else found
