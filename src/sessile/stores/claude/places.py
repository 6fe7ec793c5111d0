"""Finding transcripts below a projects folder, as the SDKs look for them.

Rules:

- A directory is looked for under its slug. Of a long path older releases made the hash in another way, so that folders which
  begin like it count as well, if a session in them was begun in that directory; the Python SDK takes the first of them.
- Worktrees of a directory come from the caller: this layer runs no `git`. They count if there are two or more.
- A folder or file that vanishes or cannot be read is passed over, and told to whoever asks for problems.

It looks at names, and into sessions only for long paths; which of several transcripts answers is the readers' choice.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sessile.errors import SessileError, storage_failures
from sessile.formats.claude.rows import View
from sessile.formats.claude.slug import LONGEST_SLUG, long_prefix, python_sdk_slug, slug
from sessile.storage.base import Filesystem
from sessile.stores.claude.ends import holds_session_of
from sessile.stores.claude.paths import agent_of, projects_dir, session_of

Worktrees = Callable[[str], Sequence[str]]
"""The paths of all git worktrees of the repository around a directory; none outside of one."""

Problems = list[SessileError]


class Folder(NamedTuple):
    """A project folder, the directory that it was found for, if it was, and the worktrees around that, if it has several."""

    path: str
    directory: str | None = None
    worktrees: tuple[str, ...] = ()


class Places:
    """The project folders and transcripts below a config home."""

    def __init__(self, fs: Filesystem, config_home: str, worktrees: Worktrees, problems: Problems | None) -> None:
        self._fs = fs
        self._projects = projects_dir(config_home)
        self._worktrees = worktrees
        self._problems: Problems = [] if problems is None else problems

    def all_folders(self) -> list[Folder]:
        """Every project folder, by name."""
        names = self.names(self._projects)
        return [Folder(posixpath.join(self._projects, name)) for name in names if self._is_folder(name)]

    def folders_of(self, directory: str, view: View) -> list[Folder]:
        """The project folders of a directory: one, or of a long path also those whose names were hashed in another way."""
        name = self._slug(directory, view)
        found = [name] if self._is_folder(name) else []
        prefix = long_prefix(name)
        if prefix is not None and (view == "ts" or not found):
            found += [other for other in self._alike(prefix, directory, view) if other != name]
        if view == "python-sdk":
            del found[1:]
        return [Folder(posixpath.join(self._projects, each), directory) for each in found]

    def _alike(self, prefix: str, directory: str, view: View) -> Iterator[str]:
        """The folders whose names begin like that of a long path; the Python SDK does not look whether they belong to it."""
        for name in self.names(self._projects):
            if (
                name.startswith(prefix)
                and self._is_folder(name)
                and (view == "python-sdk" or self._is_of(name, directory))
            ):
                yield name

    def _is_of(self, name: str, directory: str) -> bool:
        try:
            return holds_session_of(self._fs, posixpath.join(self._projects, name), directory)
        except OSError:
            return False

    def folders_to_list(self, directory: str, include_worktrees: bool, view: View) -> list[Folder]:
        """The project folder of a directory and those of its worktrees, each once."""
        found = self.folders_of(directory, view)
        worktrees = self._worktrees(directory) if include_worktrees else ()
        if len(worktrees) <= 1:
            return found
        own = tuple(worktrees)
        found = [folder._replace(worktrees=(directory, *own)) for folder in found]
        known = {folder.path for folder in found}
        slugs = sorted(((self._slug(tree, view), tree) for tree in own), key=lambda named: len(named[0]), reverse=True)
        for folder in self.all_folders():
            if folder.path not in known:
                name = posixpath.basename(folder.path)
                of = next((tree for slugged, tree in slugs if self._is_worktree(name, slugged, tree, view)), None)
                found += [] if of is None else [Folder(folder.path, of, (directory, *own))]
        return found

    def _slug(self, directory: str, view: View) -> str:
        return slug(directory) if view == "ts" else python_sdk_slug(directory)

    def _is_worktree(self, name: str, slugged: str, worktree: str, view: View) -> bool:
        """Whether a project folder is that of a worktree; names of long paths need not have the same hash."""
        if name == slugged:
            return True
        if (
            view == "python-sdk"
        ):  # which compares the whole slug, so that only one of just the longest length may differ
            return len(slugged) >= LONGEST_SLUG and name.startswith(f"{slugged}-")
        prefix = long_prefix(slugged)
        return prefix is not None and name.startswith(prefix) and self._is_of(name, worktree)

    def folders_to_search(self, directory: str | None, view: View) -> Iterator[Folder]:
        """The project folders in which a session may be, in the order in which they are looked at."""
        if directory is None:
            yield from self.all_folders()
            return
        for place in (directory, *(other for other in self._worktrees(directory) if other != directory)):
            yield from self.folders_of(place, view)

    def transcripts(self, folder: Folder) -> Iterator[tuple[str, str]]:
        """The id and path of each session in a project folder."""
        for name in self.names(folder.path):
            session_id = session_of(name)
            if session_id is not None:
                yield session_id, posixpath.join(folder.path, name)

    def agents(self, folder: str, view: View) -> Iterator[tuple[str, str]]:
        """The id and path of each sub-agent below a folder; names and sub-folders of a folder in one order.

        The TypeScript SDK knows no links here.
        """
        waiting = [folder]
        while waiting:
            path = waiting.pop()
            agent_id = agent_of(posixpath.basename(path)) if path != folder else None
            if agent_id is not None and not self._is_directory(path):
                if view == "python-sdk" or self._is_file(path):
                    yield agent_id, path
            elif path == folder or self._is_directory(path):
                waiting.extend(posixpath.join(path, name) for name in reversed(self.names(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it cannot be read."""
        try:
            with storage_failures(folder, "list the sessions"):
                return self._fs.names(folder)
        except SessileError as error:
            if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                self._problems.append(error)
            return []

    def _is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(self._mode(path))

    def _is_file(self, path: str) -> bool:
        return stat.S_ISREG(self._mode(path))

    def _mode(self, path: str) -> int:
        try:
            return self._fs.lstat(path).st_mode
        except OSError:
            return 0  # whatever cannot be looked at is none of what is asked for

    def _is_folder(self, name: str) -> bool:
        """Whether a name in the projects folder is a folder, or a link to one."""
        path = posixpath.join(self._projects, name)
        try:
            mode = self._fs.lstat(path).st_mode
            return stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and bool(self._fs.names(path)))
        except OSError:
            return False
