"""What an agent is: where its sessions are, and how they are read, written, resumed and deleted.

`Agent` is the whole of one agent; `sessile.agents.registry` has the table. An agent whose files are not in the native format
has a `Format`, which turns its rows into entries:

    recognises   by content: the first bytes of a file, never its path
    scanner      splits a file into rows and reads the head of each
    header       the native header for a file
    translator   goes through the rows in order and returns id, parent and kind of each
    entry        one row as a native entry

An agent whose sessions are not rows of a file, such as a database, a log of changes, one document or a folder of parts, is
`rendered` instead:

    stored       lists the sessions of a source, each with a path, a mark, and what a listing shows of it
    renders      whether the session at a path is one of its own
    render       yields a session as a native header and native entries

    database, log, …  ─ stored ─→ catalog rows        only sessions whose mark changed are read again
                      ─ render ─→ native lines in a nameless temporary file ─→ reader, index, counts, words, export, fork, …

Nothing else differs: everything that works on a file works on the rendered lines. Ids come from the source, so that they are the
same the next time. What was replaced or rewound stays as a branch, with `leaf` in the header naming the entry from which the
conversation continues. What has no counterpart is kept in `custom` entries, or in members of its own.

Rules: a row is one entry, or several (an answer together with the results of its calls). Rows that are not part of a conversation
are markers: no tree shows them, and nothing of them is lost. A translator may keep some state between rows, and can continue from
what it saved. Rows stay where they are: an entry is made when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import basename as _base
from posixpath import dirname as _above
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import msgspec

from sessile.core.codec import decode
from sessile.core.digest import spoken
from sessile.core.kinds import MARKER, flags_of
from sessile.core.lines import Finding, Head, Line, Scanner, read_head
from sessile.core.providers import Dialect
from sessile.errors import Unsupported
from sessile.storage.formats import Stored, Told
from sessile.storage.layout import Source
from sessile.storage.walk import Mark, mark_of

if TYPE_CHECKING:
    from sessile.agents.reader import ForeignReader
    from sessile.agents.writer import RowsJournal
    from sessile.core.conversation import Conversation
    from sessile.core.messages.request import Request
    from sessile.storage.base import Filesystem

Entry = dict[str, Any]
Look = Callable[[str], bytes | None]
"""Returns the row of an entry by its id, or `None`."""

NOTHING_TOLD = Told()

Capability = Literal["append", "branch", "label", "compact", "title", "tag", "archive", "delete"]
"""What can be done to a session where its agent keeps it; `delete` moves it to our trash."""

NATIVE_CAPABILITIES: frozenset[Capability] = frozenset(
    {"append", "branch", "label", "compact", "title", "tag", "delete"}
)
"""What can be done to sessions in the native format: our own, and those of the pi family."""

_ORDER: tuple[Capability, ...] = get_args(Capability)
_IN_THE_COPY: Mapping[str, str] = {"label": "label the copy", "title": "name the copy", "tag": "tag the copy"}

DAY = 24 * 3600 * 1000  # milliseconds
_SHORTEST = 1  # day; Claude Code refuses less, and older releases deleted everything or wrote nothing then


class Agent:
    """One agent. Subclass it, set `name` and `title`, and override what the agent has.

    Attributes:
        name: The name in commands, catalogs and messages, such as `claude`.
        title: The name for people, such as `Claude Code`.
        capabilities: What can be done to its sessions where they are. Everything else needs a fork.
        command: The command that resumes a session, without its last argument; empty if there is none.
        resumes_by_id: Whether the last argument of `command` is the session's id rather than its file.
        expiry: When the agent deletes its own sessions; `None` if it never does.
        variables: Environment variables that move its home, each with the default.
        sub_agents: The folder below a session's own folder in which it keeps the transcripts of sub-agents.
        surroundings: How the types of messages begin in which it tells the model about itself, such as its environment.
        placing: The module that `place` imports when it is called, because a listing places nothing.
        rendered: Whether its sessions are not rows of a file; then it has `stored`, `renders` and `render`.
        dialect: How it writes its requests; `None` if that is unknown, so that only the provider's rules count.
    """

    name: str = ""
    title: str = ""
    capabilities: frozenset[Capability] = frozenset()
    command: tuple[str, ...] = ()
    resumes_by_id: bool = False
    expiry: Expiry | None = None
    variables: tuple[tuple[str, str], ...] = ()
    sub_agents: str | None = None
    placing: str = ""
    surroundings: tuple[str, ...] = ()
    rendered: bool = False
    dialect: Dialect | None = None

    @property
    def format(self) -> Format | None:
        """How its rows are read; `None` for the native format of the pi family."""
        if not self.rendered:
            return None
        return RenderedRows(self.name)

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folders where it keeps sessions, whether they exist or not.

        Args:
            home: The user's home folder.
            environ: The environment variables.
            names: Lists a folder; returns nothing for one that cannot be listed.
        """
        return []

    def sources_at(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return its sources in a folder that is a copy of a home folder, or of the agent's own folder."""
        homes = {folder}
        for source in self.sources(folder, {}, lambda path: ()):
            below = source.root.removeprefix(folder)
            if below.startswith("/") and folder.endswith(below):
                homes.add(folder.removesuffix(below))
        found = [source for home in homes for source in self.sources(home, {}, names)]
        return [
            source
            for source in found
            if names(source.sessions) or _base(source.sessions) in names(_above(source.sessions))
        ]

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored] | None:
        """Return the sessions of a rendered agent below a place; `None` if the place only has files, such as kept copies."""
        return None

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether the session at a path is one of a rendered agent.

        `first` are the first bytes of the file, and empty if the path is inside of one. This must not raise or read anything.
        """
        return False

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield a session of a rendered agent: a native header, entries with parents before children, and findings.

        Raise `OSError` if there is no such session. Any other error ends the session with a finding that says so.
        """
        raise read_only(self, path)

    def sub_agents_of(self, fs: Filesystem, path: str) -> Sequence[str] | None:
        """Return the paths of a session's sub-agents; `None` if they are files in the session's folder."""
        return None

    def period(self, settings: Mapping[str, bytes]) -> Period:
        """Return how long it keeps sessions, by its settings files; files that do not exist are not in `settings`."""
        return Period(None) if self.expiry is None else period_of(self.expiry, settings)

    def endangered(self, fs: Filesystem, place: str) -> Iterable[str]:
        """Return the sessions below a place that it deletes at its next start, whatever its settings say."""
        return ()

    def belongings(self, fs: Filesystem, path: str) -> Sequence[str]:
        """Return the files that belong to a session and are not in the folder beside it."""
        return ()

    def titles(self, data: bytes) -> Mapping[str, Told] | None:
        """Return what its own list of sessions (`sessions.json`) says of each; `None` if `data` is not its list."""
        return None

    def unpack(self, suffix: str, chunks: Iterator[bytes]) -> Iterator[bytes] | None:
        """Return the rows of a file whose rows are not its bytes; `None` if it has no files with that suffix."""
        return None

    def join(self, fs: Filesystem, path: str) -> Iterator[bytes | Finding] | None:
        """Yield the rows of all files of a session up to this one; `None` if it has no sessions in several files."""
        return None

    def related(self, fs: Filesystem, path: str, first: bytes) -> Related:
        """Return the sessions that a session comes from; `first` is the start of its file."""
        return NO_RELATIVES

    def history(self, fs: Filesystem, path: str, first: bytes) -> Sequence[Stretch]:
        """Return the parts of other files whose rows come before those of a session's own file."""
        return ()

    def open_for_writing(self, place: Place, path: str) -> RowsJournal:
        """Open a session for writing where it is."""
        raise read_only(self, path)

    @property
    def places(self) -> bool:
        """Whether a conversation can be put where the agent's program finds it."""
        return bool(self.placing) or type(self).place is not Agent.place

    def place(self, conversation: Conversation, home: str, environ: Mapping[str, str]) -> Placed:
        """Return the file with which the agent's own program goes on from a conversation, and where it belongs.

        Nothing is written here. The same conversation gives the same id and path.

        Args:
            conversation: What to go on from.
            home: The user's home folder.
            environ: The environment variables.
        """
        if not self.placing:
            raise Unsupported(f"cannot place a session for {self.name}", hint="resume it in another agent")
        placed: Placed = __import__(self.placing, fromlist=("place",)).place(self, conversation, home, environ)
        return placed

    def list_at(self, place: Place, folder: str, *, missing: bool = False) -> SessionList | None:
        """Return the agent's own list of the sessions in a folder; `None` if there is none, unless it may be missing."""
        return None

    def check(self, fs: Filesystem, path: str) -> tuple[Sequence[Finding], Mapping[str, int]] | None:
        """Explain a session file: findings, and how many rows there are of each sort; `None` if there is nothing to add."""
        return None

    def request(self, reader: ForeignReader, entry_id: str, api: str | None) -> tuple[str, Request] | None:
        """Return the request that it sent, or sends, after an entry as its own files tell it, and the API.

        `None` if they do not tell it, or not for this API: the request is then made from the context, in its dialect.
        """
        return None

    def is_sub_agent(self, name: str) -> bool:
        """Return whether a file of that name in `sub_agents` is the transcript of a sub-agent."""
        return True

    def describe_sub_agent(self, fs: Filesystem, path: str) -> Mapping[str, Any]:
        """Return what the agent notes of a sub-agent: agentType, description, worktreePath."""
        return {}

    def model_facts(self, fs: Filesystem, path: str, provider: str, model: str) -> Mapping[str, Any]:
        """Return what its settings say of a model, for a session file: `input` (such as text, image), `reasoning`."""
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Related(NamedTuple):
    """The files of the sessions that a session comes from; empty if there are none.

    Attributes:
        parent: The session that it was forked from, or that started it as a sub-agent.
        before: An earlier file of the same session, which is not listed by itself.
    """

    parent: str = ""
    before: str = ""


