"""Erase a session for good: its journal, and everything that was made from it.

Rules:

- It is the one operation that destroys. It removes the journal, drafts and artifacts of a session, files that were kept when it
  was rewritten or deleted, copies of its source, blobs that nothing else refers to, its rows in caches, its prompts in the
  history, and its turns and bindings in the gateway's files.
- A record is written first, and removed last. Whatever kills the process, the next writer of the store finds the record and
  continues (`finish`). Every step can be repeated.
- A note stays in `<root>/erased/`: the hash of the session's id, the time, and numbers. It holds no content.
- A session that any process has open or locked is refused. So are files of other agents: they are not ours.
- The catalog is removed as a whole, because SQLite cannot delete single words from it; the next listing makes it again.
- Forks are sessions of their own, and stay. The plan names them.
"""

from __future__ import annotations

import json
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.paths import agents_in
from sessile.core.ids import sha256
from sessile.core.messages.family import joined_text
from sessile.core.text import iso_timestamp
from sessile.errors import (
    Conflict,
    Damaged,
    Invalid,
    SessileError,
    SessionBusy,
    SessionNotFound,
    UnsafePath,
    storage_failures,
)
from sessile.storage import atomic, drafts, session_bytes
from sessile.storage.base import CHUNK
from sessile.storage.catalog import CatalogFile
from sessile.storage.history import HistoryStorage
from sessile.storage.layout import DRAFT, JOURNAL, Layout, stem_of
from sessile.storage.locks import identity, is_held, open_files
from sessile.storage.session_bytes import RawFile
from sessile.storage.turn_log import TurnLog

if TYPE_CHECKING:
    from sessile.store import Store

_PLAN, _NOTE = ".plan", ".json"
_CATALOG = ("catalog.db", "catalog.seal", *(f"catalog.db{side}" for side in ("-journal", "-wal", "-shm")))


class Part(NamedTuple):
    """Something that is erased with a session: what it is, where, and its size in bytes."""

    what: str
    path: str
    bytes: int


class Erasure(NamedTuple):
    """What erasing a session removes, or has removed if `done`.

    `blobs` are the hashes of the large content that only this session uses, `shared_blobs` is how many others use too and
    stay. `forks` are sessions that were made from this one; they hold copies of its text, and stay.
    """

    session_id: str
    path: str
    parts: tuple[Part, ...]
    blobs: tuple[str, ...]
    shared_blobs: int
    prompts: int
    forks: tuple[str, ...]
    bytes: int
    done: bool = False


class Record(msgspec.Struct):
    """What is being erased, as it is written before the first byte is removed. Paths only, no content."""

    session_id: str
    path: str
    files: list[str]
    blobs: list[str]
    tokens: list[str]
    caches: list[str]
    at: int
    count: int
    bytes: int
    prompts: int


def erase(store: Store, ref: str, resolve: Callable[[str], str], *, confirm: bool, caches: Sequence[str]) -> Erasure:
    """Return what would be erased with a session; with `confirm`, erase it."""
    path = _located(store, ref, resolve)
    with storage_failures(path, "erase the session"), ExitStack() as stack:
        work = _Work.begin(store, path, caches)
        work.hold(stack)
        plan, record = work.plan()
        if not confirm:
            return plan
        name = f"{_folder(store)}/{record.at}-{sha256(record.session_id.encode()).hexdigest()[:16]}"
        atomic.make_folders(store.fs, _folder(store))
        atomic.replace(store.fs, name + _PLAN, (msgspec.json.encode(record),))
        work.carry_out(name)
        return plan._replace(done=True)


def pending(store: Store) -> list[str]:
    """Return the records of erasures that were interrupted."""
    folder = _folder(store)
    with storage_failures(folder, "look for interrupted erasures"):
        try:
            return [f"{folder}/{name}" for name in store.fs.names(folder) if name.endswith(_PLAN)]
        except (FileNotFoundError, NotADirectoryError):
            return []


def finish(store: Store) -> list[str]:
    """Continue the erasures that were interrupted; return the ids of their sessions. Raise the first failure at the end."""
    finished = []
    failures: list[SessileError] = []
    for path in pending(store):
        try:
            finished.append(_finish(store, path))
        except SessionNotFound:
            continue  # another process has finished it
        except SessileError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return finished


