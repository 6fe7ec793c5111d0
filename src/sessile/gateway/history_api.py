"""Operations that read a session: its history, previews of conversations, and what the model sees of one.

Rules: sessions are opened for reading, so that looking never changes a file. Every entry goes through `delivering`: what was not
to be delivered is not found by looking either. What is long comes in pages: a history goes backwards from the leaf, so many
entries and so many bytes at a time, and says where to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from sessile import Compactor
from sessile.core.kinds import MARKER
from sessile.core.text import utf16_cut, utf16_length
from sessile.errors import EntryNotFound, NotFound, SessileError
from sessile.gateway.delivering import shown, shown_message, text_of
from sessile.gateway.sessions_api import EntryText, IdText, KeyText, place_of
from sessile.gateway.wire import Taken, Told, as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile import Entry, Session
    from sessile.gateway.service import Gateway

MOST_BYTES = 6 << 20  # of a page of history, as is documented; more makes browsers wait
_LOOKED_AT = 400  # entries that a preview goes back for words


# -- history


class HistoryQuery(Taken, frozen=True):
    """Which session, and which part of the path to its leaf: so many entries before one of them."""

    key: KeyText | None = None
    session_id: IdText | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200
    before: EntryText | None = None


class History(Told, frozen=True):
    """Entries of the live branch, newest last. `before` asks for the entries before these; `None` if there are none."""

    session_id: str
    key: str | None
    leaf: str | None
    entries: tuple[dict[str, Any], ...]
    before: str | None


async def history(gateway: Gateway, query: HistoryQuery) -> History:
    """What was said in a session."""
    return await gateway.call(_history, gateway, query)


def _history(gateway: Gateway, query: HistoryQuery) -> History:
    place = place_of(gateway, query.key, query.session_id)
    with gateway.store.open(place.path, readonly=True) as session:
        if query.before is not None and session.get_entry(query.before) is None:
            raise EntryNotFound(f"there is no entry {query.before[:80]!r}", hint="begin again without `before`")
        found: list[dict[str, Any]] = []
        size, before = 0, None
        for entry in _upwards(session, query.before):
            told = shown(_fitting(entry)) or {}
            size += len(as_json(told))
            if found and (len(found) == query.limit or size > MOST_BYTES):
                before = str(found[-1]["id"])
                break
            found.append({**told, "id": entry.id})
        return History(
            session_id=session.id,
            key=None if place.conversation is None else place.conversation.text,
            leaf=session.leaf_id,
            entries=tuple(reversed(found)),
            before=before,
        )


def _upwards(session: Session, before: str | None) -> Iterator[Entry]:
    """The entries from the leaf to the root, or those above an entry."""
    rows = session.walk_up(before)
    if before is not None:
        next(rows, None)
    for row in rows:
        entry = None if row.flags & MARKER else session.get_entry(row.id)
        if entry is not None:
            yield entry


def _fitting(entry: Entry) -> dict[str, Any]:
    """An entry that can be sent; of one that is larger than a page, only what it is."""
    if len(entry.raw) <= MOST_BYTES:
        return entry.body
    base = {name: entry.get(name) for name in ("type", "id", "parentId", "timestamp")}
    return {**base, "omitted": {"bytes": len(entry.raw)}}


# -- previews


class PreviewQuery(Taken, frozen=True):
    """Which conversations, how many of their last words, and how long each may be."""

    key: Annotated[tuple[KeyText, ...], Meta(min_length=1, max_length=64)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 12
    max_chars: Annotated[int, Meta(ge=20, le=2_000)] = 240


class Words(Told, frozen=True):
    """What somebody said."""

    role: Literal["user", "assistant"]
    text: str


class Preview(Told, frozen=True):
    """The last words of a conversation, newest last, and the first ones."""

    key: str
    status: Literal["ok", "empty", "missing", "error"]
    first: str | None = None
    items: tuple[Words, ...] = ()
    detail: str | None = None


class Previews(Told, frozen=True):
    """Previews in the order in which they were asked for."""

    ts: int
    previews: tuple[Preview, ...]


async def previews(gateway: Gateway, query: PreviewQuery) -> Previews:
    """The last words of some conversations."""
    found = tuple([await gateway.call(_preview, gateway, key, query) for key in query.key])
    return Previews(ts=gateway.store.now(), previews=found)


def _preview(gateway: Gateway, key: str, query: PreviewQuery) -> Preview:
    try:
        place = place_of(gateway, key, None)
        with gateway.store.open(place.path, readonly=True) as session:
            items = _last_words(session, query)
            first = _first_words(session, query.max_chars)
    except NotFound:
        return Preview(key=key, status="missing")
    except SessileError as error:
        return Preview(key=key, status="error", detail=error.message)
    return Preview(key=key, status="ok" if items else "empty", first=first, items=tuple(items))


def _last_words(session: Session, query: PreviewQuery) -> list[Words]:
    items: list[Words] = []
    for number, entry in enumerate(_upwards(session, None)):
        if len(items) == query.limit or number == _LOOKED_AT:
            break
        said = text_of(entry)
        if said is not None:
            items.append(Words(role=said[0], text=_cut(said[1], query.max_chars)))  # type: ignore[arg-type]
    return items[::-1]


def _first_words(session: Session, most: int) -> str | None:
    """What a person said first, in the file's order: close enough to its beginning to be found at once."""
    for number, entry in enumerate(session.iter_entries()):
        said = text_of(entry)
        if said is not None and said[0] == "user":
            return _cut(said[1], most)
        if number == _LOOKED_AT:
            break
    return None


def _cut(text: str, most: int) -> str:
    return text if utf16_length(text) <= most else f"{utf16_cut(text, most - 1)}…"


# -- the context


class ContextQuery(Taken, frozen=True):
    """Which session."""

    key: KeyText | None = None
    session_id: IdText | None = None


class Context(Told, frozen=True):
    """What the model would be sent, before the rules of its provider; `sources` are the entries that messages come from."""

    session_id: str
    leaf: str | None
    messages: tuple[dict[str, Any], ...]
    sources: tuple[str | None, ...]
    thinking_level: Any
    models: dict[str, str]
    mode: str
    tokens: int
    tokens_from: Literal["provider", "estimate"]
    window: int | None
    findings: tuple[str, ...]


async def context(gateway: Gateway, query: ContextQuery) -> Context:
    """What the model sees of a conversation."""
    return await gateway.call(_context, gateway, query)


def _context(gateway: Gateway, query: ContextQuery) -> Context:
    place = place_of(gateway, query.key, query.session_id)
    told = place.conversation
    with gateway.store.open(place.path, readonly=True) as session:
        seen = session.context()
        size = Compactor(session).size()
        return Context(
            session_id=session.id,
            leaf=session.leaf_id,
            messages=tuple(map(shown_message, seen.messages)),
            sources=tuple(seen.sources),
            thinking_level=seen.thinking_level,
            models=seen.models,
            mode=seen.mode,
            tokens=size.tokens,
            tokens_from=size.source,
            window=None if told is None else gateway.window_of(told.agent, told.entry),
            findings=tuple(finding.detail for finding in seen.findings),
        )
