"""The oracle of all fault rigs: records what callers were promised, and checks that a store keeps it.

A `Ledger` is built from events, so a process that will be killed can send them through a pipe. `verify` compares a ledger with
the remaining store: everything acknowledged is there, nothing partial is visible, and work can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from sessile import Entry, Session, Store
from sessile.core import entries as make
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import files_below
from sessile.storage.trash import Deletion
from sessile.transfer import import_session, sync

CWD = "/home/ada/project"
OTHER = "/home/ada/elsewhere"
PROJECTS = (CWD, OTHER)

Event = tuple[str, ...]


def clock(start: int) -> Callable[[], float]:
    """Return a clock that advances by one second at every call."""
    return count(1_700_000_000 + start).__next__


def store_on(filesystem: Filesystem | None, root: str, seed: int, durability: str = "power") -> Store:
    """Return a store whose ids and times are the same in every run. Different seeds give different ids."""
    if durability == "process":
        return Store(
            root, fs=filesystem, durability="process", clock=clock(seed * 100_000), random=Random(seed).randbytes
        )
    return Store(root, fs=filesystem, clock=clock(seed * 100_000), random=Random(seed).randbytes)


@dataclass
class Ledger:
    """The promises about each session, by session id."""

    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """The acknowledged messages: entry id to text, in the order in which they were acknowledged."""
    listed: set[str] = field(default_factory=set)
    """Sessions that listings must show without any recovery."""
    rewriting: dict[str, dict[str, str]] = field(default_factory=dict)
    """The new texts of a rewrite that has not finished."""
    titles: dict[str, set[str | None]] = field(default_factory=dict)
    """The names that a session may have."""
    leaves: dict[str, set[str | None]] = field(default_factory=dict)
    """The leaves at which a session may be reopened."""
    trash: dict[str, str] = field(default_factory=dict)
    """Sessions that "may" or "must" be in the trash."""
    folders: dict[str, str] = field(default_factory=dict)
    """The project in whose listing a session must be."""
    spilled: dict[str, str] = field(default_factory=dict)
    """The content of the artifact that a session must have."""
    copied: list[set[str]] = field(default_factory=list)
    """The texts of a copy, if it exists, for each attempt to copy."""
    damaged: set[str] = field(default_factory=set)
    """Sessions whose files have unreadable parts."""
    blobs: dict[str, str] = field(default_factory=dict)
    """Large content by its hash."""
    obtained: set[str] = field(default_factory=set)
    """Names of files that may exist and be empty, because the next `obtain` fills them."""
    syncing: set[str] = field(default_factory=set)
    """Sessions that were being synced to a second store, and are complete there after another sync."""
    erasing: dict[str, dict[str, str]] = field(default_factory=dict)
    """Sessions that are erased, or complete if that has not begun, and their messages."""
    erased: set[str] = field(default_factory=set)
    """Sessions that must be gone without a trace."""
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Other agents' files, relative to the root, and the texts that a new import of them must hold."""

    def note(self, *event: str) -> None:
        """Record one promise."""
        kind, session_id, *rest = event
        match kind, rest:
            case "said", [entry_id, text]:
                self.texts.setdefault(session_id, {})[entry_id] = text
                self.leaves.pop(session_id, None)
            case "listed", []:
                self.texts.setdefault(session_id, {})
                self.listed.add(session_id)
            case "rewriting", [entry_id, text]:
                self.rewriting.setdefault(session_id, {})[entry_id] = text
            case "rewritten", []:
                self.texts[session_id] |= self.rewriting.pop(session_id, {})
            case "naming", [title]:
                self.titles.setdefault(session_id, {None}).add(title)
            case "named", [title]:
                self.titles[session_id] = {title}
                self.leaves.pop(session_id, None)
            case "leaving", [entry_id]:
                self.leaves.setdefault(session_id, set()).add(entry_id)
            case "left", [entry_id]:
                self.leaves[session_id] = {entry_id}
            case "trash", [how]:
                self.trash[session_id] = how
            case "back", []:
                del self.trash[session_id]
            case "moving", []:
                self.folders.pop(session_id, None)
            case "moved", [project]:
                self.folders[session_id] = project
            case "spilled", [content]:
                self.spilled[session_id] = content
            case "copying", texts:
                self.copied.append(set(texts))
            case "damaged", []:
                self.damaged.add(session_id)
            case "mended", []:
                self.damaged.discard(session_id)
            case "blob", [digest, content]:
                self.blobs[digest] = content
            case "obtaining", [name]:
                self.obtained.add(name)
            case "syncing", []:
                self.syncing.add(session_id)
            case "erasing", []:
                self.erasing[session_id] = self.texts.pop(session_id)
                self.listed.discard(session_id)
                self.folders.pop(session_id, None)
            case "erased", []:
                self.erased.add(session_id)
            case "importing", [path, *texts]:
                self.imports[path] = set(texts)
            case _:
                raise ValueError(event)


