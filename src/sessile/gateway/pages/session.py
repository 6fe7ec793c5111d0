"""Operations that show a whole session at a glance: what it is, and one line for each of its entries.

Rules: the first answer reads the index of a session and no entry, however large it is; lines come so many at a time. Entries are
named by number, as `viewing` has it.

Operations that show entries of a session: as articles, and as they are stored.

Rules: articles are the renderer's, and nothing stored is in them that it did not make safe. What is asked for and not there is
left out. Bodies are read for the entries that are asked for and for those near them that they call or answer.

The operation that shows what the model saw: which entries were in its context when an entry was made, and which were gone.

Rules: an answer of a model is asked about what came before it, any other entry about what the model sees with it. The rules of
the context are `core.context`'s; to apply them to any place of a long path, of most entries only kind and role are read, once.
What took an entry out is named; nothing is ever gone from the session.

The operation that shows two branches of a session beside each other.

Rules: what both branches share is counted and not read. The turns of both are paired as `render.comparison` pairs them. Of a long
branch the first entries are given as articles; which others there are is told by number.

The operation that finds words in one session, on all of its branches.

Rules: the file itself is searched, so that an answer is complete as of now. Case does not count. More hits than anybody goes
through are not looked for, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sessile.core.compaction import context_size
from sessile.core.context import live_part, removals
from sessile.core.kinds import BOUNDARY, CHAIN, DEFAULT_ROLE, LABEL, MESSAGE, STATE, TALK
from sessile.core.large import MAX_STRING
from sessile.core.text import parse_timestamp
from sessile.core.tokens import Snapshot
from sessile.core.tree import NOWHERE
from sessile.core.usage import usage_of
from sessile.core.visible import visible, visible_line
from sessile.errors import InvalidQuery
from sessile.gateway.http.wire import Taken, Told
from sessile.gateway.pages.viewing import NameText, NumberText
from sessile.library import find_in_session
from sessile.render.comparison import Comparison, Side, Turn, compare, measured, words_html
from sessile.render.html import moment_of
from sessile.render.outline import HIDDEN, EntryLine
from sessile.render.page import anchor_at, articles, entry_lines, may_be_near, near, number_at
from sessile.render.wording import many
from sessile.storage.search import Needle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile.core.entries import Entry
    from sessile.gateway.pages.viewing import View
    from sessile.gateway.service import Gateway


# --- view entries

Json = dict[str, Any]

MOST_ENTRIES = 200  # in one answer


def articles_of(view: View, numbers: Sequence[int]) -> dict[int, str]:
    """Some entries of a session as articles, by number; markers are left out."""
    wanted = frozenset(number for number in numbers if not view.is_marker(number))
    return articles(view.tree, near_entries(view, wanted), wanted, view.labels, view.gaps)


def near_entries(view: View, wanted: Collection[int], *, after: bool = True) -> Iterator[tuple[int, Json]]:
    """Some entries, with those around them that they may call or answer; `after` is needed for articles."""
    numbers = [n for n in near(sorted(wanted), len(view.rows), after=after) if not view.is_marker(n)]
    for number, entry in view.read(numbers):
        if number in wanted or may_be_near(entry.raw):
            yield number, entry.body


# -- articles


class EntriesQuery(Taken, frozen=True, rename={"from_": "from"}):
    """Which entries of a session: numbers with commas between them, or from one up to another; 200 at most."""

    id: NameText
    numbers: Annotated[str, Meta(max_length=10_000, pattern=r"^[0-9]{1,10}(,[0-9]{1,10})*$")] | None = None
    from_: NumberText | None = None
    to: NumberText | None = None


class ViewedEntries(Told, frozen=True):
    """Articles by number; a number that no entry has is not among them."""

    articles: dict[int, str]


async def entries(gateway: Gateway, query: EntriesQuery) -> ViewedEntries:
    """Some entries as HTML."""
    asked = _asked(query)
    return await gateway.call(_entries, gateway, query.id, asked)


def _asked(query: EntriesQuery) -> Sequence[int]:
    span = (query.from_, query.to)
    if (query.numbers is None) == (span == (None, None)):
        raise InvalidQuery("name entries either by numbers or from one to another", hint="just one of them")
    if query.numbers is not None:
        asked: Sequence[int] = sorted(set(map(int, query.numbers.split(","))))
    else:
        first = query.from_ or 0
        asked = range(first, first + MOST_ENTRIES if query.to is None else query.to)
    if len(asked) > MOST_ENTRIES:
        raise InvalidQuery(f"{len(asked):,} entries are too many at once", hint=f"{MOST_ENTRIES} at most")
    return asked


def _entries(gateway: Gateway, name: str, asked: Sequence[int]) -> ViewedEntries:
    with gateway.views.opened(name) as view:
        numbers = [number for number in asked if number < len(view.rows)]
        return ViewedEntries(articles=articles_of(view, numbers))


# -- as it is stored


class RawQuery(Taken, frozen=True):
    """Which entry."""

    id: NameText
    number: NumberText


class ViewedRaw(Told, frozen=True):
    """An entry as it is stored, and its line, of which `line` may be the beginning only; `bytes` says how long it is."""

    number: int
    id: str
    parent: int
    entry: dict[str, Any]
    line: str
    bytes: int


async def raw(gateway: Gateway, query: RawQuery) -> ViewedRaw:
    """One entry as it is stored."""
    return await gateway.call(_raw, gateway, query)


def _raw(gateway: Gateway, query: RawQuery) -> ViewedRaw:
    with gateway.views.opened(query.id) as view:
        ((number, entry),) = view.read([view.check(query.number)])
        return ViewedRaw(
            number=number,
            id=entry.id,
            parent=view.tree.parents[number],
            entry=entry.body,
            line=entry.raw[:MAX_STRING].decode("utf-8", "replace"),
            bytes=len(entry.raw),
        )


# --- view session

MOST_ROWS = 5_000  # of an outline in one answer
_MOST_NOTES = 20


# -- what a session is


class ViewQuery(Taken, frozen=True):
    """Which session; `at` is the anchor of an entry in it whose number is asked for."""

    id: NameText
    at: Annotated[str, Meta(max_length=1_000)] | None = None


class ViewGap(Told, frozen=True):
    """Something that could not be read, behind the entry with that number; -1 is before the first."""

    after: int
    text: str


class ViewedSession(Told, frozen=True):
    """A session without its entries. `path` are the entries up to the leaf, or to the last entry if there is no leaf.

    `window` is how many tokens its model can read, `None` if nobody knows; `live` says whether its events can be followed.
    """

    id: str
    agent: str
    title: str | None
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


async def session(gateway: Gateway, query: ViewQuery) -> ViewedSession:
    """What a session is, and how it branches."""
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
            title=None if found.title is None else visible_line(found.title),
            cwd=visible_line(found.cwd),
            created=parse_timestamp(found.header.get("timestamp")),
            modified=view.mark.modified // 1_000_000,
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
    begun = moment_of(parse_timestamp(found.header.get("timestamp")))
    yield "begun", f"{begun:%Y-%m-%d %H:%M} UTC" if begun else "unknown"
    yield "entries", f"{found.count_entries():,}"
    heads = len(view.heads)
    if heads > 1:
        yield "branches", f"{heads:,}"
    if view.labels:
        yield "labels", f"{len(view.labels):,}"
    yield "file", visible_line(view.path)


def _notes(view: View) -> Iterator[str]:
    """What is not as it should be, and has no place of its own."""
    gaps = sum(map(len, view.gaps.values()))
    if gaps:
        yield f"{many(gaps, 'place')} of the file could not be read"
    unplaced = [visible_line(finding.detail) for finding in view.session.findings if finding.offset < 0]
    yield from islice(unplaced, _MOST_NOTES)
    if len(unplaced) > _MOST_NOTES:
        yield f"and {len(unplaced) - _MOST_NOTES:,} more like these"


# -- one line for each entry


class OutlineQuery(Taken, frozen=True, rename={"from_": "from"}):
    """Which session, and from which entry up to which, which is not among them; 5,000 at most."""

    id: NameText
    from_: NumberText = 0
    to: NumberText = MOST_ROWS


class ViewedOutline(Told, frozen=True, rename={"from_": "from"}):
    """Columns with one item for each entry from `from` up to `to`, in file order.

    `marks` are numbers: who in bits 0 to 2 (user, assistant, system, tool, shell, summary, setting, note), the least depth at
    which it is shown in bits 3 and 4 (prompts, chat, tools, all), whether it failed in bit 5; bit 6 is a row that nobody sees.
    `parents` are -1 for what hangs from nothing. `tokens` is how large the context was after an answer, by the word of the
    provider. `labels` and `leaf` are of the whole session.
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


