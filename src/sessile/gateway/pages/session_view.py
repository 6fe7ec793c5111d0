"""Operations of the page that show one session: its outline, its entries, the context at an entry, branches and search.

Rules:
- Entries are named by number (see `views`). The first response reads the index of a session and no entry, however large
  the session is.
- HTML comes from the renderer, which makes stored text safe. Requested entries that do not exist are omitted. Only the
  requested entries, and neighbours that belong to their tool calls, are read.
- What the model saw at an answer is the context before it; at any other entry, the context including it. The rules of
  the context are those of `core.context`. For most entries only kind and role are read, once. What removed an entry
  from the context is reported.
- Of two compared branches, the common part is counted but not read. Of a long branch only the first entries are
  returned as HTML.
- Search reads the file itself, so results are complete. Case is ignored. The number of results is limited, and the
  response says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sessile.agents.registry import AGENTS
from sessile.core.compaction import context_size
from sessile.core.context import SessionContext, live_part, removals
from sessile.core.kinds import BOUNDARY, CHAIN, DEFAULT_ROLE, LABEL, MESSAGE, STATE, TALK
from sessile.core.large import MAX_STRING
from sessile.core.text import parse_timestamp
from sessile.core.tokens import Snapshot
from sessile.core.tree import NOWHERE
from sessile.core.usage import usage_of
from sessile.core.visible import visible, visible_line
from sessile.errors import InvalidQuery
from sessile.gateway.http.wire import RequestModel, ResponseModel, Routes
from sessile.gateway.pages.views import EntryNumber
from sessile.library import find_in_session
from sessile.next_request import context_for, gaps_of
from sessile.render.comparison import Comparison, Side, Turn, compare, measured, words_html
from sessile.render.html import moment_of
from sessile.render.outline import HIDDEN, EntryLine
from sessile.render.page import anchor_at, articles, entry_lines, may_be_near, near, number_at
from sessile.render.wording import many
from sessile.storage.search import Needle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile.core.entries import Entry
    from sessile.gateway.pages.views import View
    from sessile.gateway.service import Gateway


routes = Routes()

Json = Mapping[str, Any]

IdText = Annotated[
    str, Meta(min_length=1, max_length=500, description="Id of a session, or another name that commands accept.")
]

MAX_ENTRIES = 200  # in one response
MAX_ROWS = 5_000  # of an outline in one response
_MAX_NOTES = 20
_MAX_ARTICLES = 300  # of each compared branch
_MAX_FOUND = 5_000  # entries found by a search

_ASSISTANT = MESSAGE | STATE  # flags of an answer
_REMOVERS = ("compaction", "reset_boundary", "context_edit")
_ANSWER: Json = {"role": "assistant"}
_USER: Json = {"role": "user"}
_EXCLUDED = ("role", "excludeFromContext")
_DECIDING = (
    *("id", "type", "firstKeptEntryId", "summary", "systemMessage", "preserveData"),
    *("targetId", "replacement", "content", "timestamp"),
)


# -- the session


class ViewQuery(RequestModel, frozen=True):
    """The session. `at` is the anchor of an entry whose number is returned."""

    id: IdText
    at: Annotated[str, Meta(max_length=1_000)] | None = None


class ViewGap(ResponseModel, frozen=True):
    """Data that could not be read, after the entry with that number; -1 is before the first."""

    after: int
    text: str


class ViewedSession(ResponseModel, frozen=True):
    """A session without its entries. `path` are the entries up to the leaf, or to the last entry if there is no leaf.

    `window` is the context window of its model, `null` if unknown. `live` says whether its events can be followed.
    """

    id: str
    agent: str
    title: str
    cwd: str
    created: int | None
    modified: int
    total: int
    leaf: int | None
    heads: list[int]
    labels: dict[int, str]
    gaps: list[ViewGap]
    facts: list[tuple[str, str]]
    notes: list[str]
    writable: bool
    live: bool
    path: list[int]
    model: str | None
    window: int | None
    at: int | None


@routes.get("/v1/view/session", query=ViewQuery, answers={200: ViewedSession}, problems=(404, 409))
async def session(gateway: Gateway, query: ViewQuery) -> ViewedSession:
    """Return the metadata and branches of a session."""
    return await gateway.call(_session, gateway, query)


def _session(gateway: Gateway, query: ViewQuery) -> ViewedSession:
    with gateway.views.opened(query.id) as view:
        found, tree = view.session, view.tree
        tip = view.leaf
        if tip is None:
            tip = next((number for number in reversed(range(len(view.rows))) if not view.is_marker(number)), None)
        model = None if tip is None else found.get_state(view.rows[tip].id).models.get(DEFAULT_ROLE)
        return ViewedSession(
            id=found.id,
            agent=view.agent,
            title=visible_line(found.shown_title),
            cwd=visible_line(found.cwd),
            created=parse_timestamp(found.header.get("timestamp")),
            modified=view.mark[3] // 1_000_000,
            total=len(view.rows),
            leaf=view.leaf,
            heads=view.heads,
            labels=_labels(view),
            gaps=[ViewGap(after=after, text=visible(text)) for after, texts in view.gaps.items() for text in texts],
            facts=list(_facts(view)),
            notes=list(_notes(view)),
            writable=view.is_own,
            live=view.is_own,
            path=[] if tip is None else tree.path(tip),
            model=model,
            window=None if model is None else gateway.models.window(model),
            at=None if query.at is None else number_at(tree, query.at),
        )


def _labels(view: View) -> dict[int, str]:
    return {number: visible(text) for number, text in view.labels.items()}


def _facts(view: View) -> Iterator[tuple[str, str]]:
    found = view.session
    yield "id", visible_line(found.id)
    yield "agent", visible_line(view.agent)
    yield "project", visible_line(found.cwd) or "unknown"
    created = moment_of(parse_timestamp(found.header.get("timestamp")))
    yield "begun", f"{created:%Y-%m-%d %H:%M} UTC" if created else "unknown"
    yield "entries", f"{found.count_entries():,}"
    heads = len(view.heads)
    if heads > 1:
        yield "branches", f"{heads:,}"
    if view.labels:
        yield "labels", f"{len(view.labels):,}"
    yield "file", visible_line(view.path)


def _notes(view: View) -> Iterator[str]:
    """Yield what is to be said about the session as a whole."""
    if view.session.is_draft:
        yield "This is a draft: no answer yet, and other programs do not list it."
    gaps = sum(map(len, view.gaps.values()))
    if gaps:
        yield f"{many(gaps, 'place')} of the file could not be read"
    unplaced = [visible_line(finding.detail) for finding in view.session.findings if finding.offset < 0]
    yield from islice(unplaced, _MAX_NOTES)
    if len(unplaced) > _MAX_NOTES:
        yield f"and {len(unplaced) - _MAX_NOTES:,} more"


# -- outline


class OutlineQuery(RequestModel, frozen=True, rename={"from_": "from"}):
    """The session, and the range of entries, without `to`. At most 5,000."""

    id: IdText
    from_: EntryNumber = 0
    to: EntryNumber = MAX_ROWS


class ViewedOutline(ResponseModel, frozen=True, rename={"from_": "from"}):
    """Columns with one item for each entry from `from` up to `to`, in file order.

    `marks` are bit fields: the author in bits 0 to 2 (user, assistant, system, tool, shell, summary, setting, note),
    the lowest depth at which the entry is shown in bits 3 and 4 (prompts, chat, tools, all), whether it failed in bit
    5, and rows that are never shown in bit 6. `parents` are -1 for entries without a parent. `tokens` is the size of
    the context after an answer, as reported by the provider. `labels` and `leaf` are those of the whole session.
    """

    from_: int
    to: int
    total: int
    anchors: list[str]
    parents: list[int]
    marks: list[int]
    lines: list[str]
    tokens: list[int | None]
    labels: dict[int, str]
    leaf: int | None


@routes.get("/v1/view/outline", query=OutlineQuery, answers={200: ViewedOutline}, problems=(404, 409))
async def outline(gateway: Gateway, query: OutlineQuery) -> ViewedOutline:
    """Return one line for each entry of a range."""
    return await gateway.call(_outline, gateway, query)


def _outline(gateway: Gateway, query: OutlineQuery) -> ViewedOutline:
    with gateway.views.opened(query.id) as view:
        total = len(view.rows)
        first = min(query.from_, total)
        numbers = range(first, max(first, min(query.to, total, first + MAX_ROWS)))
        rows = _rows(view, numbers)
        return ViewedOutline(
            from_=numbers.start,
            to=numbers.stop,
            total=total,
            anchors=[anchor_at(view.tree, number) for number in numbers],
            parents=[view.tree.parents[number] for number in numbers],
            marks=[row.mark for row in rows],
            lines=[row.line for row in rows],
            tokens=[row.tokens for row in rows],
            labels=_labels(view),
            leaf=view.leaf,
        )


def _rows(view: View, numbers: Sequence[int]) -> list[EntryLine]:
    """Return the outline of entries. Lines are cached with the session."""
    missing = frozenset(number for number in numbers if number not in view.lines and not view.is_marker(number))
    view.lines.update(entry_lines(near_entries(view, missing, after=False), missing))
    return [view.lines.get(number, HIDDEN) for number in numbers]


# -- entries


class EntriesQuery(RequestModel, frozen=True, rename={"from_": "from"}):
    """The session, and its entries: comma-separated numbers, or a range. At most 200."""

    id: IdText
    numbers: Annotated[str, Meta(max_length=10_000, pattern=r"^[0-9]{1,10}(,[0-9]{1,10})*$")] | None = None
    from_: EntryNumber | None = None
    to: EntryNumber | None = None


class ViewedEntries(ResponseModel, frozen=True):
    """Entries as HTML, by number. Numbers without an entry are missing."""

    articles: dict[int, str]


@routes.get("/v1/view/entries", query=EntriesQuery, answers={200: ViewedEntries}, problems=(404, 409))
async def entries(gateway: Gateway, query: EntriesQuery) -> ViewedEntries:
    """Return entries of a session as HTML."""
    return await gateway.call(_entries, gateway, query.id, _numbers(query))


def _numbers(query: EntriesQuery) -> Sequence[int]:
    span = (query.from_, query.to)
    if (query.numbers is None) == (span == (None, None)):
        raise InvalidQuery("numbers, or from and to, are required", hint="pass one of them")
    if query.numbers is not None:
        numbers: Sequence[int] = sorted(set(map(int, query.numbers.split(","))))
    else:
        first = query.from_ or 0
        numbers = range(first, first + MAX_ENTRIES if query.to is None else query.to)
    if len(numbers) > MAX_ENTRIES:
        raise InvalidQuery(f"too many entries: {len(numbers):,}", hint=f"request at most {MAX_ENTRIES}")
    return numbers


def _entries(gateway: Gateway, name: str, requested: Sequence[int]) -> ViewedEntries:
    with gateway.views.opened(name) as view:
        numbers = [number for number in requested if number < len(view.rows)]
        return ViewedEntries(articles=articles_of(view, numbers))


def articles_of(view: View, numbers: Sequence[int]) -> dict[int, str]:
    """Return entries as HTML, by number, without markers."""
    wanted = frozenset(number for number in numbers if not view.is_marker(number))
    return articles(view.tree, near_entries(view, wanted), wanted, view.labels, view.gaps)


def near_entries(view: View, wanted: Collection[int], *, after: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield entries, with neighbours that belong to their tool calls. `after` is needed for HTML."""
    numbers = [n for n in near(sorted(wanted), len(view.rows), after=after) if not view.is_marker(n)]
    for number, entry in view.read(numbers):
        if number in wanted or may_be_near(entry.raw):
            yield number, entry.stored


