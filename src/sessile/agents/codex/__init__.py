"""Codex: its rollout files, read only. The modules that read them are imported when one is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

from sessile.agents.base import NO_RELATIVES, Agent, Format, Related, Stretch
from sessile.core.codec import decode
from sessile.core.lines import Finding
from sessile.core.providers import ABORTED, Dialect
from sessile.storage.formats import Told
from sessile.storage.layout import Source, is_segment

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem

_RELATIONS = (b'"history_base"', b'"forked_from_id"', b'"parent_thread_id"')


class Codex(Agent):
    """Codex: `~/.codex`."""

    name = "codex"
    title = "Codex"
    command = ("codex", "resume")
    resumes_by_id = True
    variables = (("CODEX_HOME", "~/.codex"),)
    placing = "sessile.agents.codex.placing"
    surroundings = (
        "codex.environments.",
        "codex.host_skills.",
        "codex.multi_agent.role_instructions",
        "codex.multi_agent.mode_instructions",
        "codex.multi_agent.usage_hint",
        "codex.tools.",
    )

    @cached_property
    def _reading(self) -> ModuleType:
        from sessile.agents.codex import rollout  # most listings read no rollout

        return rollout

    @cached_property
    def format(self) -> Format:
        """How rollouts are read."""
        known: Format = self._reading.Codex()
        return known

    @cached_property
    def _threads(self) -> ModuleType:
        module: ModuleType = self._reading.threads
        return module

    @cached_property
    def dialect(self) -> Dialect:  # type: ignore[override]
        """How it writes its requests."""
        return Dialect(self.name, missing=ABORTED, replay=self._reading.replay)

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folders of current and archived sessions."""
        root = environ.get("CODEX_HOME") or f"{home}/.codex"
        return [Source(self.name, root, f"{root}/{folder}") for folder in ("sessions", "archived_sessions")]

    def titles(self, data: bytes) -> Mapping[str, Told] | None:
        """Return the names in `session_index.jsonl`; a later one replaces an earlier one."""
        if not data.lstrip().startswith(b'{"id"') or b'"thread_name"' not in data:
            return None
        found: dict[str, Told] = {}
        for line in data.split(b"\n"):
            try:
                row = decode(line) if line.strip() else None
            except (ValueError, RecursionError):
                continue  # the last one may be half-written
            if isinstance(row, dict) and isinstance(row.get("id"), str):
                name = row.get("thread_name")
                found[row["id"]] = Told(title=name if isinstance(name, str) and name.strip() else None)
        return found

    def join(self, fs: Filesystem, path: str) -> Iterator[bytes | Finding] | None:
        """Yield the rows of a thread before and after its rewinds."""
        rows: Iterator[bytes | Finding] = self._threads.join(fs, path)
        return rows

    def related(self, fs: Filesystem, path: str, first: bytes) -> Related:
        """Return the thread that a thread was forked from or started by, and the file before a rewind."""
        if not is_segment(path) and not _tells(first, _RELATIONS):
            return NO_RELATIVES
        found: Related = self._threads.related(fs, path, first)
        return found

    def history(self, fs: Filesystem, path: str, first: bytes) -> Sequence[Stretch]:
        """Return the part of other threads that a fork continues."""
        if not _tells(first, _RELATIONS[:1]):
            return ()
        found: Sequence[Stretch] = self._threads.history(fs, path, first)
        return found


def _tells(first: bytes, names: Sequence[bytes]) -> bool:
    line = first.partition(b"\n")[0]
    return any(name in line for name in names)
