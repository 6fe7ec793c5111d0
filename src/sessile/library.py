"""A library: the sessions of one's own store and of other agents' folders, found, listed and searched together.

    library = Library(store, sources, cache=…)
    library.catch_up()                      compare the catalog with the files
    library.list(Filter(limit=50))
    library.find("webhook retries")         by id, @last, @here, words of the title, or path; …/agent-a1 is a sub-agent of it
    library.search("retry")                 by words, ranked; `scan` for substrings and regular expressions

Rules: other agents' folders are only read; what a library keeps lies in the cache folder and may be deleted at any time, but
for pins and copies of other agents' sessions, which lie in the store. A copy stands for its session as soon as the original is
gone, or has fewer bytes; until then it is not listed beside it. A name that means several sessions is an error that lists
them. Which folders there are is an argument: the library never looks for a home.

Finding a text in one session: which of its entries hold it, on whatever branch, from its bytes as they are now.

Rules: the file is searched as `storage.search` does it, so that only lines that can hold the text are decoded. A file that is
shown in another version than it has is read entry by entry instead. Nothing is written, and no catalog is asked.

The sub-agents of a session: whose transcripts lie in its folder, what each is, and how much was said.

Rules: what an agent is, its sidecar says. One that is missing or broken is told, and nothing is put in its place: an agent that
is taken for another one does harm. Agents of the family have no sidecars. Everything is only read.
"""

from __future__ import annotations

import posixpath
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sessile.agents.base import Agent
from sessile.agents.registry import AGENTS
from sessile.core.address import SHORTEST_PREFIX, is_path, relative, sub_agent
from sessile.core.kinds import MARKER, MESSAGE
from sessile.core.text import clean_name
from sessile.core.words import FIELDS, INDEXED, Field, pieces
from sessile.errors import (
    Ambiguous,
    EntryNotFound,
    SessileError,
    SessionNotFound,
    StorageFailure,
    storage_failures,
)
from sessile.session import SessionView
from sessile.storage import atomic
from sessile.storage.atomic import NameSet
from sessile.storage.base import NATIVE, Row
from sessile.storage.catalog import CaughtUp
from sessile.storage.catalog_rows import Listing, SessionRow
from sessile.storage.filters import EVERYTHING, Filter
from sessile.storage.layout import JOURNAL, Source, artifacts_of, stem_of
from sessile.storage.search import Match, Needle, scan_file
from sessile.storage.session_bytes import files_below
from sessile.store import Store

if TYPE_CHECKING:
    from sessile.core.statistics import Usage
    from sessile.storage.catalog_rows import Facets
    from sessile.storage.catch_up import Depth, Mark, Progress
    from sessile.storage.search import Results


# --- library

_UNINDEXED: tuple[Field, ...] = ("tool_result",)
_MOST_CANDIDATES = 20  # that an error about an ambiguous name lists


class Found(NamedTuple):
    """A text that a scan has found, and the session that it is in."""

    row: SessionRow
    match: Match