class RawQuery(RequestModel, frozen=True):
    """The session, and the entry."""

    id: IdText
    number: EntryNumber


class ViewedRaw(ResponseModel, frozen=True):
    """An entry as it is stored. `line` may be cut; `bytes` is its full length."""

    number: int
    id: str
    parent: int
    entry: dict[str, Any]
    line: str
    bytes: int


@routes.get("/v1/view/raw", query=RawQuery, answers={200: ViewedRaw}, problems=(404, 409))
async def raw(gateway: Gateway, query: RawQuery) -> ViewedRaw:
    """Return an entry of a session as it is stored."""
    return await gateway.call(_raw, gateway, query)


def _raw(gateway: Gateway, query: RawQuery) -> ViewedRaw:
    with gateway.views.opened(query.id) as view:
        ((number, entry),) = view.read([view.check(query.number)])
        return ViewedRaw(
            number=number,
            id=entry.id,
            parent=view.tree.parents[number],
            entry=entry.stored,
            line=entry.raw[:MAX_STRING].decode("utf-8", "replace"),
            bytes=len(entry.raw),
        )


# -- what the model saw


class SawQuery(RequestModel, frozen=True):
    """The session, and the entry."""

    id: IdText
    at: EntryNumber


class Removal(ResponseModel, frozen=True):
    """The entries that one entry removed from the context."""

    by: int
    kind: str
    numbers: list[int]


