"""A library: the sessions of the user's own store and of other agents' folders, listed, found and searched together.

    with Library(store, sources, cache=…) as library:
        library.list(Filter(limit=50))
        library.search("retry")                 by words, ranked; `scan` finds substrings and regular expressions
        library.find("webhook retries")         by id, @last, @here, words of the title, or path

Rules:

- `list` and `search` compare the catalog with the files first, within a time limit; their results name the files that were
  not read in time. `catch_up` does it explicitly.
- A search with few hits reads what the index does not have, too. Its results say where else the words are, and what was not read.
- Other agents' folders are only read. The catalog is a cache and may be deleted at any time; pins and copies of other agents'
  sessions are in the store. A copy takes the place of its session when the original is gone or has become smaller.
- A name that fits several sessions is an error that lists them.
- The folders are an argument: the library never looks for a home folder.

The module also finds text within one session (`find_in_session`) and lists the sub-agents of a session (`sub_agents`).
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sessile.agents.base import Agent
from sessile.agents.registry import AGENTS
from sessile.core.address import SHORTEST_PREFIX, is_path, relative, sub_agent
from sessile.core.ids import is_uuid
from sessile.core.kinds import MARKER, MESSAGE
from sessile.core.text import clean_name
from sessile.core.words import FEW, INDEXED, SHOWN, Field, Query, pieces
from sessile.errors import (
    Ambiguous,
    EntryNotFound,
    SessileError,
    SessionNotFound,
    StorageFailure,
    storage_failures,
)
from sessile.storage import drafts
from sessile.storage.atomic import NameSet, is_there
from sessile.storage.base import NATIVE, Filesystem, Row
from sessile.storage.catalog import CaughtUp
from sessile.storage.catalog_rows import Listing, SessionRow
from sessile.storage.filters import EVERYTHING, Filter
from sessile.storage.formats import Formats
from sessile.storage.layout import JOURNAL, Source, artifacts_of, is_segment, stem_of
from sessile.store import Store

if TYPE_CHECKING:
    from sessile.core.statistics import Usage
    from sessile.erase import Erasure
    from sessile.session import SessionView
    from sessile.storage.catalog_rows import Facets
    from sessile.storage.catch_up import Depth, Progress
    from sessile.storage.search import Match, Needle, Results
    from sessile.storage.walk import Mark

LIST_TIMEOUT = 5.0  # seconds; a listing without all counts is still useful
INSIDE_TIMEOUT = 0.2  # seconds to count sessions inside of databases, for a listing
SEARCH_TIMEOUT = 30.0  # seconds; indexing a year of sessions takes about as long
_MOST_CANDIDATES = 20  # that an error about an ambiguous name lists
_LIST_HINT = "run `sessile ls` to list the sessions"

OnProgress = Callable[["Progress"], None]


class Found(NamedTuple):
    """A text that a scan has found, and the session that contains it.

    Attributes:
        row: The session.
        match: Where the text is.
    """

    row: SessionRow
    match: Match


class Library:
    """All sessions of a user: those of one store and those in other agents' folders.

    One thread at a time may use a library.

    Args:
        store: The user's own store.
        sources: The folders of other agents.
        cache: The folder for the catalog; `None` keeps it in memory.
        auto_catch_up: Whether `list`, `search` and the other questions compare the catalog with the files first. If not,
            they answer from the last `catch_up`.

    Attributes:
        store (Store): The user's own store.
        given (list[Source]): The folders that are read: the store's own first, then `sources`.
        sources (list[Source]): The same, and the folders with copies of other agents' sessions.
        pins (NameSet): The ids of pinned sessions, which nothing cleans up.

    Example:
        ```python
        with Library(Store("~/.sessile")) as library:
            for row in library.list(Filter(limit=10)).rows:
                print(row.modified, row.title or row.first_text)
            for hit in library.search("webhook retry").hits:
                print(hit.path, hit.excerpt.text)
        ```
    """

    def __init__(
        self,
        store: Store,
        sources: Sequence[Source] = (),
        *,
        cache: str | None = None,
        auto_catch_up: bool = True,
    ) -> None:
        self.store = store
        self.given = [Source("sessile", store.layout.root, store.layout.sessions), *sources]
        self.sources = [*self.given, *_kept(store)]
        self.pins = store.pins
        self._cache = None if cache is None else posixpath.abspath(cache)
        self._catalog = store.catalog(cache)
        self._auto_catch_up = auto_catch_up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        agents = ", ".join(dict.fromkeys(source.agent for source in self.sources))
        return f"<Library of {self.store.name!r} with sessions of {agents}>"

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    @property
    def notices(self) -> Sequence[str]:
        """Problems that slow the library down or leave out folders, for the user to read."""
        return self._catalog.notices

    def agent_of(self, path: str) -> str | None:
        """Return the agent whose folder contains a file; `None` if no known folder does."""
        source = self.source_of(path)
        return None if source is None else source.agent

    def source_of(self, path: str) -> Source | None:
        """Return the folder that contains a file; `None` if no known folder does."""
        return next((source for source in self.sources if path.startswith(f"{source.sessions}/")), None)

    def original_of(self, path: str) -> str | None:
        """Return the path of the original of a copy, which may be gone; `None` if the file is not a copy."""
        for kept in self.sources[len(self.given) :]:
            for source in self.given:
                if source.agent == kept.agent and path.startswith(f"{kept.sessions}/"):
                    return source.sessions + path[len(kept.sessions) :]
        return None

    @property
    def copies(self) -> Mapping[str, Mark]:
        """Copies that are not listed because their originals are, by the path of the original, as of the last catch-up."""
        return self._catalog.copies

    # -- catching up

    def catch_up(
        self,
        depth: Depth = "look",
        *,
        progress: OnProgress | None = None,
        deadline: float | None = None,
        inside: float | None = None,
    ) -> CaughtUp:
        """Compare the catalog with the files, and read what has changed.

        It may be interrupted at any time; the next call continues.

        Args:
            depth: How much to read: "look" reads the beginning and end of changed files, which is enough to list them;
                "count" reads every line; "index" also indexes the words for `search`.
            progress: Called while files are read.
            deadline: When to stop counting and indexing, as a value of `time.monotonic()`. Every file is looked at anyway.
            inside: Seconds for counting sessions that are inside of databases. A listing knows most of them without that.

        Returns:
            How many files there are, and how many are not counted or indexed yet.
        """
        places = [source.sessions for source in self.given]
        kept = _kept(self.store)
        self.sources = [*self.given, *kept]
        copies = {
            copied.sessions: [source.sessions for source in self.given if source.agent == copied.agent]
            for copied in kept
        }
        owners = {source.sessions: source.agent for source in self.sources}
        return self._catalog.catch_up(
            places, depth=depth, progress=progress, deadline=deadline, copies=copies, owners=owners, inside=inside
        )

    def _prepare(
        self,
        depth: Depth,
        timeout: float | None = None,
        progress: OnProgress | None = None,
        inside: float | None = None,
    ) -> CaughtUp | None:
        """Catch up before a question, unless the caller does it."""
        if not self._auto_catch_up:
            return None
        deadline = None if timeout is None else time.monotonic() + timeout
        return self.catch_up(depth, progress=progress, deadline=deadline, inside=inside)

    # -- listing

    def list(
        self,
        wanted: Filter = EVERYTHING,
        *,
        timeout: float | None = LIST_TIMEOUT,
        progress: OnProgress | None = None,
    ) -> Listing:
        """List the sessions that match a filter.

        Every file is looked at, so that no session is missing. Lines are counted until `timeout`; files that were not
        counted in time are in `unread`.

        Args:
            wanted: The filter.
            timeout: Seconds to spend on counting lines of changed files; no limit if `None`.
            progress: Called while files are read.

        Raises:
            InvalidQuery: The filter has an unknown value or a time without a time zone.
        """
        inside = None if timeout is None or wanted.needs_counts else INSIDE_TIMEOUT
        caught_up = self._prepare("count", timeout, progress, inside)
        listing = self._catalog.list(wanted)
        if caught_up is None or not caught_up.uncounted:
            return listing
        everything = wanted._replace(has=(), model=None, hide=(), limit=None, offset=0)
        rows = self._catalog.list(everything).rows
        return listing._replace(unread=[row.path for row in rows if row.format is not None and row.counts is None])

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Return path, size in bytes and time of modification (nanoseconds since 1970) of the files of these sessions."""
        self._prepare("look")
        return self._catalog.marks(wanted)

    def facets(self, wanted: Filter = EVERYTHING) -> Facets:
        """Count the sessions that match a filter by agent, project, model and features."""
        self._prepare("count", LIST_TIMEOUT)
        folders: dict[str, list[str]] = {}
        for source in self.sources:
            folders.setdefault(source.agent, []).append(source.sessions)
        return self._catalog.facets(wanted, folders)

    def count_agents(self, path: str) -> int:
        """Return the number of sub-agent transcripts of a session."""
        self._prepare("look")
        if (rendered := _rendered_agents(self.store, path)) is not None:
            return len(rendered)
        return self._catalog.list(Filter(below=[artifacts_of(path)], hide=(), limit=0)).total

    def usage(
        self,
        wanted: Filter = EVERYTHING,
        *,
        timeout: float | None = SEARCH_TIMEOUT,
        progress: OnProgress | None = None,
    ) -> Usage:
        """Return the tokens, costs and tools of these sessions, for the tables of `sessile.core.statistics`.

        Sessions that were not counted within `timeout` seconds are in its `uncounted`.
        """
        self._prepare("count", timeout, progress)
        return self._catalog.usage(wanted)

    # -- checking

    def compare(self, path: str) -> Sequence[str]:
        """Compare what the catalog knows of a session file with the file, which is read completely.

        A file that has changed since the last catch-up is not compared: the next one reads it.

        Returns:
            The differences, for a person to read; none unless the cache was damaged. `forget` mends them.
        """
        return self._catalog.compare(path, [source.sessions for source in self.sources])

    def forget(self, path: str) -> None:
        """Remove what the catalog knows of a session file. The next catch-up reads the file again."""
        self._catalog.forget(path)

    # -- finding

    def find(self, name: str, cwd: str | None = None, *, progress: OnProgress | None = None, fresh: bool = True) -> str:
        """Return the path of the session that a name refers to.

        Args:
            name: An id or its first four characters, `@last` or `@here` (`@last-1` is the one before), words of the title
                or first message, or a path. `<session>/<name>` is a sub-agent of a session.
            cwd: The folder that `@here` refers to.
            progress: Called while files are read.
            fresh: Look at all files first. If it is false, an id is looked up in the catalog as it is, then in the names of
                the store's files: for callers that have just caught up.

        Raises:
            Ambiguous: The name fits several sessions; its `candidates` list them.
            SessionNotFound: There is no such session.
        """
        if is_path(name):
            path = drafts.located(self.store.fs, posixpath.abspath(posixpath.expanduser(name)))
            agent = None if is_there(self.store.fs, path) else sub_agent(name)
            return self._existing(path) if agent is None else self._sub_agent(*agent, cwd, progress)
        recent = relative(name)
        if recent is None and not fresh:
            if len(known := [row for row in self._by_id(name) if row.id == name]) == 1:
                return known[0].path
            # A session that was made since then is not in the catalog yet.
            if is_uuid(name) and (own := self.store.find(name)) is not None:
                return own
        self.catch_up(progress=progress)
        if recent is not None:
            return self._recent(name, *recent, cwd)
        rows = self._by_id(name)
        if not rows and not is_uuid(name):
            # A session may have got its title in the middle of its file, so every line has to be read.
            self.catch_up("count", progress=progress)
            rows = self._by_title(name)
        if not rows:
            short = "; an id needs at least its first four characters" if len(name) < SHORTEST_PREFIX else ""
            raise SessionNotFound(f"session not found: {_quoted(name)}", hint=f"{_LIST_HINT}{short}")
        if len(rows) > 1:
            newest = f"; the newest {_MOST_CANDIDATES} are listed" if len(rows) > _MOST_CANDIDATES else ""
            raise Ambiguous(
                f"session {_quoted(name)} is ambiguous ({len(rows)}{newest})",
                hint="use more of the id or of the title" if len({row.id for row in rows}) > 1 else "use the path",
                candidates=[_candidate(row) for row in rows[:_MOST_CANDIDATES]],
            )
        return rows[0].path

    def _existing(self, path: str) -> str:
        if not is_there(self.store.fs, path):
            raise SessionNotFound("file not found", path=path)
        return path

    def _sub_agent(self, owner: str, name: str, cwd: str | None, progress: OnProgress | None) -> str:
        """The transcript of the session's sub-agent whose name starts with `name`."""
        path = self.find(owner, cwd, progress=progress)
        agents = [file for file in agent_files(self.store, path) if stem_of(file).startswith(name)]
        found = [file for file in agents if stem_of(file) == name] or agents
        if not found:
            hint = f"run `sessile show {owner} --agents` to list them"
            raise SessionNotFound(f"sub-agent not found: {_quoted(name)}", path=path, hint=hint)
        if len(found) > 1:
            candidates = [{"id": stem_of(file), "path": file} for file in found[:_MOST_CANDIDATES]]
            message = f"sub-agent {_quoted(name)} is ambiguous ({len(found)})"
            raise Ambiguous(message, path=path, hint="use more of its name, or its path", candidates=candidates)
        return found[0]

    def _recent(self, name: str, base: str, back: int, cwd: str | None) -> str:
        """The session that was modified last, or the one `back` places before it."""
        rows: Sequence[SessionRow] = self._catalog.list(Filter(project=cwd if base == "here" else None)).rows
        if base == "here":
            rows = [row for row in rows if row.cwd == cwd] or rows  # those of this very folder come first
        if back < len(rows):
            return rows[back].path
        if base == "here":
            message = f"session not found in this folder: {name}" if back else "there are no sessions in this folder"
            raise SessionNotFound(message, path=cwd, hint=f"use @last for all folders, or {_LIST_HINT}")
        raise SessionNotFound(f"session not found: {name}", hint=_LIST_HINT)

    def _by_id(self, name: str) -> Sequence[SessionRow]:
        rows = self._catalog.list(Filter(id_prefix=name, hide=("unreadable",))).rows
        rows = [row for row in rows if row.id == name] or (rows if len(name) >= SHORTEST_PREFIX else [])
        if len({row.id for row in rows}) == 1:
            # One session in several files: our own import is preferred, then the original over its copy.
            rows = [row for row in rows if self.store.layout.owns(row.path)] or rows
            rows = [row for row in rows if not self.store.layout.keeps(row.path)] or rows
            rows = [row for row in rows if not row.draft] or rows
            if len(rows) > 1:  # the last file of a session whose agent starts a new one after a rewind
                shown = self._catalog.list(Filter(id_prefix=name, hide=("unreadable", "imported"))).rows
                rows = [row for row in rows if row.number in {each.number for each in shown}] or rows
        return rows

    def _by_title(self, name: str) -> Sequence[SessionRow]:
        """Sessions with all words in title or first message; an exact title comes first, then any title."""
        rows = self._catalog.list(Filter(words=name.split(), hide=("unreadable",))).rows
        exact = [row for row in rows if row.title is not None and row.title.casefold() == name.casefold()]
        return exact or [row for row in rows if row.title is not None] or rows

    # -- erasing

    def erase(self, path: str, *, confirm: bool = False) -> Erasure:
        """Erase a session of the store for good, also from the catalog. See `Store.erase`."""
        if confirm:
            self._catalog.close()
        return self.store.erase(path, confirm=confirm, caches=() if self._cache is None else [self._cache])

    # -- searching

    def search(
        self,
        text: str,
        wanted: Filter | None = None,
        *,
        fields: Sequence[Field] | None = None,
        limit: int = 20,
        directly: bool = False,
        count: bool = True,
        scan: bool = True,
        timeout: float | None = SEARCH_TIMEOUT,
        progress: OnProgress | None = None,
    ) -> Results:
        """Find the entries that contain all words of a text, best first.

        New and changed sessions are indexed first. Without `fields`, messages, thinking and tool calls are searched with the
        index. If there are fewer than five hits, the other fields are read too, and their hits follow, marked by their `field`;
        otherwise they are only counted, for a moment. The result says what was not searched: no hits, with `unread` and
        `unscanned` empty, means that the text is nowhere.

        Args:
            text: The words; "quotes" make a phrase, and a trailing `*` matches the beginning of a word.
            wanted: Search only sessions that match this filter; all sessions if `None`.
            fields: Exactly these parts of entries: "text", "thinking", "tool_input", "tool_result", "other". The last two are not
                indexed, so the files are read.
            limit: The maximum number of hits.
            directly: Do not index sessions first; read those that are not indexed yet from end to end.
            count: Count the matches by field, also of fields that were not asked for, and in sessions that the filter excludes.
            scan: Whether files may be read. If not, use `scan_rest` to do it later.
            timeout: Seconds to spend on indexing, and on reading; no limit if `None`.
            progress: Called while files are read.

        Raises:
            InvalidQuery: The filter has an unknown value or a time without a time zone.
        """
        self._prepare("look" if directly else "index", timeout, progress)
        asked = INDEXED if fields is None else fields
        numbers = None if wanted is None else {row.number for row in self._catalog.list(wanted).rows}
        indexed = [field for field in asked if field in INDEXED]
        results = self._catalog.search(
            text, fields=indexed, sessions=numbers, limit=limit, directly=directly, count=count
        )
        if numbers is not None and count:
            everywhere = self._catalog.search(text, fields=indexed, limit=1, directly=False).matches
            excluded = sum(everywhere.get(field, 0) - results.matches.get(field, 0) for field in indexed)
            results = results._replace(excluded=max(0, excluded))
        results = _once(results)
        if not (results.pending or (scan and self._must_scan(results, fields, limit, count))):
            return results
        rows = self._catalog.list(Filter(hide=()) if wanted is None else wanted).rows
        if results.pending:
            unread = [row.path for row in rows if row.format is not None and not row.searchable]
            results = results._replace(unread=unread)
        if not scan:
            return results
        beyond = self._catalog.list(Filter(hide=())).rows if numbers is not None and not results.hits else []
        others = [row for row in beyond if row.number not in (numbers or ())]
        found = self.scan_rest(
            results,
            text,
            rows,
            fields=fields,
            limit=limit,
            count=count,
            beyond=others,
            timeout=timeout,
            progress=progress,
        )
        return _once(found)

    @staticmethod
    def _must_scan(results: Results, fields: Sequence[Field] | None, limit: int, count: bool) -> bool:
        """Return whether a search is not complete without reading files."""
        if fields is None:
            return count or len(results.hits) < FEW
        return count or (len(results.hits) < limit and any(field not in INDEXED for field in fields))

    def scan_rest(
        self,
        results: Results,
        text: str,
        rows: Sequence[SessionRow],
        *,
        fields: Sequence[Field] | None = None,
        limit: int = 20,
        count: bool = True,
        beyond: Sequence[SessionRow] = (),
        timeout: float | None = SEARCH_TIMEOUT,
        progress: OnProgress | None = None,
    ) -> Results:
        """Complete the results of `search` by reading what is not indexed. The catalog is not used.

        Args:
            results: The results of the index.
            text: The words, as in `search`.
            rows: The sessions that were searched.
            fields: The fields that were asked for.
            limit: The maximum number of hits.
            count: Count the matches in fields that were not asked for.
            beyond: Sessions that the filter excludes. Their matches are counted if there is nothing else.
            timeout: Seconds to spend. With some hits two seconds, and with enough hits a moment, are spent at most.
            progress: Called while files are read.
        """
        if not Query(text).terms:
            return results
        scan = _search().Rest(
            self.store.fs, AGENTS, self.store.blobs, text, results, fields=fields, limit=limit, count=count
        )
        scan.read(rows, timeout, progress)
        scan.count_beyond(beyond)
        completed: Results = scan.results()
        return completed

    def scan(
        self,
        needle: Needle,
        wanted: Filter = EVERYTHING,
        *,
        fields: Sequence[Field] = SHOWN,
        notices: MutableSequence[str],
    ) -> Iterator[Found]:
        """Find every text that contains a substring or matches a regular expression, newest sessions first.

        Args:
            needle: What to look for.
            wanted: Scan only sessions that match this filter.
            fields: The parts of entries to scan; also "tool_result" and "other".
            notices: Receives a message for everything that could not be scanned.
        """
        self._prepare("look")
        return self.scan_rows(self._catalog.list(wanted).rows, needle, fields=fields, notices=notices)

    def scan_rows(
        self,
        rows: Sequence[SessionRow],
        needle: Needle,
        *,
        fields: Sequence[Field] = SHOWN,
        notices: MutableSequence[str],
        deadline: float | None = None,
    ) -> Iterator[Found]:
        """Scan sessions that were listed before, without asking the catalog.

        Args:
            rows: The sessions.
            needle: What to look for.
            fields: The parts of entries to scan.
            notices: Receives a message for everything that could not be scanned.
            deadline: When to stop, as a value of `time.monotonic()`.
        """
        for number, row in enumerate(rows):
            if deadline is not None and time.monotonic() > deadline:
                notices.append(f"{len(rows) - number:,} of {len(rows):,} sessions were not searched: the time was up")
                return
            unread: list[Any] = []
            try:
                for match in _scan(
                    self.store.fs,
                    row.path,
                    needle,
                    AGENTS,
                    fields=fields,
                    findings=unread,
                    name=row.format or NATIVE,
                    get=self.store.blobs.of_session(row.path).get,
                ):
                    yield Found(row, match)
            except (StorageFailure, SessionNotFound) as error:
                notices.append(f"{row.path} was not searched: {error.message}")
            notices.extend(f"{row.path}: {finding.detail}, not searched" for finding in unread)


