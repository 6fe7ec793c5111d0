"""Prune sessions: first a plan of what to delete and what to spare, then a move to the trash.

`Compactor.prune` is something else: it removes old tool results from the context of one session.

Rules:

- A session that is pinned or open in any process is always spared, and a draft unless it is named explicitly. So is one that
  was used within the last day, unless it is named explicitly and `recent` is set.
- A plan changes nothing. When it is applied, each session is checked again, and moved with its artifacts as one deletion, so
  that each can be undone alone.
- Blobs stay: they have their own sweep.
- Sessions of other agents are moved to the same trash, if their folder is given in `sources`. If the agent keeps a list of its
  sessions, they are removed from it.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from sessile.agents.base import SessionList
from sessile.agents.reader import describe_foreign
from sessile.agents.registry import AGENTS
from sessile.core.kinds import TALK, flags_of
from sessile.core.lines import Line, Scanner
from sessile.core.text import parse_timestamp
from sessile.discovery import SessionInfo, describe
from sessile.errors import Conflict, Invalid, SessileError, SessionNotFound, Unsupported
from sessile.storage import atomic, session_bytes
from sessile.storage.drafts import draft_path, is_draft
from sessile.storage.head import Glance
from sessile.storage.layout import DRAFT, JOURNAL, artifacts_of
from sessile.storage.locks import Identity, identity, open_files
from sessile.storage.session_bytes import RawFile, is_held
from sessile.storage.trash import Deletion
from sessile.storage.walk import find_session_files

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem, Stat
    from sessile.storage.layout import Source
    from sessile.store import Store

RECENT = 24 * 3600.0  # seconds; rules do not apply to younger sessions
_DAY = 24 * 3600

Why = Literal["pinned", "scheduled", "in another store", "not a session", "draft", "open", "recent", "kept"]
Marks = tuple[tuple[str, int, int, int], ...]
"""Path, size, time of modification and inode of each file of a session. They change when the session is used."""


@dataclass(frozen=True)
class PruneRule:
    """Which sessions to prune: those that match every given condition.

    `older_than` is in seconds since the last change, `larger_than` in bytes with artifacts. `empty` matches sessions without
    any message. `project` is a folder, including the folders in it. The newest `keep` sessions stay. `named` are the paths of
    the sessions to choose from; `recent` includes those that were used within the last day.
    """

    older_than: float | None = None
    larger_than: int | None = None
    empty: bool = False
    project: str | None = None
    keep: int = 0
    named: Collection[str] | None = None
    recent: bool = False

    @property
    def means_all(self) -> bool:
        """Whether the rule matches every session."""
        return (
            self.older_than is None
            and self.larger_than is None
            and self.named is None
            and not (self.empty or self.keep)
        )


class Candidate(NamedTuple):
    """A session that would be pruned, and why."""

    path: str
    id: str
    title: str | None
    modified: datetime
    size: int
    reason: str
    marks: Marks
    root: str | None = None  # the sessions folder of another agent; None for the store's own sessions


class Spared(NamedTuple):
    """A session that matches the rule but is spared; unknown values are `None`."""

    path: str
    id: str | None
    title: str | None
    modified: datetime
    size: int
    why: Why


class PrunePlan(NamedTuple):
    """What a prune would do. Nothing has been changed.

    If it is unknown which files are open, as in a database, `sees_open_files` is false, and only locked files count as open.
    """

    candidates: tuple[Candidate, ...]
    spared: tuple[Spared, ...]
    bytes: int
    pinned: frozenset[str]
    sees_open_files: bool


class Pruned(NamedTuple):
    """What a prune did: one deletion per session, the sessions that were refused, and the error that stopped it, if any."""

    deletions: tuple[Deletion, ...]
    refused: tuple[tuple[str, str], ...]
    bytes: int
    failure: SessileError | None = None


class _Session(NamedTuple):
    """A session file and what belongs to it."""

    path: str
    info: SessionInfo | None
    marks: Marks
    identities: frozenset[Identity]
    linked: bool
    root: str | None
    listed: SessionList | None

    @property
    def size(self) -> int:
        return sum(size for _, size, _, _ in self.marks)

    @property
    def modified(self) -> float:
        return max(modified for _, _, modified, _ in self.marks) / 1e9


# -- the plan


def plan_prune(
    store: Store,
    rule: PruneRule,
    *,
    pinned: Collection[str] = (),
    now: float | None = None,
    sources: Sequence[Source] | None = None,
) -> PrunePlan:
    """Return what a rule would move to the trash, and what it would spare. `pinned` are session ids, `now` is in seconds.

    `sources` are the folders to prune; the default is the store's own sessions.
    """
    if rule.means_all:
        raise Invalid("the rule would prune every session", hint="set an age, a size, or a number of sessions to keep")
    if rule.recent and rule.named is None:
        raise Invalid("recent sessions must be named to be pruned", hint="name the sessions to prune")
    for source in sources or ():
        _check_source(source, rule)
    moment = store.now() / 1000 if now is None else now
    since = math.inf if rule.recent else moment - RECENT
    in_use = open_files()
    sessions = [session for session in _sessions(store, sources) if _in_project(session, rule.project)]
    newest = {session.path for session in sorted(sessions, key=lambda session: -session.modified)[: max(0, rule.keep)]}
    candidates, spared = [], []
    for session in sessions:
        if not _matches(store, session, rule, moment):
            continue
        why = _spared(store, session, rule, frozenset(pinned), in_use or frozenset(), since) or (
            "kept" if session.path in newest else None
        )
        info, modified = session.info, datetime.fromtimestamp(session.modified, UTC)
        if info is None or why is not None:
            session_id, title = (info.id, _title(info)) if info else (None, None)
            spared.append(Spared(session.path, session_id, title, modified, session.size, why or "not a session"))
        else:
            reason = _reason(rule, session, moment)
            candidates.append(
                Candidate(
                    session.path, info.id, _title(info), modified, session.size, reason, session.marks, session.root
                )
            )
    size = sum(candidate.size for candidate in candidates)
    hidden = store.database is not None and any(session.root is None for session in sessions)
    sees_open_files = in_use is not None and not hidden
    return PrunePlan(tuple(candidates), tuple(spared), size, frozenset(pinned), sees_open_files)


def _check_source(source: Source, rule: PruneRule) -> None:
    """Raise if the sessions of an agent cannot be pruned by this rule."""
    agent = AGENTS.get(source.agent)
    if "delete" not in AGENTS.capabilities(source.agent):
        raise Unsupported(
            f"deleting sessions of {source.agent} is not supported",
            path=source.sessions,
            hint=f"delete them in {source.agent}",
        )
    if rule.empty and agent is not None and agent.format is not None:
        hint = "set an age or a size, or name the sessions"
        raise Unsupported(f"finding empty sessions of {source.agent} is not supported", path=source.sessions, hint=hint)


def _sessions(store: Store, sources: Sequence[Source] | None) -> Iterator[_Session]:
    own = store.layout.sessions
    for folder in [own] if sources is None else [source.sessions for source in sources]:
        listed = None if folder == own else _listed(store, folder)
        found = [*session_bytes.journals(store.fs, folder)]
        if listed is not None:
            found = [(path, False) for path in listed.paths()]
        elif folder != own:  # a folder that the user has added may hold sessions without projects
            found += [(path, False) for path in find_session_files(store.fs, folder)]
        for path, linked in found:
            if atomic.exists(store.fs, path):
                yield _look(store.fs, path, linked, None if folder == own else folder, listed)


def _listed(store: Store, folder: str) -> SessionList | None:
    return next(filter(None, (agent.list_at(store.place, folder) for agent in AGENTS)), None)


def _look(fs: Filesystem, path: str, linked: bool, root: str | None, listed: SessionList | None) -> _Session:
    files = [*session_bytes.below(fs, path), *session_bytes.files_below(fs, artifacts_of(path))]
    if not files:
        raise SessionNotFound(path=path)
    for other in listed.files_of(path) if listed is not None else ():
        files += session_bytes.below(fs, other) if other != path else ()
    info = describe(fs, path) if root is None else _describe_others(fs, path)
    return _Session(
        path,
        _with_list(info, listed),
        tuple(_mark(name, status) for name, status in files),
        frozenset(identity(status) for _, status in files),
        linked,
        root,
        listed,
    )


def _with_list(info: SessionInfo | None, listed: SessionList | None) -> SessionInfo | None:
    """Add the title and project from the agent's list."""
    if info is None or listed is None:
        return info
    row = listed.told(info.path)
    return msgspec.structs.replace(info, title=row.title or info.title, cwd=row.cwd or info.cwd)