NO_RELATIVES = Related()


class Stretch(NamedTuple):
    """The first bytes of a file; `None` in place of the path if it is missing, with the reason."""

    path: str | None
    size: int
    problem: str = ""


class Place(NamedTuple):
    """What a writer needs besides the path of a session: the file system, our own folder, and how durable a write is."""

    fs: Filesystem
    root: str  # of our own store: what is kept of other agents' files is below it
    index_path: Callable[[str], str]
    power: bool  # whether a write survives a power cut
    patience: float  # seconds to wait for a lock
    now: Callable[[], int]  # milliseconds since 1970


class Placed(NamedTuple):
    """A session as an agent's own program resumes it.

    Attributes:
        id: The id by which the program finds it.
        path: Where the program looks for it.
        lines: The rows of the file, each with its newline.
        notes: What was changed or left out.
    """

    id: str
    path: str
    lines: Sequence[bytes]
    notes: Sequence[str] = ()


class SessionList(Protocol):
    """An agent's own list of the sessions in a folder, which names each of them."""

    def paths(self) -> list[str]:
        """Return one file of each session."""
        ...

    def files_of(self, path: str) -> Sequence[str]:
        """Return every file of a session, including attachments."""
        ...

    def told(self, path: str) -> Told:
        """Return the title and project of a session."""
        ...

    def why_spared(self, path: str) -> Literal["pinned", "scheduled", "open"] | None:
        """Return why a session must not be deleted, if so."""
        ...

    def delete(self, path: str) -> str:
        """Move a session to our trash and out of the list; return the token that undoes it."""
        ...

    def undo(self, token: str) -> None:
        """Put a deleted session back, and its row into the list."""
        ...


