"""Sessions that another program knows by names of its own: threads, conversations, users of an agent framework.

    threads = NamedSessions(store, "langgraph")
    session = threads.open("", "thread-1")

Rules: the file of a session follows from program, scope and name, so to find one nothing is listed, and of many processes that
begin it at once one does and all get it. Names may be any text; only a hash of them becomes a part of a path. Sessions are
kept open and shared: nobody closes one but `close`. A deleted one goes to the trash, and the next who asks begins a new one,
also in another process: a kept session whose file is another one by now is not given out again. A leaf that was moved is
stored when `close` is called; one that must survive that its session makes room for others is moved with `durable`.

What is said in the sessions is for the program to know.
"""

from __future__ import annotations

import posixpath
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, Self

from sessile.core import entries as make
from sessile.core.ids import check_session_id, sha256
from sessile.core.text import clean_name, iso_timestamp
from sessile.discovery import find_session_files, read_header
from sessile.errors import SessionNotFound, storage_failures
from sessile.session import Session
from sessile.storage.layout import JOURNAL
from sessile.store import Store

NAMED = "named"  # the member of a header that says how the program calls the session

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 60  # letters of a scope that a person sees in the name of its folder


class Named(NamedTuple):
    """A session of a program: how the program calls it, where it lies, and when something was appended last."""

    scope: str
    name: str
    path: str
    modified: int


class NamedSessions:
    """The sessions of one program in a store. `keep_open` is how many stay open though nobody uses them."""

    def __init__(self, store: Store, program: str, *, keep_open: int = 64) -> None:
        self.store = store
        self.program = check_session_id(program)
        self._keep_open = keep_open
        self._recent: OrderedDict[str, Session] = OrderedDict()
        self._open: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        # Of the files, when they were opened.
        self._inodes: weakref.WeakKeyDictionary[Session, int | None] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def find(self, scope: str, name: str) -> Session | None:
        """The session of that name, open for appending; `None` if there is none."""
        path = self.path(scope, name)
        with self._lock:
            inode = self._inode(path)
            if inode is None:
                self._let_go(path)
                return None
            return self._kept(path, inode) or self._keep(path, self.store.open(path))

    def open(self, scope: str, name: str, *, title: str | None = None) -> Session:
        """The session of that name, open for appending, and begun with that title if there is none."""
        with self._lock:
            found = self.find(scope, name)
            if found is not None:
                return found
            path = self.path(scope, name)
            header = make.header(
                self._session_id(scope, name),
                iso_timestamp(self.store.now()),
                self._cwd(scope),
                title=(clean_name(title) if title else None) or None,
                **{NAMED: {"program": self.program, "scope": scope, "name": name}},
            )
            return self._keep(path, self.store.obtain(path, header))

    def list(self, scope: str | None = None) -> list[Named]:
        """The sessions of a scope, or of all, the one that was changed last first."""
        found = [named for path in self._files(scope) if (named := self._named(path)) is not None]
        wanted = [named for named in found if scope in (None, named.scope)]
        return sorted(wanted, key=lambda named: named.modified, reverse=True)

    def delete(self, scope: str, name: str) -> str | None:
        """Move a session to the trash of the store; gives the token that brings it back, `None` if there is none."""
        path = self.path(scope, name)
        with self._lock:
            self._let_go(path)
            try:
                return self.store.delete(path).token
            except SessionNotFound:
                return None

    def close(self) -> None:
        """Let go of all sessions."""
        with self._lock:
            for path in list(self._open):
                self._let_go(path)

    def path(self, scope: str, name: str) -> str:
        """Where the session of that name lies, or would."""
        folder = self.store.layout.folder(self._cwd(scope))
        return f"{folder}/{self.program}_{self._session_id(scope, name)}{JOURNAL}"

    # -- names

    def _session_id(self, scope: str, name: str) -> str:
        """An id in the form of a UUID (of version 8: made by a rule of one's own)."""
        digits = sha256("\0".join((self.program, _escaped(scope), _escaped(name))).encode()).hexdigest()
        return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"

    def _cwd(self, scope: str) -> str:
        """A folder for the scope: as a person would name it, and with a hash where that is not all of it."""
        if not scope:
            return f"/{self.program}"
        told = _UNSAFE.sub("-", scope)[:_LONGEST].strip(".-")
        digits = "" if told == scope else sha256(_escaped(scope).encode()).hexdigest()[:12]
        return f"/{self.program}/{'-'.join(filter(None, (told, digits)))}"

    def _files(self, scope: str | None) -> Iterator[str]:
        store = self.store
        if scope is not None:
            folders = [store.layout.folder(self._cwd(scope))]
        else:
            with storage_failures(store.layout.sessions, "list the sessions"):
                try:
                    names = store.fs.names(store.layout.sessions)
                except (FileNotFoundError, NotADirectoryError):
                    return
            folders = [f"{store.layout.sessions}/{name}" for name in names if name.startswith(f"--{self.program}-")]
        for folder in folders:
            for path in find_session_files(store.fs, folder):
                if posixpath.basename(path).startswith(f"{self.program}_"):
                    yield path

    def _named(self, path: str) -> Named | None:
        found = read_header(self.store.fs, path)
        names = None if found is None else found.header.get(NAMED)
        if found is None or not isinstance(names, dict) or names.get("program") != self.program:
            return None
        scope, name = names.get("scope"), names.get("name")
        if not isinstance(scope, str) or not isinstance(name, str):
            return None
        return Named(scope, name, path, found.modified_ns // 1_000_000)

    # -- open sessions

    def _inode(self, path: str) -> int | None:
        """Which file a session is; `None` if it has none yet, or one that somebody has only just begun."""
        with storage_failures(path, "look for the session"):
            try:
                status = self.store.fs.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return status.st_ino if status.st_size else None

    def _kept(self, path: str, inode: int) -> Session | None:
        session = self._open.get(path)
        if session is None or self._inodes[session] != inode:
            return None
        return self._use(path, session)

    def _keep(self, path: str, session: Session) -> Session:
        """Share a session; its file is closed when nobody has it any more."""
        weakref.finalize(session, session._journal.close)
        self._open[path] = session
        self._inodes[session] = self._inode(path)
        return self._use(path, session)

    def _use(self, path: str, session: Session) -> Session:
        """Note that a session was used last; the one that was not for longest stays open only if somebody has it."""
        self._recent[path] = session
        self._recent.move_to_end(path)
        while len(self._recent) > self._keep_open:
            self._recent.popitem(last=False)
        return session

    def _let_go(self, path: str) -> None:
        self._recent.pop(path, None)
        session = self._open.pop(path, None)
        if session is not None:
            self._inodes.pop(session, None)
            session.close()


def _escaped(text: str) -> str:
    """The text with half emojis and NULs spelled out, so that it can be encoded and joined."""
    return text.encode("ascii", "backslashreplace").decode("ascii").replace("\0", "\\0")