class Prompt(ResponseModel, frozen=True):
    """What was sent beside the messages: the length of the system prompt in characters, and the names of the tools.

    `gaps` name what the agent sends but does not store.
    """

    characters: int
    tools: list[str]
    gaps: list[str]


class Saw(ResponseModel, frozen=True):
    """What the model saw. `numbers` are the entries in the context, in its order.

    `removed` are entries of the path that had been removed, `changed` those that were not sent as stored. `tokens` is
    the size of the context, reported by the provider or estimated. `window` is the context window of the model.
    """

    numbers: list[int]
    removed: list[Removal]
    changed: list[int]
    tokens: int | None
    source: str
    window: int | None
    model: str | None
    prompt: Prompt


@routes.get("/v1/view/saw", query=SawQuery, answers={200: Saw}, problems=(404, 409))
async def saw(gateway: Gateway, query: SawQuery) -> Saw:
    """Return what the model saw when an entry was made."""
    return await gateway.call(_saw, gateway, query)


def _saw(gateway: Gateway, query: SawQuery) -> Saw:
    with gateway.views.opened(query.id) as view:
        number = view.check(query.at)
        ((_, entry),) = view.read([number])
        is_answer = view.rows[number].flags & _ASSISTANT == _ASSISTANT
        tip = view.tree.parents[number] if is_answer else number
        path = [] if tip == NOWHERE else _deciding(view, view.tree.path(tip))
        messages, sources = live_part(path).messages()
        in_context = [source for source, message in zip(sources, messages, strict=True) if not _is_excluded(message)]
        removed, changed = _removed(view, path, in_context)
        model = _model(view, number, entry)
        size = _size(view, tip, entry if is_answer else None)
        return Saw(
            numbers=list(dict.fromkeys(view.numbers_of(in_context))),
            removed=removed,
            changed=changed,
            tokens=size.tokens,
            source=size.source,
            window=None if model is None else gateway.models.window(model),
            model=model,
            prompt=_prompt(view, None if tip == NOWHERE else view.rows[tip].id),
        )