def _finish(store: Store, path: str) -> str:
    with storage_failures(path, "continue an erasure"):
        data = atomic.read_all(store.fs, path)
    try:
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = "erase the session again, then delete this file"
        raise Damaged("the record of an erasure cannot be read", path=path, hint=hint) from error
    with storage_failures(path, "continue an erasure"), ExitStack() as stack:
        work = _Work(store, record)
        work.hold(stack)
        work.carry_out(path.removesuffix(_PLAN))
    return record.session_id


def _folder(store: Store) -> str:
    return f"{store.layout.root}/erased"


def _located(store: Store, ref: str, resolve: Callable[[str], str]) -> str:
    """Return the path of a session of the store, which may be in the trash or a draft."""
    layout = store.layout
    try:
        path = posixpath.normpath(resolve(ref))
    except SessionNotFound:
        deleted = (path for deletion in store.deletions() for path in deletion.paths)
        found = next((path for path in deleted if _id_of(path) == ref and layout.owns(path)), None)
        if found is None:
            raise
        return found
    if not layout.owns(path) and not layout.keeps(path):
        hint = "it belongs to another agent: delete it there, or move it to the trash with `sessile prune`"
        raise Invalid("only sessions of this store can be erased", path=path, hint=hint)
    within = path.removeprefix(f"{layout.sessions}/").split("/")
    if layout.owns(path) and len(within) > 2:
        owner = f"{layout.sessions}/{within[0]}/{within[1]}{JOURNAL}"
        raise Invalid("this file belongs to a session", path=path, hint=f"erase the session: {owner}")
    published = drafts.published_path(path)
    names = (published, drafts.draft_path(published))
    if not any(atomic.exists(store.fs, name) for name in names) and not _in_trash(store, published):
        raise SessionNotFound(path=path, hint="list the sessions")
    return published


def _in_trash(store: Store, path: str) -> bool:
    return any(path in deletion.paths for deletion in store.deletions())


def _id_of(path: str) -> str:
    """Return the id in the name of a session file."""
    stem = stem_of(drafts.published_path(path))
    return stem.partition("_")[2] or stem  # <timestamp>_<session id>


# -- one erasure