async def outline(gateway: Gateway, query: OutlineQuery) -> ViewedOutline:
    """One line for each of some entries."""
    return await gateway.call(_outline, gateway, query)


def _outline(gateway: Gateway, query: OutlineQuery) -> ViewedOutline:
    with gateway.views.opened(query.id) as view:
        total = len(view.rows)
        first = min(query.from_, total)
        numbers = range(first, max(first, min(query.to, total, first + MOST_ROWS)))
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
    """What is told of entries; what was made once is kept with the session."""
    missing = frozenset(number for number in numbers if number not in view.lines and not view.is_marker(number))
    view.lines.update(entry_lines(near_entries(view, missing, after=False), missing))
    return [view.lines.get(number, HIDDEN) for number in numbers]


# --- view saw

ViewSawJson = Mapping[str, Any]

_ASSISTANT = MESSAGE | STATE  # what an answer marks
_TAKERS = ("compaction", "reset_boundary", "context_edit")


class SawQuery(Taken, frozen=True):
    """Which entry of which session."""

    id: NameText
    at: NumberText


class Removal(Told, frozen=True):
    """The entries that one entry took out of the context."""

    by: int
    kind: str
    numbers: list[int]


class Saw(Told, frozen=True):
    """What the model saw. `numbers` are the entries whose messages were in the context, in the order of the context.

    `removed` are those of the path that were gone by then, `changed` those that were not as they are stored. `tokens` is
    the size of the context, by the word of the provider or estimated; `window` is how much the model can read.
    """

    numbers: list[int]
    removed: list[Removal]
    changed: list[int]
    tokens: int | None
    source: str
    window: int | None
    model: str | None