class Run:
    """A caller that works on a store and records the promises."""

    def __init__(self, store: Store, ledger: Ledger, tell: Callable[[Event], object] | None = None) -> None:
        self.store = store
        self.ledger = ledger
        self.sessions: list[Session] = []
        self._tell = tell

    def note(self, *event: str) -> None:
        self.ledger.note(*event)
        if self._tell is not None:
            self._tell(event)

    def create(self, cwd: str = CWD, *, publish: bool = False) -> Session:
        return self._opened(self.store.create(cwd, publish=publish), listed=publish)

    def open(self, session_id: str, *, readonly: bool = False) -> Session:
        return self._opened(self.store.open(session_id, readonly=readonly))

    def continue_recent(self, cwd: str = CWD) -> Session:
        return self._opened(self.store.continue_recent(cwd))

    def copy(self, make: Callable[[], Session], source: str, texts: set[str]) -> Session:
        """Copy a session and record what the copy must hold."""
        self.note("copying", source, *texts)
        session = self._opened(make(), listed=True)
        for entry in session.get_entries():
            self.note("said", session.id, entry.id, text_of(session.get_full_entry(entry.id)))
        if source in self.ledger.spilled:
            self.note("spilled", session.id, self.ledger.spilled[source])
        return session

    def _opened(self, session: Session, *, listed: bool = False) -> Session:
        self.sessions.append(session)
        if listed:
            self.note("listed", session.id)
        return session

    def say(self, session: Session, text: str, role: str = "user") -> str:
        """Append a message and record its receipt."""
        receipt = session.append_message(message(text, role))
        self.note("said", session.id, receipt.id, text)
        if role == "assistant":
            self.note("listed", session.id)
        return receipt.id

    def appended(self, session: Session, entry_id: str | None) -> str:
        """Record an acknowledged entry of any kind."""
        assert entry_id is not None
        self.note("said", session.id, entry_id, text_of(session.get_full_entry(entry_id)))
        return entry_id


def session_id(run: Run) -> str:
    """Return the id of the one prepared session."""
    return next(iter(run.ledger.texts))


def message(text: str, role: str = "user") -> dict[str, Any]:
    if role == "user":
        return {"role": "user", "content": text}
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "provider": "p", "model": "m"}


def text_of(entry: Entry | dict[str, Any]) -> str:
    """Return the text of a message entry, or the type of any other entry."""
    if entry["type"] != "message":
        return str(entry["type"])
    content = entry["message"]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


class Broken(AssertionError):
    """A promise was broken."""


def expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise Broken(complaint)