# -- rows


class Known(msgspec.Struct, gc=False):
    """One entry of a row: its head, and its flags where they are not those of its kind.

    `filled` are members that earlier rows tell: of the message, or of an entry without one. With `usage` in it, a marker tells
    the usage of the answer before it. An entry that is not `counted` is a copy from another session, or no message of its own.
    """

    head: Head
    told: int | None = None
    filled: dict[str, Any] | None = None
    counted: bool = True

    @property
    def flags(self) -> int:
        """What the entry marks."""
        return flags_of(self.head) if self.told is None else self.told


class Glimpse(NamedTuple):
    """What a listing shows of a session; an unknown value is empty."""

    title: str = ""
    first_text: str = ""
    last_role: str = ""


class Translator(Protocol):
    """Goes through the rows of one file in order."""

    @property
    def leaf(self) -> str | None:
        """The entry from which the conversation continues, as of the rows taken so far."""
        ...

    def take(self, line: Line) -> Sequence[Known]:
        """Return the entries of the next row; at least one."""
        ...

    def saved(self) -> Any:
        """Return what is needed to continue later, as plain JSON."""
        ...


class Format(Protocol):
    """How the rows of an agent's files become entries."""

    @property
    def name(self) -> str:
        """The name in catalogs and messages."""
        ...

    @property
    def nested(self) -> bool:
        """Whether texts are JSON inside JSON, so that a search must also look for escaped text."""
        ...

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner that splits a file into rows, starting at `offset`."""
        ...

    def recognises(self, first: bytes) -> bool:
        """Return whether a file that starts with these bytes is in this format."""
        ...

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Return the native header for a file; `stem` is its name without the suffix."""
        ...

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Return what the two ends of a file show; `None` if it must not be listed."""
        ...

    def translator(self, saved: Any = None) -> Translator:
        """Return a translator for the start of a file, or one that continues from `saved`."""
        ...

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """Return the ids of the entries of the row at an offset."""
        ...

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """Return the entry with that id of a row."""
        ...


class Near(Protocol):
    """The rows around an entry."""

    @property
    def memory(self) -> dict[str, Any]:
        """What was found before in the same file, for the format's own use."""
        ...

    @property
    def model(self) -> str | None:
        """The model ("provider/model") that was chosen last before the entry."""
        ...

    def first(self) -> bytes:
        """Return the first row of the session's own file."""
        ...

    def before(self) -> Iterator[bytes]:
        """Yield the rows before the entry, the nearest first."""
        ...

    def after(self) -> Iterator[bytes]:
        """Yield the rows after the entry."""
        ...


