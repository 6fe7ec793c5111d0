"""Finding transcripts below a projects folder, as the SDKs look for them.

Rules:

- A directory is looked for under its slug; of a long path, whose hash older releases made in another way, under the first
  folder that begins like it.
- Worktrees of a directory come from the caller: this layer runs no `git`. They count if there are two or more.
- A folder or file that vanishes or cannot be read is passed over, and told to whoever asks for problems.

It only looks at names; which of several transcripts answers is the readers' choice.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sessile.errors import SessileError, storage_failures
from sessile.formats.claude.heads import View
from sessile.formats.claude.slug import long_prefix, python_sdk_slug, slug
from sessile.storage.base import Filesystem
from sessile.stores.claude.paths import agent_of, projects_dir, session_of

Worktrees = Callable[[str], Sequence[str]]
"""The paths of all git worktrees of the repository around a directory; none outside of one."""

Problems = list[SessileError]


class Folder(NamedTuple):
    """A project folder, and the directory that it was found for, if it was."""

    path: str
    directory: str | None = None


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

    def folder_of(self, directory: str, view: View) -> Folder | None:
        """The project folder of a directory, if there is one."""
        name = slug(directory) if view == "ts" else python_sdk_slug(directory)
        if self._is_folder(name):
            return Folder(posixpath.join(self._projects, name), directory)
        prefix = long_prefix(name)
        for other in self.names(self._projects) if prefix else ():
            if prefix and other.startswith(prefix) and self._is_folder(other):
                return Folder(posixpath.join(self._projects, other), directory)
        return None

    def folders_to_list(self, directory: str, include_worktrees: bool, view: View) -> list[Folder]:
        """The project folder of a directory and those of its worktrees, each once."""
        own = self.folder_of(directory, view)
        found = [own] if own else []
        worktrees = self._worktrees(directory) if include_worktrees else ()
        if len(worktrees) <= 1:
            return found
        slugs: dict[str, str] = {}
        for worktree in worktrees:
            slugs.setdefault(slug(worktree) if view == "ts" else python_sdk_slug(worktree), worktree)
        for folder in self.all_folders():
            directory_of = slugs.get(posixpath.basename(folder.path))
            if directory_of is not None and (own is None or folder.path != own.path):
                found.append(Folder(folder.path, directory_of))
        return found

    def folders_to_search(self, directory: str | None, view: View) -> Iterator[Folder]:
        """The project folders in which a session may be, in the order in which they are looked at."""
        if directory is None:
            yield from self.all_folders()
            return
        for place in (directory, *(other for other in self._worktrees(directory) if other != directory)):
            folder = self.folder_of(place, view)
            if folder is not None:
                yield folder

    def transcripts(self, folder: Folder) -> Iterator[tuple[str, str]]:
        """The id and path of each session in a project folder."""
        for name in self.names(folder.path):
            session_id = session_of(name)
            if session_id is not None:
                yield session_id, posixpath.join(folder.path, name)

    def agents(self, folder: str) -> Iterator[tuple[str, str]]:
        """The id and path of each sub-agent below a folder; names and sub-folders of a folder in one order."""
        waiting = [folder]
        while waiting:
            path = waiting.pop()
            agent_id = agent_of(posixpath.basename(path)) if path != folder else None
            if agent_id is not None and not self._is_directory(path):
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
        try:
            return stat.S_ISDIR(self._fs.lstat(path).st_mode)
        except OSError:
            return False

    def _is_folder(self, name: str) -> bool:
        """Whether a name in the projects folder is a folder, or a link to one."""
        path = posixpath.join(self._projects, name)
        try:
            mode = self._fs.lstat(path).st_mode
            return stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and bool(self._fs.names(path)))
        except OSError:
            return False
