"""Sessions that another program identifies by its own names: threads, conversations or users of an agent framework.

    threads = NamedSessions(store, "langgraph")
    session = threads.open("", "thread-1")

Rules:

- The path of a session follows from program, scope and name. Finding one needs no listing, and of several processes that
  create the same one, one succeeds and all get it. Names may be any text; only a hash of them is part of the path.
- Sessions stay open and are shared. Only `close` closes them; a session whose file was replaced is opened again.
- A deleted session goes to the trash, and the next `open`, also in another process, creates a new one.
- A moved leaf is stored by `close`. To store it before, move it with `durable=True`.
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
from sessile.discovery import read_header
from sessile.errors import SessionNotFound, storage_failures
from sessile.session import Session
from sessile.storage.layout import JOURNAL
from sessile.storage.walk import find_session_files
from sessile.store import Store

NAMED = "named"  # the member of a header with the program's name for the session

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_SCOPE = 60  # characters of a scope in the name of its folder


class Named(NamedTuple):
    """A session of a program: its scope, name and path, and when it was changed last."""

    scope: str
    name: str
    path: str
    modified_ns: int  # since 1970

    @property
    def modified(self) -> int:
        """When it was changed last, in milliseconds since 1970."""
        return self.modified_ns // 1_000_000


class NamedSessions:
    """The sessions of one program in a store.

    Args:
        store: The store.
        program: The name of the program, which prefixes its files.
        keep_open: How many unused sessions stay open.

    Example:
        ```python
        with NamedSessions(store, "bot") as chats:
            chats.open("telegram", "chat 42").append_message({"role": "user", "content": "hello"})
        ```
    """

    def __init__(self, store: Store, program: str, *, keep_open: int = 64) -> None:
        self.store = store
        self.program = check_session_id(program)
        self._keep_open = keep_open
        self._recent: OrderedDict[str, Session] = OrderedDict()
        self._open: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        # The inodes of the files when they were opened.
        self._inodes: weakref.WeakKeyDictionary[Session, int | None] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def find(self, scope: str, name: str) -> Session | None:
        """Return the session of this name, open for appending; `None` if it does not exist."""
        path = self.path(scope, name)
        with self._lock:
            inode = self._inode(path)
            if inode is None:
                self._drop(path)
                return None
            return self._shared(path, inode) or self._share(path, self.store.open(path))

    def open(self, scope: str, name: str, *, title: str | None = None) -> Session:
        """Return the session of this name, open for appending; create it with `title` if it does not exist."""
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
            return self._share(path, self.store.obtain(path, header))

    def list(self, scope: str | None = None) -> list[Named]:
        """Return the sessions of a scope, or of all scopes; the most recently changed one is first."""
        found = [named for path in self._files(scope) if (named := self._named(path)) is not None]
        wanted = [named for named in found if scope in (None, named.scope)]
        return sorted(wanted, key=lambda named: named.modified_ns, reverse=True)

    def delete(self, scope: str, name: str) -> str | None:
        """Move a session to the trash and return the token for `Store.undo`; `None` if it does not exist."""
        path = self.path(scope, name)
        with self._lock:
            self._drop(path)
            try:
                return self.store.delete(path).token
            except SessionNotFound:
                return None

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            for path in list(self._open):
                self._drop(path)

    def path(self, scope: str, name: str) -> str:
        """Return the path of the session of this name, whether it exists or not."""
        folder = self.store.layout.folder(self._cwd(scope))
        return f"{folder}/{self.program}_{self._session_id(scope, name)}{JOURNAL}"

    # -- names

    def _session_id(self, scope: str, name: str) -> str:
        """Return the id: a UUID of version 8, derived from the names."""
        digits = sha256("\0".join((self.program, _escaped(scope), _escaped(name))).encode()).hexdigest()
        return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"

    def _cwd(self, scope: str) -> str:
        """Return the project of a scope: its readable characters, and a hash if there are others."""
        if not scope:
            return f"/{self.program}"
        readable = _UNSAFE.sub("-", scope)[:_MAX_SCOPE].strip(".-")
        digits = "" if readable == scope else sha256(_escaped(scope).encode()).hexdigest()[:12]
        return f"/{self.program}/{'-'.join(filter(None, (readable, digits)))}"

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
        return Named(scope, name, path, found.modified_ns)

    # -- open sessions

    def _inode(self, path: str) -> int | None:
        """Return the inode of a session file; `None` if there is none, or only an empty one."""
        with storage_failures(path, "look for the session"):
            try:
                status = self.store.fs.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return status.st_ino if status.st_size else None

    def _shared(self, path: str, inode: int) -> Session | None:
        session = self._open.get(path)
        if session is None or self._inodes[session] != inode:
            return None
        return self._use(path, session)

    def _share(self, path: str, session: Session) -> Session:
        """Share a session; its file is closed when the last reference is gone."""
        weakref.finalize(session, session._journal.close)
        self._open[path] = session
        self._inodes[session] = self._inode(path)
        return self._use(path, session)

    def _use(self, path: str, session: Session) -> Session:
        """Mark a session as used; the least recently used one stays open only while it is referenced."""
        self._recent[path] = session
        self._recent.move_to_end(path)
        while len(self._recent) > self._keep_open:
            self._recent.popitem(last=False)
        return session

    def _drop(self, path: str) -> None:
        self._recent.pop(path, None)
        session = self._open.pop(path, None)
        if session is not None:
            self._inodes.pop(session, None)
            session.close()


def _escaped(text: str) -> str:
    """Return the text in ASCII, with NULs escaped, so that it can be hashed."""
    return text.encode("ascii", "backslashreplace").decode("ascii").replace("\0", "\\0")