def _kept(store: Store) -> list[Source]:
    """The folders with copies of other agents' sessions, one for each agent."""
    kept = store.layout.kept
    with storage_failures(kept, "list the copies of sessions"):
        try:
            agents = store.fs.names(kept)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [Source(agent, f"{kept}/{agent}", f"{kept}/{agent}") for agent in agents if not agent.startswith(".")]


def added_sources(store: Store) -> NameSet:
    """Return the folders that the user has added to the known ones."""
    return NameSet(store.fs, f"{store.layout.root}/sources.json")


def _candidate(row: SessionRow) -> dict[str, str | None]:
    return {"id": row.id, "title": row.title or row.first_text, "project": row.cwd, "path": row.path}


def _quoted(name: str) -> str:
    return f'"{clean_name(name)[:80]}"'


# -- within one session


def _scan(fs: Filesystem, path: str, needle: Needle, formats: Formats, **options: Any) -> Iterator[Match]:
    found: Iterator[Match] = _search().scan_file(fs, path, needle, formats, **options)
    return found


def _search() -> ModuleType:
    from sessile.storage import search  # saves start-up time: a listing searches nothing

    return search


def find_entry(session: SessionView, name: str) -> str:
    """Return the id of the entry whose id starts with `name`.

    A row that another agent wrote beside the conversation, such as the record of a request, has to be named in full.

    Raises:
        Ambiguous: Several ids start with it.
        EntryNotFound: No id does.
    """
    if session.get_entry(name) is not None or (name.startswith("@") and any(True for _ in session.walk_up(name))):
        return name
    ids = dict.fromkeys(entry.id for entry in session.iter_entries() if entry.id.startswith(name))
    if not ids:
        hint = "run `sessile tree` to see the ids"
        raise EntryNotFound(f"entry not found: {_quoted(name)}", path=session.path, hint=hint)
    if len(ids) > 1:
        raise Ambiguous(
            f"entry {_quoted(name)} is ambiguous ({len(ids)})",
            path=session.path,
            hint="use more of the id",
            candidates=[{"id": entry_id} for entry_id in list(ids)[:_MOST_CANDIDATES]],
        )
    return next(iter(ids))