def _info(path: str, glance: Glance, status: Stat) -> SessionInfo:
    created = parse_timestamp(glance.created)
    return SessionInfo(
        path=path,
        id=glance.id,
        cwd=glance.cwd,
        title=glance.title or None,
        parent_session_path=None,
        created=None if created is None else datetime.fromtimestamp(created / 1000, UTC),
        modified=datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC),
        size=status.st_size,
        first_message=glance.first_text or None,
    )


def _describe_others(fs: Filesystem, path: str) -> SessionInfo | None:
    info = describe(fs, path)
    if info is None and (found := describe_foreign(fs, path)) is not None:
        info = _info(path, *found)
    return info


def _mark(path: str, status: Stat) -> tuple[str, int, int, int]:
    return path, status.st_size, status.st_mtime_ns, status.st_ino


def _in_project(session: _Session, project: str | None) -> bool:
    if project is None:
        return True
    cwd = session.info.cwd if session.info else ""
    return f"{posixpath.normpath(cwd)}/".startswith(f"{posixpath.normpath(project).rstrip('/')}/") if cwd else False


def _matches(store: Store, session: _Session, rule: PruneRule, moment: float) -> bool:
    if rule.named is not None and session.path not in rule.named:
        return False
    if rule.older_than is not None and moment - session.modified < rule.older_than:
        return False
    if rule.larger_than is not None and session.size <= rule.larger_than:
        return False
    return not rule.empty or _is_empty(store.fs, session)