async def saw(gateway: Gateway, query: SawQuery) -> Saw:
    """What the model saw when an entry was made."""
    return await gateway.call(_saw, gateway, query)


def _saw(gateway: Gateway, query: SawQuery) -> Saw:
    with gateway.views.opened(query.id) as view:
        number = view.check(query.at)
        ((_, entry),) = view.read([number])
        is_answer = view.rows[number].flags & _ASSISTANT == _ASSISTANT
        tip = view.tree.parents[number] if is_answer else number
        path = [] if tip == NOWHERE else _deciding(view, view.tree.path(tip))
        messages, sources = live_part(path).messages()
        seen = [source for source, message in zip(sources, messages, strict=True) if not _is_kept_back(message)]
        removed, changed = _gone(view, path, seen)
        model = _model(view, number, entry)
        size = _size(view, tip, entry if is_answer else None)
        return Saw(
            numbers=list(dict.fromkeys(view.numbers_of(seen))),
            removed=removed,
            changed=changed,
            tokens=size.tokens,
            source=size.source,
            window=None if model is None else gateway.models.window(model),
            model=model,
        )


def _gone(view: View, path: Sequence[ViewSawJson], seen: Sequence[str | None]) -> tuple[list[Removal], list[int]]:
    removed: dict[int, Removal] = {}
    changed: list[int] = []
    if not any(entry.get("type") in _TAKERS for entry in path):
        return [], []
    for taking in removals(path, frozenset(seen)):
        by, number = view.tree.number(str(taking.by["id"])), view.tree.number(taking.message)
        if by is None or number is None:
            continue
        if taking.changed:
            changed.append(number)
        else:
            removed.setdefault(by, Removal(by=by, kind=str(taking.by["type"]), numbers=[])).numbers.append(number)
    return list(removed.values()), changed


# -- entries, as far as the context asks for them


def _deciding(view: View, path: Sequence[int]) -> list[ViewSawJson]:
    """The entries of a path with what decides about the context; what was read once is kept with the session."""
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


def _kind(entry: Entry, flags: int) -> ViewSawJson:
    if flags & MESSAGE:
        return {"id": entry.id, "type": "message", "message": _message(entry)}
    if flags & (BOUNDARY | TALK) or flags == CHAIN:
        return {name: value for name, value in entry.items() if name in _DECIDING}
    return {"id": entry.id, "type": "other"}


def _message(entry: Entry) -> ViewSawJson | None:
    """A message without what it says. Most need not be decoded for that."""
    raw = entry.raw
    if b'"message":{' in raw and b'"system"' not in raw and b'"excludeFromContext"' not in raw:
        return _SAID
    message = entry.get("message")
    return {name: message.get(name) for name in _KEPT_BACK} if isinstance(message, dict) else None


_ANSWER: ViewSawJson = {"role": "assistant"}
_SAID: ViewSawJson = {"role": "user"}
_KEPT_BACK = ("role", "excludeFromContext")
_DECIDING = (
    *("id", "type", "firstKeptEntryId", "summary", "systemMessage", "preserveData"),
    *("targetId", "replacement", "content", "timestamp"),
)


def _is_kept_back(message: ViewSawJson) -> bool:
    return bool(message.get("excludeFromContext"))


# -- in numbers