@runtime_checkable
class Completing(Protocol):
    """A format whose rows do not tell everything about their entries."""

    def complete(self, entry: Entry, raw: bytes, near: Near) -> None:
        """Add to an entry what the rows around it tell, such as the name of the tool that a result comes from."""
        ...


def fill(entry: Entry, known: Known) -> None:
    """Add to an entry what earlier rows tell of it."""
    if known.filled:
        holder = entry.get("message")
        holder = holder if isinstance(holder, dict) else entry
        holder.update({name: value for name, value in known.filled.items() if not holder.get(name)})


class Saved(msgspec.Struct):
    """The state of a `Chain`: the last entry and the last chosen model."""

    last: str | None = None
    model: str | None = None


class Chain:
    """The state of a translator for rows without parents: each row is a child of the one before."""

    def __init__(self, saved: Any = None) -> None:
        self.kept = Saved() if saved is None else msgspec.convert(saved, Saved)

    @property
    def leaf(self) -> str | None:
        """The last entry."""
        return self.kept.last

    def saved(self) -> Any:
        """Return what is needed to continue later."""
        return msgspec.to_builtins(self.kept)


def placed(offset: int, part: int = 0) -> str:
    """Return the id of the row at an offset, or of a later entry of it, for rows without ids."""
    return f"@{offset:x}/{part}" if part else f"@{offset:x}"


def offset_of(entry_id: str) -> int:
    """Return the offset in such an id; 0 if it is another id."""
    return int(entry_id[1:].partition("/")[0], 16) if entry_id.startswith("@") else 0


def row_of(raw: bytes) -> dict[str, Any]:
    """Decode a row; return an empty object if it is not one."""
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def rows_in(data: bytes) -> Iterator[tuple[int, dict[str, Any] | Finding]]:
    """Yield the rows of a file with their offsets; a finding for one that is not a JSON object, as if it was cut off."""
    offset = 0
    for raw in data.split(b"\n"):
        if row := row_of(raw):
            yield offset, row
        elif raw.strip():
            yield offset, Finding("not_json", offset, len(raw), "a row that is not a JSON object")
        offset += len(raw) + 1


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; nothing if it is not one."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


# -- rendered sessions


def joint_mark(fs: Filesystem, path: str, *others: str) -> Mark:
    """Return the mark of a session in several files, of which the others may be missing."""
    size, modified, inode, device, changed = mark_of(fs.lstat(path))
    for other in others:
        try:
            also = mark_of(fs.lstat(other))
        except OSError:
            continue
        size = (size or 0) + (also[0] or 0)
        modified, changed = max(modified, also[1]), max(changed or 0, also[4] or 0)
    return size, modified, inode, device, changed


class _Leaf(msgspec.Struct):
    """The leaf that the header names, and the last entry."""

    leaf: str | None = None
    last: str | None = None


class RenderedRows:
    """The format of an agent's rendered sessions."""

    nested = False

    def __init__(self, name: str) -> None:
        self.name = name

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner for native lines."""
        return Scanner(offset)

    def recognises(self, first: bytes) -> bool:
        """Return whether the first line is a header with the agent's name."""
        header = row_of(first.split(b"\n", 1)[0])
        return header.get("type") == "session" and header.get("format") == self.name

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Return the first line."""
        return row_of(first.split(b"\n", 1)[0]) or {"type": "session", "version": 3, "id": stem, "format": self.name}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Return the title in the header, and the first prompt."""
        lines = first.split(b"\n")
        title = row_of(lines[0]).get("title")
        title = title if isinstance(title, str) else ""
        for line in lines[1:]:
            message = row_of(line).get("message")
            if isinstance(message, dict) and message.get("role") == "user" and (said := spoken(message.get("content"))):
                return Glimpse(title, said)
        return Glimpse(title)

    def translator(self, saved: Any = None) -> RenderedLines:
        """Return a translator for the start of the lines, or for a saved state."""
        return RenderedLines(saved)

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """Return the id of an entry; none for the header."""
        head = read_head(raw)
        return () if head.id is None or head.type == "session" else (head.id,)

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """Return a line as it is."""
        entry: Entry = decode(raw)
        return {**entry, "parentId": parent_id}