def find_leaf(session: SessionView, name: str) -> str:
    """Return the id of the entry that has this label, or whose id starts with `name`."""
    labelled = [entry_id for entry_id, label in session.get_labels().items() if label == name]
    return labelled[-1] if labelled else find_entry(session, name)


def find_in_session(
    store: Store, session: SessionView, needle: Needle, *, rows: Sequence[Row] | None = None, most: int | None = None
) -> list[int]:
    """Find the entries of one session that contain a text, on all branches.

    The file is scanned as it is now, so only lines that may contain the text are decoded. A session that is shown in another
    version than its file has is read entry by entry.

    Args:
        store: The store that opened the session.
        session: The session.
        needle: What to look for.
        rows: The rows of the session, if the caller has them.
        most: The maximum number of entries.

    Returns:
        The numbers of the rows, in file order. Leaf markers are counted, but never found.
    """
    rows = list(session.iter_rows()) if rows is None else rows
    found: list[int] = []
    for match in _scan(store.fs, session.path, needle, AGENTS, name=session.format):
        number = _row_of(rows, match)
        if number is None:
            return _first(_rows_with(session, rows, needle), most)
        if not rows[number].flags & MARKER and number not in found[-1:]:
            found.append(number)
        if len(found) == most:
            break
    return found


def _row_of(rows: Sequence[Row], match: Match) -> int | None:
    """The row that a match is in. One line of another agent's file may hold several entries."""
    from bisect import bisect_left  # saves start-up time: only a search in one session needs it

    number = bisect_left(rows, match.offset, key=lambda row: int(row.position[0]))
    while number < len(rows) and rows[number].position[0] == match.offset:
        if rows[number].id == match.entry_id:
            return number
        number += 1
    return None