class Library:
    """All sessions that a person has: `store` is one's own, `sources` are the folders of other agents.

    `given` are these folders, one's own first, and `sources` moreover those with copies of other agents' sessions. `cache`
    is the folder for the catalog, or `None` for a catalog in memory.
    """

    def __init__(self, store: Store, sources: Sequence[Source] = (), *, cache: str | None = None) -> None:
        self.store = store
        self.given = [Source("sessile", store.layout.root, store.layout.sessions), *sources]
        self.sources = [*self.given, *_kept(store)]
        self.pins = store.pins
        self._catalog = store.catalog(cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the catalog."""
        self._catalog.close()

    @property
    def notices(self) -> Sequence[str]:
        """What did not work as it should, though answers are complete."""
        return self._catalog.notices

    def agent_of(self, path: str) -> str | None:
        """The agent whose folder holds a file; `None` if it lies elsewhere."""
        source = self.source_of(path)
        return None if source is None else source.agent

    def source_of(self, path: str) -> Source | None:
        """The folder that holds a file; `None` if nobody looks there."""
        return next((source for source in self.sources if path.startswith(f"{source.sessions}/")), None)

    def original_of(self, path: str) -> str | None:
        """Where the original of a copy is, or was; `None` of what is no copy, or of an agent that has no folder any more."""
        for kept in self.sources[len(self.given) :]:
            for source in self.given:
                if source.agent == kept.agent and path.startswith(f"{kept.sessions}/"):
                    return source.sessions + path[len(kept.sessions) :]
        return None

    @property
    def copies(self) -> Mapping[str, Mark]:
        """Copies that are not listed because their originals are, by the paths of these, as of the last catch-up."""
        return self._catalog.copies

    # -- listing

    def catch_up(
        self,
        depth: Depth = "look",
        *,
        progress: Callable[[Progress], None] | None = None,
        deadline: float | None = None,
    ) -> CaughtUp:
        """Compare the catalog with the files, and read what changed: their ends, every line, or every word."""
        places = [source.sessions for source in self.given]
        kept = _kept(self.store)
        self.sources = [*self.given, *kept]
        copies = {
            copied.sessions: [source.sessions for source in self.given if source.agent == copied.agent]
            for copied in kept
        }
        return self._catalog.catch_up(places, depth=depth, progress=progress, deadline=deadline, copies=copies)

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """The sessions that a filter lets through, as of the last catch-up."""
        return self._catalog.list(wanted)

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Path, size and time of modification of the files of these sessions, and nothing else of them."""
        return self._catalog.marks(wanted)

    def facets(self, wanted: Filter = EVERYTHING) -> Facets:
        """By what else these sessions could be chosen, with how many there are of each; `below` is by agent."""
        folders: dict[str, list[str]] = {}
        for source in self.sources:
            folders.setdefault(source.agent, []).append(source.sessions)
        return self._catalog.facets(wanted, folders)

    def count_agents(self, path: str) -> int:
        """How many transcripts of sub-agents lie beside a session."""
        return self.list(Filter(below=[artifacts_of(path)], hide=(), limit=0)).total

    def usage(self, wanted: Filter = EVERYTHING) -> Usage:
        """Tokens, money and tools of these sessions, as far as they are counted."""
        return self._catalog.usage(wanted)

    # -- finding

    def find(self, name: str, cwd: str | None = None, *, progress: Callable[[Progress], None] | None = None) -> str:
        """The file of the session that a name means; `cwd` is the folder that `@here` stands for."""
        if is_path(name):
            path = posixpath.abspath(posixpath.expanduser(name))
            agent = None if atomic.exists(self.store.fs, path) else sub_agent(name)
            return self._existing(path) if agent is None else self._agent(*agent, cwd, progress)
        self.catch_up(progress=progress)
        recent = relative(name)
        if recent is not None:
            return self._recent(name, *recent, cwd)
        rows = self._by_id(name)
        if not rows:
            # A session may have got its title in the middle of its file: what was not read could be meant.
            self.catch_up("count", progress=progress)
            rows = self._by_title(name)
        if not rows:
            short = "; an id needs its first four characters" if len(name) < SHORTEST_PREFIX else ""
            raise SessionNotFound(f"there is no session {_quoted(name)}", hint=f"sessile ls shows what there is{short}")
        if len(rows) > 1:
            newest = f"; these are the newest {_MOST_CANDIDATES}" if len(rows) > _MOST_CANDIDATES else ""
            raise Ambiguous(
                f"session {_quoted(name)} is ambiguous ({len(rows)}{newest})",
                hint="say more of the id or of the title" if len({row.id for row in rows}) > 1 else "name its file",
                candidates=[_candidate(row) for row in rows[:_MOST_CANDIDATES]],
            )
        return rows[0].path

    def _existing(self, path: str) -> str:
        if not atomic.exists(self.store.fs, path):
            raise SessionNotFound("there is no such file", path=path)
        return path

    def _agent(self, owner: str, name: str, cwd: str | None, progress: Callable[[Progress], None] | None) -> str:
        """The transcript of a session's sub-agent that begins so."""

        path = self.find(owner, cwd, progress=progress)
        agents = [file for file in agent_files(self.store, path) if stem_of(file).startswith(name)]
        found = [file for file in agents if stem_of(file) == name] or agents
        hint = f"sessile show {owner} --agents shows what there is"
        if not found:
            raise SessionNotFound(f"this session has no sub-agent {_quoted(name)}", path=path, hint=hint)
        if len(found) > 1:
            candidates = [{"id": stem_of(file), "path": file} for file in found[:_MOST_CANDIDATES]]
            told = f"sub-agent {_quoted(name)} is ambiguous ({len(found)})"
            raise Ambiguous(told, path=path, hint="say more of its name, or its path", candidates=candidates)
        return found[0]

    def _recent(self, name: str, base: str, back: int, cwd: str | None) -> str:
        """The session that was changed last, or so many before it."""
        rows = self.list(Filter(project=cwd if base == "here" else None)).rows
        if base == "here":
            rows = [row for row in rows if row.cwd == cwd] or rows  # those of this very folder come first
        if back < len(rows):
            return rows[back].path
        if base == "here":
            hint = "@last is the last one of all folders; sessile ls shows what there is"
            raise SessionNotFound(f"this folder has no session{f' {name}' if back else ''}", path=cwd, hint=hint)
        raise SessionNotFound(f"there is no session {name}", hint="sessile ls shows what there is")

    def _by_id(self, name: str) -> Sequence[SessionRow]:
        rows = self.list(Filter(id_prefix=name, hide=("unreadable",))).rows
        rows = [row for row in rows if row.id == name] or (rows if len(name) >= SHORTEST_PREFIX else [])
        if len({row.id for row in rows}) == 1:
            # Imported from another agent: one's own copy is meant; of others the original.
            rows = [row for row in rows if self.store.layout.owns(row.path)] or rows
            rows = [row for row in rows if not self.store.layout.keeps(row.path)] or rows
        return rows

    def _by_title(self, name: str) -> Sequence[SessionRow]:
        """Those with all words in title or first prompt; a title that is just that comes first, then any title."""
        rows = self.list(Filter(words=name.split(), hide=("unreadable",))).rows
        exact = [row for row in rows if row.title is not None and row.title.casefold() == name.casefold()]
        return exact or [row for row in rows if row.title is not None] or rows

    # -- searching

    def search(
        self,
        text: str,
        wanted: Filter | None = None,
        *,
        fields: Sequence[Field] = INDEXED,
        limit: int = 20,
        directly: bool = False,
        count: bool = True,
    ) -> Results:
        """The entries that hold all words of a text, best first, in all sessions or in those that a filter lets through."""
        numbers = None if wanted is None else {row.number for row in self.list(wanted).rows}
        return self._catalog.search(text, fields=fields, sessions=numbers, limit=limit, directly=directly, count=count)

    def scan(
        self,
        needle: Needle,
        wanted: Filter = EVERYTHING,
        *,
        fields: Sequence[Field] = FIELDS,
        notices: MutableSequence[str],
    ) -> Iterator[Found]:
        """Every text that holds a substring or matches a regular expression, newest sessions first.

        What could not be searched is added to `notices`.
        """
        return self.scan_rows(self.list(wanted).rows, needle, fields=fields, notices=notices)

    def scan_rows(
        self,
        rows: Sequence[SessionRow],
        needle: Needle,
        *,
        fields: Sequence[Field] = FIELDS,
        notices: MutableSequence[str],
        deadline: float | None = None,
    ) -> Iterator[Found]:
        """The same in some sessions that were listed, as far as the time reaches; the catalog is not asked for that."""
        from sessile.storage.search import scan_file

        for number, row in enumerate(rows):
            if deadline is not None and time.monotonic() > deadline:
                notices.append(f"the time was too short for {len(rows) - number:,} of {len(rows):,} sessions")
                return
            unread: list[Any] = []
            try:
                for match in scan_file(
                    self.store.fs, row.path, needle, AGENTS, fields=fields, findings=unread, name=row.format or NATIVE
                ):
                    yield Found(row, match)
            except (StorageFailure, SessionNotFound) as error:
                notices.append(f"{row.path} was not searched: {error.message}")
            notices.extend(f"{row.path}: {finding.detail}, not searched" for finding in unread)

    def count_results(self, text: str, wanted: Filter = EVERYTHING, *, deadline: float) -> tuple[int, int]:
        """How many tool results hold all words of a text, and how many sessions the time was too short for."""
        from sessile.core.words import Query
        from sessile.storage.search import WordNeedle, scan_file

        needle, rows, found = WordNeedle(Query(text)), self.list(wanted).rows, 0
        for number, row in enumerate(rows):
            if time.monotonic() > deadline:
                return found, len(rows) - number
            try:
                found += len(
                    [*scan_file(self.store.fs, row.path, needle, AGENTS, fields=_UNINDEXED, name=row.format or NATIVE)]
                )
            except (StorageFailure, SessionNotFound):
                continue  # a search for tool results says so
        return found, 0


def _kept(store: Store) -> list[Source]:
    """The folders with copies of other agents' sessions, one an agent."""
    kept = store.layout.kept
    with storage_failures(kept, "look for copies of sessions"):
        try:
            agents = store.fs.names(kept)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [Source(agent, f"{kept}/{agent}", f"{kept}/{agent}") for agent in agents if not agent.startswith(".")]


def added_sources(store: Store) -> NameSet:
    """The folders that a person has added to those that are known anyway."""
    return NameSet(store.fs, f"{store.layout.root}/sources.json")


def find_entry(session: SessionView, name: str) -> str:
    """The id of the entry that begins so."""
    if session.get_entry(name) is not None:
        return name
    ids = dict.fromkeys(entry.id for entry in session.iter_entries() if entry.id.startswith(name))
    if not ids:
        raise EntryNotFound(f"there is no entry {_quoted(name)}", path=session.path, hint="sessile tree shows ids")
    if len(ids) > 1:
        raise Ambiguous(
            f"entry {_quoted(name)} is ambiguous ({len(ids)})",
            path=session.path,
            hint="say more of the id",
            candidates=[{"id": entry_id} for entry_id in list(ids)[:_MOST_CANDIDATES]],
        )
    return next(iter(ids))


def find_leaf(session: SessionView, name: str) -> str:
    """The id of the entry that has this label, or begins so."""
    labelled = [entry_id for entry_id, label in session.get_labels().items() if label == name]
    return labelled[-1] if labelled else find_entry(session, name)


def _candidate(row: SessionRow) -> dict[str, str | None]:
    return {"id": row.id, "title": row.title or row.first_text, "project": row.cwd, "path": row.path}


def _quoted(name: str) -> str:
    return f'"{clean_name(name)[:80]}"'


# --- finding


def find_in_session(
    store: Store, session: SessionView, needle: Needle, *, rows: Sequence[Row] | None = None, most: int | None = None
) -> list[int]:
    """The numbers of the entries that hold a text, in file order, `most` at most; leaf markers are counted, never found.

    `rows` are those of the session, for who has them.
    """
    rows = list(session.iter_rows()) if rows is None else rows
    found: list[int] = []
    for match in scan_file(store.fs, session.path, needle, AGENTS, name=session.format):
        number = _number(rows, match)
        if number is None:
            return _first(_holding(session, rows, needle), most)
        if not rows[number].flags & MARKER and number not in found[-1:]:
            found.append(number)
        if len(found) == most:
            break
    return found


def _number(rows: Sequence[Row], match: Match) -> int | None:
    """The entry that a match is in, by its place; several entries may lie in one row of another agent's."""
    number = bisect_left(rows, match.offset, key=lambda row: int(row.position[0]))
    while number < len(rows) and rows[number].position[0] == match.offset:
        if rows[number].id == match.entry_id:
            return number
        number += 1
    return None


def _holding(session: SessionView, rows: Sequence[Row], needle: Needle) -> Iterator[int]:
    for number, (row, entry) in enumerate(zip(rows, session.read_rows(rows), strict=True)):
        if not row.flags & MARKER and any(needle.spans(text) for _, text in pieces(entry)):
            yield number


def _first(numbers: Iterator[int], most: int | None) -> list[int]:
    return [number for _, number in zip(range(most), numbers, strict=False)] if most is not None else list(numbers)


# --- agents


class SubAgent(NamedTuple):
    """A sub-agent; what nobody says is `None`, and `problem` says what could not be read."""

    name: str
    path: str
    agent_type: str | None
    description: str | None
    worktree_path: str | None
    messages: int | None
    problem: str | None


def agent_files(store: Store, path: str) -> Iterator[str]:
    """Yield the transcripts of the sub-agents of the session in a file."""
    folder = artifacts_of(path)
    for found, _ in files_below(store.fs, folder):
        keeper = _keeper(found, folder)
        if found.endswith(JOURNAL) and (keeper is None or keeper.is_sub_agent(posixpath.basename(found))):
            yield found


def sub_agents(store: Store, path: str) -> Iterator[SubAgent]:
    """Yield the sub-agents of the session in a file, ordered by name."""
    folder = artifacts_of(path)
    for found in agent_files(store, path):
        described: Mapping[str, Any] = {}
        messages = None
        problems = []
        try:
            keeper = _keeper(found, folder)
            described = {} if keeper is None else keeper.describe_sub_agent(store.fs, found)
        except SessileError as error:
            problems.append(error.message)
        try:
            messages = _count(store, found)
        except SessileError as error:
            problems.append(error.message)
        agent_type, description, worktree = (
            value if isinstance(value := described.get(name), str) else None
            for name in ("agentType", "description", "worktreePath")
        )
        problem = "; ".join(problems) or None
        yield SubAgent(stem_of(found), found, agent_type, description, worktree, messages, problem)


def _keeper(path: str, folder: str) -> Agent | None:
    """Return the agent in whose folder for sub-agents a file is."""
    places = ((agent, agent.sub_agents) for agent in AGENTS if agent.sub_agents)
    return next((agent for agent, place in places if path.startswith(f"{folder}/{place}/")), None)


def _count(store: Store, path: str) -> int:
    """Return how many messages a transcript has."""
    with store.open(path, readonly=True) as session:
        return sum(1 for row in session.iter_rows() if row.flags & MESSAGE)