class RenderedLines:
    """The translator of rendered lines: they are entries already."""

    def __init__(self, saved: Any = None) -> None:
        self._kept = _Leaf() if saved is None else msgspec.convert(saved, _Leaf)

    @property
    def leaf(self) -> str | None:
        """The entry that the header names, else the last one."""
        return self._kept.leaf or self._kept.last

    def saved(self) -> Any:
        """Return what is needed to continue later."""
        return msgspec.to_builtins(self._kept)

    def take(self, line: Line) -> Sequence[Known]:
        """Return the entry of a line; none for the header."""
        head = line.head
        if head.type == "session":
            leaf = row_of(line.raw).get("leaf")
            self._kept.leaf = leaf if isinstance(leaf, str) else None
            return ()
        if head.id is None:
            return ()
        if not flags_of(head) & MARKER:
            self._kept.last = head.id
        return (Known(head),)


# -- what an agent cannot do


def ordered(capabilities: frozenset[Capability]) -> tuple[Capability, ...]:
    """Return capabilities in their usual order."""
    return tuple(capability for capability in _ORDER if capability in capabilities)


def possible(agent: Agent) -> str:
    """Describe what can be done to an agent's sessions where they are."""
    if not agent.capabilities:
        return f"files of {agent.name} are read-only"
    return f"{agent.name} can take in place: {', '.join(ordered(agent.capabilities))}"


def unsupported(agent: Agent, what: str, path: str, capability: str | None = None) -> Unsupported:
    """Return the error for what an agent does not have, such as `branches`."""
    doing = _IN_THE_COPY.get(capability or "", "continue in the copy")
    return Unsupported(
        f"{agent.name} has no {what}", path=path, hint=f"fork it (sessile fork) and {doing}; {possible(agent)}"
    )


def read_only(agent: Agent, path: str) -> Unsupported:
    """Return the error for writing to a session of another agent without `in_place`."""
    rest = f"or pass in_place=True: {possible(agent)}" if agent.capabilities else possible(agent)
    return Unsupported(
        f"this is a session of {agent.name}, which is only read",
        path=path,
        hint=f"fork it and continue in the copy; {rest}",
    )


# -- when an agent deletes its sessions


class Expiry(NamedTuple):
    """How long an agent keeps a session that does not change, and which setting changes that.

    Of several settings files the shortest period counts: which one the agent uses depends on the folder that it is started in,
    and it deletes the sessions of all folders.
    """

    settings: tuple[
        str, ...
    ]  # files below the agent's home; `days` counts if the first is missing or has no such member
    member: str
    days: int


class Period(NamedTuple):
    """How long a session is kept after its last change, in milliseconds; if that is unknown, why. Without either, for ever."""

    length: int | None
    problem: str | None = None


def period_of(expiry: Expiry, settings: Mapping[str, bytes]) -> Period:
    """Return the period that these settings files leave; files that do not exist are not in `settings`.

    A setting that cannot be understood gives no period but a problem: an unknown deadline must not look safe.
    """
    found: list[float] = []
    for number, name in enumerate(expiry.settings):
        try:
            value = _days(settings.get(name), expiry.member)
        except ValueError as error:
            return Period(None, f"{name}: {error}")
        if value is None and not number:
            value = expiry.days
        if value is not None:
            found.append(value)
    return Period(int(min(found) * DAY))


def deadline(modified: int, period: Period) -> int | None:
    """Return when the agent deletes a session last changed at `modified`, in milliseconds; `None` if unknown."""
    return None if period.length is None else modified + period.length


def _days(data: bytes | None, member: str) -> float | None:
    """Return the days in a settings file, if it has any."""
    if data is None:
        return None
    try:
        settings = decode(data)
    except ValueError as error:
        raise ValueError("not valid JSON") from error
    if not isinstance(settings, dict):
        raise ValueError("not a JSON object")
    days = settings.get(member)
    if days is None:
        return None
    if isinstance(days, bool) or not isinstance(days, int | float) or not _SHORTEST <= days < math.inf:
        raise ValueError(f"{member} must be a number of days, at least {_SHORTEST}")
    return days