def _rows_with(session: SessionView, rows: Sequence[Row], needle: Needle) -> Iterator[int]:
    for number, (row, entry) in enumerate(zip(rows, session.read_rows(rows), strict=True)):
        if not row.flags & MARKER and any(needle.spans(text) for _, text in pieces(entry.readable)):
            yield number


def _first(numbers: Iterator[int], most: int | None) -> list[int]:
    return [number for _, number in zip(range(most), numbers, strict=False)] if most is not None else list(numbers)


# -- sub-agents


class SubAgent(NamedTuple):
    """A sub-agent of a session; unknown values are `None`.

    Attributes:
        name: The name of its transcript, without the ending.
        path: The path of its transcript.
        agent_type: What kind of agent it is, from its sidecar file. A sidecar that is missing or damaged is a `problem`; the
            type is never guessed.
        description: Its task in a few words, from its sidecar.
        worktree_path: The git worktree in which it works, from its sidecar.
        messages: The number of messages in its transcript.
        problem: What could not be read.
    """

    name: str
    path: str
    agent_type: str | None
    description: str | None
    worktree_path: str | None
    messages: int | None
    problem: str | None


def _once(results: Results) -> Results:
    """Return the hits without those in an earlier file of a session that goes on in a later one, which has its rows too."""
    later = {hit.session_id for hit in results.hits if is_segment(hit.path)}
    if not later:
        return results
    last: dict[tuple[str, str | None, str], str] = {}
    for hit in results.hits:
        key = (hit.session_id, hit.entry_id, hit.field)
        last[key] = max(last.get(key, ""), hit.path, key=posixpath.basename)
    hits = [
        hit
        for hit in results.hits
        if hit.session_id not in later or hit.path == last[hit.session_id, hit.entry_id, hit.field]
    ]
    return results._replace(hits=hits)