def _prompt(view: View, at: str | None) -> Prompt:
    """Return what was sent beside the messages at an entry; `None` is before the first one."""
    agent = AGENTS.get(view.agent)
    context = SessionContext() if at is None else context_for(view.session, agent, at)
    return Prompt(
        characters=sum(map(len, context.system)),
        tools=[visible_line(str(tool.get("name"))) for tool in context.tools],
        gaps=gaps_of(context, None if agent is None else agent.dialect),
    )


def _removed(view: View, path: Sequence[Json], in_context: Sequence[str | None]) -> tuple[list[Removal], list[int]]:
    removed: dict[int, Removal] = {}
    changed: list[int] = []
    if not any(entry.get("type") in _REMOVERS for entry in path):
        return [], []
    for taking in removals(path, frozenset(in_context)):
        by, number = view.tree.number(str(taking.by["id"])), view.tree.number(taking.message)
        if by is None or number is None:
            continue
        if taking.changed:
            changed.append(number)
        else:
            removed.setdefault(by, Removal(by=by, kind=str(taking.by["type"]), numbers=[])).numbers.append(number)
    return list(removed.values()), changed


def _deciding(view: View, path: Sequence[int]) -> list[Json]:
    """Return the entries of a path, with what decides about the context. They are cached with the session."""
    kinds = view.kinds
    unknown = []
    for number in path:
        if number not in kinds:
            row = view.rows[number]
            if row.flags & _ASSISTANT == _ASSISTANT:
                kinds[number] = {"id": row.id, "type": "message", "message": _ANSWER}
            else:
                unknown.append(number)
    for number, entry in view.read(unknown):
        kinds[number] = _kind(entry, view.rows[number].flags)
    return [kinds[number] for number in path]