class _Work:
    """The erasure of one session."""

    def __init__(self, store: Store, record: Record) -> None:
        self._store = store
        self._fs = store.fs
        self._record = record

    @classmethod
    def begin(cls, store: Store, path: str, caches: Sequence[str]) -> _Work:
        """Find what belongs to a session."""
        places = dict.fromkeys((store.layout.cache, f"{store.layout.root}/cache", *caches))
        record = Record(_id_of(path), path, [], [], [], list(places), store.now(), 0, 0, 0)
        work = cls(store, record)
        record.files, record.tokens = work._find()
        if not record.files:
            raise SessionNotFound(path=path, hint="list the sessions")
        return work

    # -- finding

    def _find(self) -> tuple[list[str], list[str]]:
        """Return the files and folders of the session, and the deletions that hold nothing else."""
        layout, path = self._store.layout, self._record.path
        stem = stem_of(path)
        found: list[str] = []
        if layout.keeps(path):
            folder = posixpath.dirname(path)
            found += [f"{folder}/{name}" for name in self._names(folder) if _is_of(name, stem)]
            return found, []
        for project in self._names(layout.sessions):
            folder = f"{layout.sessions}/{project}"
            if self._is_folder(folder):
                found += [f"{folder}/{name}" for name in self._names(folder) if _is_of(name, stem)]
        found += [f"{layout.originals}/{name}" for name in self._names(layout.originals) if _is_of(name, stem)]
        tokens = []
        for deletion in self._store.deletions():
            mine = [number for number, each in enumerate(deletion.paths) if _is_of(posixpath.basename(each), stem)]
            found += [f"{layout.trash}/{deletion.token}/{number}" for number in mine]
            if mine and len(mine) == len(deletion.paths):
                tokens.append(deletion.token)
        stems = {self._record.session_id, *self._origins(found)}
        for each, _ in session_bytes.below(self._fs, layout.kept):
            if stem_of(each) in stems and not any(each.startswith(f"{other}/") for other in found):
                found.append(each)
        turns = f"{layout.root}/gateway/turns/{self._record.session_id}{JOURNAL}"
        found += [each for each in (turns,) if atomic.exists(self._fs, each)]
        main = [each for each in found if each in (path, drafts.draft_path(path))]
        exist = [each for each in found if each not in main and atomic.exists(self._fs, each)]
        return [*exist, *main], tokens  # the journal comes last

    def _origins(self, found: Iterable[str]) -> Iterator[str]:
        """Yield the names of the files that the session was imported from."""
        for path in found:
            if path.endswith((JOURNAL, DRAFT)) and self._is_plain(path):
                source = self._header(path).get("source")
                if isinstance(source, dict) and isinstance(source.get("path"), str):
                    yield stem_of(source["path"])

    def _names(self, folder: str) -> list[str]:
        with storage_failures(folder, "look for files of the session"):
            try:
                return self._fs.names(folder)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _is_folder(self, path: str) -> bool:
        return atomic.exists(self._fs, path) and atomic.is_folder(self._fs, path)

    def _is_plain(self, path: str) -> bool:
        return atomic.exists(self._fs, path) and atomic.is_plain(self._fs, path)

    def _contents(self) -> Iterator[tuple[str, int]]:
        """Yield the regular files of the session with their sizes."""
        for top in self._record.files:
            for path, status in session_bytes.files_below(self._fs, top):
                yield path, status.st_size

    def _header(self, path: str) -> dict[str, Any]:
        """Return the first line of a file as an object; an empty one if it is none."""
        with RawFile(self._fs, path) as file:
            return _object(file.peek(0, CHUNK).partition(b"\n")[0])

    def _prompts(self) -> set[str]:
        """Return what users said in the session, as the history stores it."""
        found = set()
        for path, _ in self._contents():
            with atomic.reading(self._fs, path) as fd:
                for line in atomic.lines(self._fs, fd):
                    message = _object(line).get("message") if b'"user"' in line else None
                    if isinstance(message, dict) and message.get("role") == "user":
                        found.add(joined_text(message.get("content")).strip())
        return found - {""}

    def _blobs(self) -> tuple[list[str], int]:
        """Return the blobs that only this session refers to, and how many it shares with others."""
        found: set[str] = set()
        waiting = {each for path, _ in self._contents() for each in session_bytes.references(self._fs, path)}
        while waiting:
            found |= waiting
            inside = (self._blob_file(each) for each in waiting)
            files = [path for path in inside if self._is_plain(path)]
            waiting = {each for path in files for each in session_bytes.references(self._fs, path)} - found
        left = self._unused(found)
        return sorted(each for each in left if self._store.blobs.has(each)), len(found) - len(left)

    def _unused(self, found: set[str]) -> set[str]:
        """Return the blobs of these that no other file of the store refers to."""
        own = tuple(f"{each}/" for each in (*self._record.files, *map(self._blob_file, found)))
        used: set[str] = set()
        if not found:
            return used
        for path, status in session_bytes.below(self._fs, self._store.layout.root):
            if f"{path}/".startswith((*own, *(f"{cache}/" for cache in self._record.caches))):
                continue
            if stat.S_ISLNK(status.st_mode):
                hint = "remove the link, then try again"
                raise UnsafePath("a link may lead to sessions that use the same blobs", path=path, hint=hint)
            if stat.S_ISREG(status.st_mode):
                used |= session_bytes.references(self._fs, path) & found
        return found - used

    def _blob_file(self, digest: str) -> str:
        return f"{self._store.layout.blobs}/{digest}"

    def _forks(self) -> tuple[str, ...]:
        """Return the sessions that name this one as their parent."""
        name = posixpath.basename(self._record.path)
        found = []
        for path, _ in session_bytes.journals(self._fs, self._store.layout.sessions):
            if path not in self._record.files and self._is_plain(path):
                header = self._header(path)
                if posixpath.basename(str(header.get("parentSession") or "")) == name:
                    found.append(path)
        return tuple(found)

    def plan(self) -> tuple[Erasure, Record]:
        """Return what will be removed, and the record of it."""
        record = self._record
        blobs, shared = self._blobs()
        prompts = self._count_prompts()
        parts = [Part(self._what(top), top, session_bytes.bytes_below(self._fs, top)) for top in record.files]
        for path in self._cached():
            if atomic.exists(self._fs, path):
                parts.append(Part("cache, made again", path, self._fs.lstat(path).st_size))
        sizes = [sum(map(len, self._store.blobs.pieces(each))) for each in blobs]
        record.blobs, record.prompts = blobs, prompts
        record.count = len(parts) + len(blobs)
        record.bytes = sum(part.bytes for part in parts) + sum(sizes)
        parts += [Part("blob", self._store.blobs.path(each), size) for each, size in zip(blobs, sizes, strict=True)]
        found = (record.session_id, record.path, tuple(parts), tuple(blobs), shared, prompts, self._forks())
        return Erasure(*found, record.bytes), record

    def _what(self, path: str) -> str:
        layout = self._store.layout
        if not layout.owns(path):
            top = path.removeprefix(f"{layout.root}/").partition("/")[0]
            return {"originals": "original", "trash": "deleted", "kept": "kept copy", "gateway": "turns"}.get(top, top)
        name = posixpath.basename(path)
        if atomic.target_of(name) is not None:
            return "left by a dead process"
        if name.endswith(JOURNAL):
            return "session"
        return "draft" if name.endswith(DRAFT) else "artifacts" if self._is_folder(path) else "set aside"

    def _cached(self) -> list[str]:
        """Return the names of the files in caches that may hold something of the session."""
        found = []
        journals = [path for path, _ in self._contents()]
        for cache in self._record.caches:
            layout = Layout(self._store.layout.root, cache)
            found += [f"{cache}/{name}" for name in _CATALOG]
            found += [layout.index(drafts.published_path(each)) for each in (self._record.path, *journals)]
        return list(dict.fromkeys(found))

    # -- locks

    def hold(self, stack: ExitStack) -> None:
        """Hold the locks of the session's journals. Raise if a process has one of them open or locked."""
        journals = [path for path, _ in self._contents() if path.endswith((JOURNAL, DRAFT))]
        in_use = (open_files() or frozenset()) if self._store.database is None else frozenset()
        for path in journals:
            with storage_failures(path, "look at the session"):
                status = self._fs.lstat(path)
            if identity(status) in in_use:
                hint = "close it there, then try again; nothing was erased"
                raise SessionBusy("a process has the session open", path=path, hint=hint)
            file = stack.enter_context(RawFile(self._fs, path))
            file.hold(patience=0)
        root = self._store.layout.root
        if is_held(self._fs, f"{root}/gateway.lock") and self._is_bound():
            hint = "stop the gateway, or delete the conversation there first; nothing was erased"
            raise Conflict("a gateway is running that uses the session", path=self._record.path, hint=hint)

    def _is_bound(self) -> bool:
        entries = (own_bindings(self._store, agent).read().values() for agent in self._agents())
        return any(entry.session_id == self._record.session_id for each in entries for entry in each)

    def _agents(self) -> list[str]:
        return agents_in(self._fs, self._store.layout.root)

    # -- removing

    def carry_out(self, name: str) -> None:
        """Remove everything, then replace the record by a note. `name` is that of both, without its ending."""
        record, store = self._record, self._store
        self._forget_prompts()
        if store.layout.owns(record.path):
            self._forget_conversations()
            self._forget_names()
        cached = self._cached()
        for path in cached:
            self._remove(path)
        for digest in sorted(self._unused({*record.blobs})):
            store.blobs.remove(digest)
        for path in record.files:
            self._remove(path)
        for path in cached:
            self._remove(path)  # again: a reader may have made an index in the meantime
        for token in record.tokens:
            self._remove(f"{store.layout.trash}/{token}")
        for cache in record.caches:
            self._forget_catalog(cache)
        store._purge([path for path in record.files if path.endswith((JOURNAL, DRAFT))], record.session_id)
        note = {
            "session_sha256": sha256(record.session_id.encode()).hexdigest(),
            "erased": iso_timestamp(record.at),
            "files": record.count,
            "bytes": record.bytes,
            "blobs": len(record.blobs),
            "prompts": record.prompts,
        }
        atomic.replace(self._fs, name + _NOTE, (json.dumps(note, indent=1).encode() + b"\n",))
        with storage_failures(name, "finish the erasure"):
            atomic.remove(self._fs, name + _PLAN)
            self._fs.sync_directory(posixpath.dirname(name))

    def _remove(self, top: str) -> None:
        with storage_failures(top, "erase a file"):
            for path, status in reversed(list(session_bytes.below(self._fs, top))):
                (self._fs.rmdir if stat.S_ISDIR(status.st_mode) else self._fs.unlink)(path)
            if atomic.exists(self._fs, posixpath.dirname(top)):
                self._fs.sync_directory(posixpath.dirname(top))

    def _forget_catalog(self, cache: str) -> None:
        if self._store.database is None:
            with closing(CatalogFile(cache, (), "sessions", 0)) as file:
                file.erase()

    def _count_prompts(self) -> int:
        path = self._store.layout.history
        if not self._is_plain(path):
            return 0
        prompts = self._prompts()
        with HistoryStorage(path, readonly=True) as history:
            return history.count(prompts)

    def _forget_prompts(self) -> None:
        """Remove the prompts of the session from the history. Its journal is removed later, so this can be repeated."""
        path = self._store.layout.history
        prompts = self._prompts()
        if not prompts or self._store.database is not None:
            return
        if self._is_plain(path):
            with HistoryStorage(path) as history:
                history.erase(prompts)
        folder, name = posixpath.split(path)
        aside = [f"{folder}/{each}" for each in self._names(folder) if each.startswith(f"{name}.")]
        for each in aside:  # damaged histories that were set aside: nothing in them can be removed alone
            for file, _ in list(session_bytes.files_below(self._fs, each)):
                data = atomic.read_all(self._fs, file)
                if any(prompt.encode("utf-8", "surrogatepass") in data for prompt in prompts):
                    self._remove(file)

    def _forget_conversations(self) -> None:
        """Remove the session from the gateway's bindings, their copies, and its log of turns."""
        session_id, root = self._record.session_id, self._store.layout.root
        for agent in self._agents():
            own_bindings(self._store, agent).update_all(
                lambda entries: {key: None for key, entry in entries.items() if entry.session_id == session_id},
                now=self._store.now(),
                keep=True,
            )
            for path, _ in list(session_bytes.files_below(self._fs, f"{root}/agents/{agent}")):
                self._forget_in(path)
        if self._store.database is None:
            TurnLog(self._fs, root).erase(session_id)

    def _forget_in(self, path: str) -> None:
        """Remove the bindings of the session from a copy or an archive."""
        needle = self._record.session_id.encode()
        data = atomic.read_all(self._fs, path)
        if needle not in data or path.endswith(JOURNAL):
            return
        try:
            value = _without(json.loads(data), self._record.session_id)
        except (ValueError, RecursionError):
            value = None
        if value is None:
            self._remove(path)
        else:
            atomic.replace(self._fs, path, (json.dumps(value, indent=1).encode("ascii") + b"\n",))

    def _forget_names(self) -> None:
        """Remove the session from the pins, and the notes of the terminals that used it last."""
        store, record = self._store, self._record
        if record.session_id in store.pins.names():
            store.pins.remove(record.session_id)
        folder = f"{store.layout.root}/terminal-sessions"
        for name in self._names(folder):
            if stem_of(record.path).encode() in atomic.read_all(self._fs, f"{folder}/{name}"):
                self._remove(f"{folder}/{name}")


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_of(name: str, stem: str) -> bool:
    """Return whether a name in a folder belongs to the session file with this stem."""
    plain = atomic.target_of(name) or name
    return plain == stem or plain.startswith(f"{stem}.")


def _without(value: Any, session_id: str) -> Any:
    """Return a JSON value without the entries of a session; `None` if it is about nothing else."""
    if not isinstance(value, dict):
        return [each for each in value if each != session_id] if isinstance(value, list) else value
    if value.get("sessionId") == session_id:
        return None
    kept = {}
    for key, each in value.items():
        new = _without(each, session_id)
        if isinstance(each, dict) and new is None:
            if key == "entry":
                return None  # the record of one binding
            continue
        kept[key] = new
    return kept