def agent_files(store: Store, path: str) -> Iterator[str]:
    """Yield the transcripts of the sub-agents of the session in a file."""
    from sessile.storage.session_bytes import files_below  # a listing asks the catalog

    if (rendered := _rendered_agents(store, path)) is not None:
        yield from rendered
        return
    folder = artifacts_of(path)
    for found, _ in files_below(store.fs, folder):
        keeper = _keeper(found, folder)
        if found.endswith(JOURNAL) and (keeper is None or keeper.is_sub_agent(posixpath.basename(found))):
            yield found


def sub_agents(store: Store, path: str) -> Iterator[SubAgent]:
    """Yield the sub-agents of the session in a file, ordered by name."""
    folder, renderer = artifacts_of(path), _rendering(store, path)
    for found in agent_files(store, path):
        described: Mapping[str, Any] = {}
        messages = None
        problems = []
        try:
            keeper = renderer or _keeper(found, folder)
            described = {} if keeper is None else keeper.describe_sub_agent(store.fs, found)
        except SessileError as error:
            problems.append(error.message)
        try:
            messages = _count_messages(store, found)
        except SessileError as error:
            problems.append(error.message)
        agent_type, description, worktree = (
            value if isinstance(value := described.get(name), str) else None
            for name in ("agentType", "description", "worktreePath")
        )
        problem = "; ".join(problems) or None
        yield SubAgent(stem_of(found), found, agent_type, description, worktree, messages, problem)


def _rendering(store: Store, path: str) -> Agent | None:
    """Return the agent that renders the session at a path; `None` if it is in a file of its own."""
    agent = None if store.layout.owns(path) else AGENTS.agent_at(store.fs, path)
    return agent if agent is not None and agent.rendered else None


def _rendered_agents(store: Store, path: str) -> Sequence[str] | None:
    """Return the sub-agents of a session that its agent renders; `None` if they are files in the session's folder."""
    agent = _rendering(store, path)
    with storage_failures(path, "list the sub-agents"):
        return None if agent is None else agent.sub_agents_of(store.fs, path)


def _keeper(path: str, folder: str) -> Agent | None:
    """Return the agent in whose folder for sub-agents a file is."""
    places = ((agent, agent.sub_agents) for agent in AGENTS if agent.sub_agents)
    return next((agent for agent, place in places if path.startswith(f"{folder}/{place}/")), None)


def _count_messages(store: Store, path: str) -> int:
    """Return how many messages a transcript has."""
    with store.open(path, readonly=True) as session:
        return sum(1 for row in session.iter_rows() if row.flags & MESSAGE)