def _kind(entry: Entry, flags: int) -> Json:
    if flags & MESSAGE:
        return {"id": entry.id, "type": "message", "message": _message(entry)}
    if flags & (BOUNDARY | TALK) or flags == CHAIN:
        return {name: value for name, value in entry.stored.items() if name in _DECIDING}
    return {"id": entry.id, "type": "other"}


def _message(entry: Entry) -> Json | None:
    """Return a message without its text. Most need not be decoded for that."""
    raw = entry.raw
    if b'"message":{' in raw and b'"system"' not in raw and b'"excludeFromContext"' not in raw:
        return _USER
    message = entry.stored.get("message")
    return {name: message.get(name) for name in _EXCLUDED} if isinstance(message, dict) else None


def _is_excluded(message: Json) -> bool:
    return bool(message.get("excludeFromContext"))


def _model(view: View, number: int, entry: Entry) -> str | None:
    """Return the model of an answer, or the model that was set at an entry."""
    message = entry.stored.get("message")
    if isinstance(message, dict) and isinstance(message.get("model"), str):
        provider = message.get("provider")
        return f"{provider}/{message['model']}" if isinstance(provider, str) else str(message["model"])
    return view.session.get_state(view.rows[number].id).models.get(DEFAULT_ROLE)


def _size(view: View, tip: int, answer: Entry | None) -> Snapshot:
    """Return the size of the context: as reported by the provider for the answer, otherwise estimated."""
    if answer is not None:
        message = answer.get("message")
        usage = usage_of(message.get("usage")) if isinstance(message, dict) else None
        parts = () if usage is None else (usage.input, usage.cache_read, usage.cache_write)
        read = sum(part for part in parts if part is not None)
        if read:
            return Snapshot(read, "provider", answer.id)
    if tip == NOWHERE:
        return Snapshot(0, "estimate")
    return context_size(view.session.walk_up(view.rows[tip].id), view.session.read_row)


# -- search


class FindQuery(RequestModel, frozen=True):
    """The session, and the text to search for."""

    id: IdText
    q: Annotated[str, Meta(min_length=1, max_length=1_000)]


class FoundEntries(ResponseModel, frozen=True):
    """Matching entries in file order. With `more` there are further matches, which were not counted."""

    total: int
    numbers: list[int]
    more: bool