def _is_empty(fs: Filesystem, session: _Session) -> bool:
    """Return whether a session has no messages and nothing unreadable."""
    if session.info is None or len(session.marks) > 1:
        return False
    scanner = Scanner()
    with RawFile(fs, session.path) as file:
        for chunk in file.chunks():
            for item in scanner.feed(chunk):
                if flags_of(item.head) & TALK if isinstance(item, Line) else item.code != "blank":
                    return False
    return not any(flags_of(item.head) & TALK if isinstance(item, Line) else True for item in scanner.finish())


def _spared(
    store: Store, session: _Session, rule: PruneRule, pinned: frozenset[str], in_use: frozenset[Identity], since: float
) -> Why | None:
    """Return why a session is spared whatever the rule says; sessions used after `since` are spared."""
    if session.info is not None and session.info.id in pinned:
        return "pinned"
    if session.linked:
        return "in another store"
    if session.info is None:
        return "not a session"
    if session.listed is not None and (why := session.listed.why_spared(session.path)) is not None:
        return why
    if _is_open(store.fs, session, in_use):
        return "open"
    if (rule.named is None and is_draft(session.path)) or _has_draft(store.fs, session.path):
        return "draft"
    return "recent" if session.modified > since else None


def _is_open(fs: Filesystem, session: _Session, in_use: frozenset[Identity]) -> bool:
    """Return whether a process has the session or one of its sub-agents open, or holds its lock or that of its draft."""
    if session.identities & in_use:
        return True
    journals = [path for path, *_ in session.marks if path.endswith((JOURNAL, DRAFT))]
    if _has_draft(fs, session.path):
        journals.append(draft_path(session.path))
    return any(is_held(fs, path) for path in journals)


def _has_draft(fs: Filesystem, path: str) -> bool:
    """Return whether there is a draft beside a published session."""
    return not is_draft(path) and atomic.exists(fs, draft_path(path))


def _title(info: SessionInfo) -> str | None:
    return info.title or info.first_message


def _reason(rule: PruneRule, session: _Session, moment: float) -> str:
    reasons = [] if rule.named is None else ["chosen"]
    if rule.older_than is not None:
        days = int((moment - session.modified) // _DAY)
        reasons.append(f"not used for {days} day{'' if days == 1 else 's'}")
    if rule.larger_than is not None:
        reasons.append(f"{session.size:,} bytes")
    if rule.empty:
        reasons.append("no messages")
    if rule.keep:
        reasons.append(f"not among the newest {rule.keep}")
    return ", ".join(reasons)


# -- applying it


def apply_prune(store: Store, plan: PrunePlan, *, pinned: Collection[str] = ()) -> Pruned:
    """Move the candidates of a plan to the trash, except those that were used or pinned since."""
    in_use = open_files() or frozenset()
    spared = plan.pinned | frozenset(pinned)
    deletions: list[Deletion] = []
    refused: list[tuple[str, str]] = []
    size = 0
    for candidate in plan.candidates:
        try:
            deletions.append(_prune(store, candidate, spared, in_use))
            size += candidate.size
        except (Conflict, Invalid, SessionNotFound) as error:
            refused.append((candidate.path, error.message))
        except SessileError as error:
            return Pruned(tuple(deletions), tuple(refused), size, error)
    return Pruned(tuple(deletions), tuple(refused), size)


def _prune(store: Store, candidate: Candidate, pinned: frozenset[str], in_use: frozenset[Identity]) -> Deletion:
    """Check a session again, and move it while its lock is held: a process that waits for the lock finds the file gone."""
    path = candidate.path
    if candidate.id in pinned:
        raise Conflict("it is pinned", path=path)
    listed = None if candidate.root is None else _listed(store, candidate.root)
    session = _look(store.fs, path, linked=False, root=candidate.root, listed=listed)
    if listed is not None and (why := listed.why_spared(path)) is not None:
        raise Conflict(f"it is {why}", path=path)
    if session.marks != candidate.marks:
        raise Conflict("it was used since the plan was made", path=path)
    if _is_open(store.fs, session, in_use) or _has_draft(store.fs, path):
        raise Conflict("it is open", path=path)
    with RawFile(store.fs, path) as file:
        file.hold(patience=0)
        if _mark(path, file.stat) != candidate.marks[0]:
            raise Conflict("it was used since the plan was made", path=path)
        return store._delete(path, candidate.root)