def verify(store: Store, ledger: Ledger, *, whole: bool = True, go_on: bool = True) -> None:
    """Raise `Broken` unless the store keeps the promises of the ledger.

    With `whole`, no line may be torn, because only our own calls were interrupted. Pass a copy: this writes to the store.
    """
    listed = _check_listing(store, ledger)
    for cwd in PROJECTS:
        session = store.continue_recent(cwd)
        session.close()
    for session_id, texts in ledger.texts.items():
        if texts or session_id in ledger.listed:
            path = _find(store, session_id, ledger.trash.get(session_id))
            _check_session(store, path, session_id, ledger, whole=whole)
            if go_on:
                _check_going_on(store, path)
    for session_id in listed - ledger.texts.keys() - ledger.erasing.keys():
        session = store.open(session_id, readonly=True)
        if session.header.get("parentSession") and ledger.copied:
            found = {text_of(session.get_full_entry(entry.id)) for entry in session.get_entries()}
            expect(any(texts <= found for texts in ledger.copied), f"a copy holds only {found}")
        session.close()
    for digest, content in ledger.blobs.items():
        expect(store.blobs.get(digest) == content.encode(), f"the blob {digest} is gone")
    for name in ledger.obtained:
        store.obtain(
            f"{store.layout.folder(CWD)}/{name}", make.header("obtained", "2026-01-01T00:00:00.000Z", CWD)
        ).close()
    for session_id in ledger.syncing:
        _check_syncing(store, session_id)
    for session_id, texts in ledger.erasing.items():
        _check_erased(store, session_id, texts, done=session_id in ledger.erased)
    for source, imported in ledger.imports.items():
        _check_importing(store, f"{store.layout.root}/{source}", imported)


def _check_erased(store: Store, session_id: str, texts: dict[str, str], *, done: bool) -> None:
    """Check that an erasure is complete, or has not begun. The next writer has finished one that was interrupted."""
    path = store.find(session_id)
    if path is not None:
        expect(not done, f"session {session_id} was erased and is still there")
        with store.open(path, readonly=True) as session:
            shown = {entry.id: text_of(session.get_full_entry(entry.id)) for entry in session.get_entries()}
        expect(texts.items() <= shown.items(), f"session {session_id} is partly erased")
        return
    for name, _ in files_below(store.fs, store.layout.root):
        expect(session_id not in name, f"{name} is left")
        data = atomic.read_all(store.fs, name)
        found = [text for text in (session_id, *texts.values()) if text.encode() in data]
        expect(not found, f"{name} still holds {found}")


def _check_listing(store: Store, ledger: Ledger) -> set[str]:
    infos = store.list_all(full=True)
    shown = {info.path for info in infos}
    for path in session_paths(store):
        blank = path.rpartition("/")[2] in ledger.obtained and store.fs.lstat(path).st_size == 0
        expect(blank or path in shown, f"{path} is there but no listing shows it")
    ids = {info.id for info in infos}
    for session_id in ledger.listed - ledger.trash.keys():
        expect(session_id in ids, f"session {session_id} is not listed")
    for session_id, how in ledger.trash.items():
        expect(how == "may" or session_id not in ids, f"session {session_id} was deleted and is still listed")
    for session_id, cwd in ledger.folders.items():
        expect(session_id in {info.id for info in store.list(cwd)}, f"session {session_id} is not in {cwd}")
    return ids


def session_paths(store: Store) -> Iterator[str]:
    """Return every file that a member of the family would list as a session."""
    folder = store.layout.sessions
    try:
        projects = store.fs.names(folder)
    except FileNotFoundError:
        return
    for project in projects:
        for name in store.fs.names(f"{folder}/{project}"):
            if name.endswith(".jsonl"):
                yield f"{folder}/{project}/{name}"


def _find(store: Store, session_id: str, in_trash: str | None) -> str:
    if in_trash is not None:
        deletions = [deletion for deletion in store.deletions() if _concerns(deletion, session_id)]
        expect(bool(deletions) or in_trash == "may", f"session {session_id} is not in the trash")
        for deletion in deletions:
            store.undo(deletion.token)
    path = store.find(session_id)
    if path is None:
        raise Broken(f"session {session_id} is gone")
    return path


def _concerns(deletion: Deletion, session_id: str) -> bool:
    return any(session_id in path for path in deletion.paths)