@routes.get("/v1/view/find", query=FindQuery, answers={200: FoundEntries}, problems=(404, 409))
async def find(gateway: Gateway, query: FindQuery) -> FoundEntries:
    """Search a session, on all of its branches."""
    return await gateway.call(_find, gateway, query)


def _find(gateway: Gateway, query: FindQuery) -> FoundEntries:
    needle = Needle(query.q, case=False)
    with gateway.views.opened(query.id) as view:
        found = find_in_session(gateway.store, view.session, needle, rows=view.rows, most=_MAX_FOUND + 1)
    return FoundEntries(total=len(found[:_MAX_FOUND]), numbers=found[:_MAX_FOUND], more=len(found) > _MAX_FOUND)


# -- comparing branches


class DiffQuery(RequestModel, frozen=True):
    """The session, and the heads of two branches."""

    id: IdText
    a: EntryNumber
    b: EntryNumber


class DiffEntry(ResponseModel, frozen=True):
    """An entry of one branch only. `html` is `null` if it must be requested separately."""

    number: int
    html: str | None


class DiffDeltas(ResponseModel, frozen=True):
    """What each branch used after the common part: as rows of text (name, both branches, difference), and as values."""

    rows: list[tuple[str, str, str, str]]
    left: dict[str, Any]
    right: dict[str, Any]


class DiffWords(ResponseModel, frozen=True):
    """The difference between the last answers."""

    html: str


class ViewedDiff(ResponseModel, frozen=True):
    """Two branches: the number of common entries and the last of them, and the entries of each branch.

    `pairs` are the first entries of turns that correspond to each other; `null` where a branch has none.
    """

    common: int
    common_number: int | None
    left: list[DiffEntry]
    right: list[DiffEntry]
    pairs: list[tuple[int | None, int | None]]
    deltas: DiffDeltas
    words: DiffWords


@routes.get("/v1/view/diff", query=DiffQuery, answers={200: ViewedDiff}, problems=(404, 409))
async def diff(gateway: Gateway, query: DiffQuery) -> ViewedDiff:
    """Compare two branches of a session."""
    return await gateway.call(_diff, gateway, query)


def _diff(gateway: Gateway, query: DiffQuery) -> ViewedDiff:
    with gateway.views.opened(query.id) as view:
        tree = view.tree
        one, other = view.check(query.a), view.check(query.b)
        parting = tree.common_ancestor(one, other)
        shared = [] if parting == NOWHERE else tree.path(parting)
        left, right = (tree.path(tip)[len(shared) :] for tip in (one, other))
        ours, theirs = ((entry.stored for _, entry in view.read(side)) for side in (left, right))
        comparison = compare(ours, theirs)
        return ViewedDiff(
            common=sum(not view.rows[number].flags & LABEL for number in shared),
            common_number=None if parting == NOWHERE else parting,
            left=_diff_entries(view, left),
            right=_diff_entries(view, right),
            pairs=[(_first_entry(view, a, left), _first_entry(view, b, right)) for a, b in comparison.pairs],
            deltas=_deltas(comparison),
            words=DiffWords(html=words_html(comparison.left.answer, comparison.right.answer)),
        )


def _diff_entries(view: View, numbers: Sequence[int]) -> list[DiffEntry]:
    articles = articles_of(view, numbers[:_MAX_ARTICLES])
    return [DiffEntry(number=number, html=articles.get(number)) for number in numbers]


def _first_entry(view: View, turn: Turn | None, side: Sequence[int]) -> int | None:
    """Return the first entry of a turn. A turn without a prompt starts with the branch."""
    if turn is None:
        return None
    return side[0] if turn.id is None else view.tree.number(turn.id)


def _deltas(comparison: Comparison) -> DiffDeltas:
    return DiffDeltas(rows=list(measured(comparison)), left=_values(comparison.left), right=_values(comparison.right))


def _values(side: Side) -> dict[str, Any]:
    return {name: value for name, value in side._asdict().items() if name not in ("turns", "answer")}