def _model(view: View, number: int, entry: Entry) -> str | None:
    """The model that made an answer, or the one that was chosen there."""
    message = entry.get("message")
    if isinstance(message, dict) and isinstance(message.get("model"), str):
        provider = message.get("provider")
        return f"{provider}/{message['model']}" if isinstance(provider, str) else str(message["model"])
    return view.session.get_state(view.rows[number].id).models.get(DEFAULT_ROLE)


def _size(view: View, tip: int, answer: Entry | None) -> Snapshot:
    """How large the context was: what the provider counted for the answer, else what is known before it."""
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


# --- view diff

_MOST_ARTICLES = 300  # of one side


class DiffQuery(Taken, frozen=True):
    """Which session, and the heads of two of its branches."""

    id: NameText
    a: NumberText
    b: NumberText


class DiffEntry(Told, frozen=True):
    """An entry that only one branch has; `None` in place of an article that has to be asked for."""

    number: int
    html: str | None


class DiffDeltas(Told, frozen=True):
    """What each branch took from where they part: rows of a name, both sides and the difference in words; and as values."""

    rows: list[tuple[str, str, str, str]]
    left: dict[str, Any]
    right: dict[str, Any]


class DiffWords(Told, frozen=True):
    """How the last answers differ."""

    html: str


class ViewedDiff(Told, frozen=True):
    """Two branches: how many entries both have, and the last of them; then what only one of them has.

    `pairs` are the entries that begin the turns which stand beside each other; `None` where a side has none.
    """

    common: int
    common_number: int | None
    left: list[DiffEntry]
    right: list[DiffEntry]
    pairs: list[tuple[int | None, int | None]]
    deltas: DiffDeltas
    words: DiffWords


async def diff(gateway: Gateway, query: DiffQuery) -> ViewedDiff:
    """How two branches of a session differ."""
    return await gateway.call(_diff, gateway, query)


def _diff(gateway: Gateway, query: DiffQuery) -> ViewedDiff:
    with gateway.views.opened(query.id) as view:
        tree = view.tree
        one, other = view.check(query.a), view.check(query.b)
        parting = tree.common_ancestor(one, other)
        shared = [] if parting == NOWHERE else tree.path(parting)
        left, right = (tree.path(tip)[len(shared) :] for tip in (one, other))
        ours, theirs = ((entry for _, entry in view.read(side)) for side in (left, right))
        comparison = compare(ours, theirs)
        return ViewedDiff(
            common=sum(not view.rows[number].flags & LABEL for number in shared),
            common_number=None if parting == NOWHERE else parting,
            left=_view_diff_entries(view, left),
            right=_view_diff_entries(view, right),
            pairs=[(_begin(view, a, left), _begin(view, b, right)) for a, b in comparison.pairs],
            deltas=_deltas(comparison),
            words=DiffWords(html=words_html(comparison.left.answer, comparison.right.answer)),
        )


def _view_diff_entries(view: View, numbers: Sequence[int]) -> list[DiffEntry]:
    articles = articles_of(view, numbers[:_MOST_ARTICLES])
    return [DiffEntry(number=number, html=articles.get(number)) for number in numbers]


def _begin(view: View, turn: Turn | None, side: Sequence[int]) -> int | None:
    """The entry that a turn begins with; one without a prompt begins with the side."""
    if turn is None:
        return None
    return side[0] if turn.id is None else view.tree.number(turn.id)


def _deltas(comparison: Comparison) -> DiffDeltas:
    return DiffDeltas(rows=list(measured(comparison)), left=_told(comparison.left), right=_told(comparison.right))


def _told(side: Side) -> dict[str, Any]:
    return {name: value for name, value in side._asdict().items() if name not in ("turns", "answer")}


# --- view find

_MOST = 5_000  # entries that are found


class FindQuery(Taken, frozen=True):
    """Which session, and what is looked for in it, letter by letter."""

    id: NameText
    q: Annotated[str, Meta(min_length=1, max_length=1_000)]


class FoundEntries(Told, frozen=True):
    """The entries that hold it, in file order; with `more` there are others behind them, which nobody counted."""

    total: int
    numbers: list[int]
    more: bool


async def find(gateway: Gateway, query: FindQuery) -> FoundEntries:
    """The entries of a session that hold some words."""
    return await gateway.call(_find, gateway, query)


def _find(gateway: Gateway, query: FindQuery) -> FoundEntries:
    needle = Needle(query.q, case=False)
    with gateway.views.opened(query.id) as view:
        found = find_in_session(gateway.store, view.session, needle, rows=view.rows, most=_MOST + 1)
    return FoundEntries(total=len(found[:_MOST]), numbers=found[:_MOST], more=len(found) > _MOST)