def _check_session(store: Store, path: str, session_id: str, ledger: Ledger, *, whole: bool) -> None:
    session = store.open(path, readonly=True)
    try:
        expect(session.id == session_id, f"{path} holds session {session.id}, not {session_id}")
        whole = whole and session_id not in ledger.damaged
        expect(not whole or not session.findings, f"{path}: {session.findings}")
        entries = session.get_entries()
        ids = [entry.id for entry in entries]
        expect(len(ids) == len(set(ids)), f"{path} holds an entry twice")
        if whole:
            for entry in entries:
                expect(entry.parent_id is None or entry.parent_id in ids, f"{path}: {entry.id} hangs from nothing")
        acknowledged = ledger.texts[session_id]
        missing = acknowledged.keys() - set(ids)
        expect(not missing, f"{path} lost {len(missing)} of {len(acknowledged)} acknowledged entries: {missing}")
        order = [entry_id for entry_id in ids if entry_id in acknowledged]
        expect(order == list(acknowledged), f"{path} changed the order of entries")
        full = {entry_id: text_of(session.get_full_entry(entry_id)) for entry_id in acknowledged}
        rewritten = acknowledged | ledger.rewriting.get(session_id, {})
        expect(full in (acknowledged, rewritten), f"{path} holds other texts than were acknowledged")
        _check_paths(session, acknowledged)
        if session_id in ledger.spilled:
            content = atomic.read_all(store.fs, f"{session.artifacts}/1.txt").decode()
            expect(content == ledger.spilled[session_id], f"{path} has other artifacts")
        titles = ledger.titles.get(session_id)
        expect(titles is None or session.title in titles, f"{path} is called {session.title}, not {titles}")
        leaves, leaf = ledger.leaves.get(session_id), session.leaf_id
        if leaves is not None and leaf is not None and not whole and leaf not in leaves | acknowledged.keys():
            leaf = session.get_full_entry(leaf)[
                "parentId"
            ]  # a marker that was garbled by a power cut is a child of the leaf
        expect(leaves is None or leaf in leaves, f"{path} reopens at {session.leaf_id}, not {leaves}")
    finally:
        session.close()


def _check_paths(session: Session, acknowledged: dict[str, str]) -> None:
    """Check that every acknowledged entry is connected to a root."""
    parents = {entry.id: entry.parent_id for entry in session.iter_lines()}
    for entry_id in acknowledged:
        parent = parents[entry_id]
        expect(parent is None or parent in parents, f"{session.path}: the parent {parent} of {entry_id} is missing")


def beside(store: Store) -> Store:
    """Return a second store inside the folder of the first."""
    return Store(f"{store.layout.root}/second", fs=store.fs, clock=lambda: store.now() / 1000, random=store.random)


def _check_syncing(store: Store, session_id: str) -> None:
    """Check that a sync continues after an interrupted attempt."""
    for done in sync(store, beside(store)):
        expect(done.error is None, f"{done.path}: {done.error}")
    with store.open(session_id, readonly=True) as here, beside(store).open(session_id, readonly=True) as there:
        expect([e.raw for e in here.get_entries()] == [e.raw for e in there.get_entries()], "not all entries came")
        expect(not there.findings, f"{there.path}: {there.findings}")
        if atomic.exists(store.fs, here.artifacts):
            content = [atomic.read_all(store.fs, f"{each.artifacts}/1.txt") for each in (here, there)]
            expect(content[0] == content[1], "not all artifacts came")


def _check_importing(store: Store, source: str, texts: set[str]) -> None:
    """Check that an import continues after an interrupted attempt, is complete, and adds nothing the next time."""
    done = import_session(store, source)
    with store.open(done.path, readonly=True) as session:
        # Check all branches: the leaf may have been moved since.
        branches = [
            [text_of(session.get_full_entry(entry.id)) for entry in session.get_branch(head)]
            for head in (None, *(entry.id for entry in session.get_heads()))
        ]
    whole = [branch for branch in branches if texts <= set(branch)]
    expect(bool(whole), f"the import holds only {branches}")
    expect(any(len(set(branch)) == len(branch) for branch in whole), f"the import holds something twice: {branches}")
    expect(import_session(store, source).added == 0, f"{source} has always something new")


def _check_going_on(store: Store, path: str) -> None:
    before = store.fs.lstat(path).st_size
    session = store.open(path)
    receipt = session.append_message(message("and so on"))
    session.close()
    session = store.open(path, readonly=True)
    found = session.get_entry(receipt.id)
    session.close()
    expect(found is not None, f"{path}: what was appended afterwards is not there")
    expect(store.fs.lstat(path).st_size > before, f"{path} shrank")
