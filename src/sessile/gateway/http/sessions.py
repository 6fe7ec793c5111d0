"""Operations on conversations: list, look at, change, delete and undo, reset and resume.

Rules: a conversation is named by its key, which is an argument and never a part of the path: keys hold slashes and colons. A
conversation in which a turn runs is not deleted, but refused as busy. What was deleted or reset can be taken back by what the
answer says.

Everything of the engine blocks, and is called on the gateway's threads.

Operations that read a session: its history, previews of conversations, and what the model sees of one.

Rules: sessions are opened for reading, so that looking never changes a file. Every entry goes through `delivering`: what was not
to be delivered is not found by looking either. What is long comes in pages: a history goes backwards from the leaf, so many
entries and so many bytes at a time, and says where to go on.

Operations on the tree of a session: compact it, fork it, go back in it.

Rules: nothing is removed from a session: a compaction is an entry more, a fork is a copy, and rewinding moves the leaf. Whatever
moves the leaf is refused while a turn runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from sessile.agents.openclaw.entries import patchable
from sessile.core.kinds import MARKER
from sessile.core.resets import NEW_SESSION, reset_notice
from sessile.core.text import utf16_cut, utf16_length
from sessile.errors import Conflict, EntryNotFound, InvalidId, InvalidQuery, NotFound, SessileError, SessionNotFound
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.conversations.conversations import ConversationFilter
from sessile.gateway.events import Event
from sessile.gateway.http.wire import Taken, Told, as_json
from sessile.gateway.turns.care import summarizer_of
from sessile.gateway.turns.replies import shown, shown_message, text_of
from sessile.gateway.turns.turn import model_override_of, toggles_of
from sessile.render.status import SessionKind, session_kind, session_row
from sessile.upkeep.compactor import Compactor
from sessile.upkeep.navigation import Navigator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sessile.core.entries import Entry
    from sessile.gateway.conversations.conversations import Conversation
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.runners import Answerer
    from sessile.session import Session
    from sessile.upkeep.compactor import Outcome


# --- sessions api

KeyText = Annotated[
    str, Meta(min_length=1, max_length=1_000, description="The key of a conversation, in any spelling.")
]
IdText = Annotated[str, Meta(min_length=1, max_length=128, description="The id of a session.")]
EntryText = Annotated[str, Meta(min_length=1, max_length=128, description="The id of an entry.")]
AgentText = Annotated[str, Meta(min_length=1, max_length=64, description="The id of an agent.")]
ModelText = Annotated[str, Meta(min_length=1, max_length=200, description='A model, as "provider/model".')]
ShortText = Annotated[str, Meta(max_length=1_000)]
KeyKind = (
    Literal["global", "unknown", "main", "direct", "group", "cron", "hook", "node", "subagent", "acp", "dashboard"]
    | Literal["explicit", "temp", "http", "channel", "room", "slash", "named", "other"]
)

_MOST = 2**31
_LISTED = "GET /v1/sessions, or sessile sessions, lists them"


class OneKey(Taken, frozen=True):
    """Which conversation."""

    key: KeyText


class Place(NamedTuple):
    """A session that somebody asks for, and the conversation that it is of, if they named one."""

    conversation: Conversation | None
    session_id: str
    path: str


def place_of(gateway: Gateway, key: str | None, session_id: str | None) -> Place:
    """The session of a key, or that with an id; blocks."""
    if (key is None) == (session_id is None):
        raise InvalidQuery("name either a key or a sessionId", hint="just one of them")
    if key is None:
        found = gateway.store.find(str(session_id))
        if found is None:
            raise SessionNotFound(f"there is no session {str(session_id)[:80]!r}", hint=_LISTED)
        return Place(None, str(session_id), found)
    conversation = conversation_of(gateway, key)
    path = gateway.conversations.path_of(key)
    if path is None or conversation.session_id is None:
        raise SessionNotFound(f"nobody has spoken in {conversation.text[:120]!r} yet", hint="say something first")
    return Place(conversation, conversation.session_id, path)


def conversation_of(gateway: Gateway, key: str) -> Conversation:
    """The conversation of a key; blocks."""
    found = gateway.conversations.get(key)
    if found is None:
        raise NotFound(f"there is no conversation {key[:120]!r}", hint=_LISTED)
    return found


def bound_of(gateway: Gateway, key: str) -> Bound:
    """A conversation with its session as they are, whether it would be reset by now or not; blocks."""
    place = place_of(gateway, key, None)
    conversation = place.conversation or conversation_of(gateway, key)
    return Bound(
        key=conversation.key,
        text=conversation.text,
        agent=conversation.agent,
        session_id=place.session_id,
        path=place.path,
        entry=conversation.entry,
        is_new=False,
        reason=None,
        previous_id=None,
    )


# -- lists


class ListQuery(Taken, frozen=True):
    """Which conversations are listed."""

    agent: AgentText | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    offset: Annotated[int, Meta(ge=0, le=_MOST)] = 0
    active: Annotated[int, Meta(ge=1, le=_MOST, description="Changed in the last so many minutes.")] | None = None
    search: ShortText | None = None
    label: ShortText | None = None
    spawned_by: KeyText | None = None
    kinds: tuple[KeyKind, ...] = ()
    include_global: bool = False
    include_unknown: bool = False


class Row(Told, frozen=True):
    """A conversation in a list; `None` is unknown. Times are milliseconds since 1970."""

    key: str
    kind: SessionKind
    agent: str
    title: str | None
    session_id: str | None
    updated_at: int | None
    age_ms: int | None
    session_started_at: int | None
    last_interaction_at: int | None
    model: str | None
    context_tokens: int | None
    context_window: int | None
    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    compaction_count: int | None
    flags: dict[str, Any]
    live: int  # turns that run or wait


class Rows(Told, frozen=True):
    """A page of conversations, newest first; `count` are all that match, `hidden` those that a filter leaves out."""

    ts: int
    path: str
    count: int
    hidden: int
    sessions: tuple[Row, ...]


_FLAGS = (
    *("thinkingLevel", "verboseLevel", "reasoningLevel", "elevatedLevel", "responseUsage", "sendPolicy"),
    *("systemSent", "abortedLastRun"),
)
_MODELS = {"model", "modelOverride", "providerOverride"}
_TITLES = ("displayName", "label", "subject")


async def list_conversations(gateway: Gateway, query: ListQuery) -> Rows:
    """The conversations of all agents, or of one."""
    wanted = ConversationFilter(
        active_minutes=query.active,
        search=query.search,
        label=query.label,
        spawned_by=query.spawned_by,
        kinds=query.kinds or None,
        include_global=query.include_global,
        include_unknown=query.include_unknown,
    )
    found = await gateway.call(lambda: gateway.conversations.list(wanted, agent=query.agent))
    now = gateway.store.now()
    page = found.rows[query.offset : query.offset + query.limit]
    rows = tuple(row_of(gateway, conversation, now) for conversation in page)
    return Rows(ts=now, path=found.path, count=len(found.rows), hidden=found.hidden, sessions=rows)


def row_of(gateway: Gateway, conversation: Conversation, now: int) -> Row:
    """A conversation as a list shows it."""
    entry = conversation.entry
    known = session_row(conversation.text, _kind(conversation), entry, now)
    title = next((value for name in _TITLES if isinstance(value := entry.get(name), str) and value), None)
    session_id = conversation.session_id
    return Row(
        key=conversation.text,
        kind=known["kind"],
        agent=conversation.agent,
        title=title,
        session_id=session_id,
        updated_at=known["updatedAt"],
        age_ms=known["ageMs"],
        session_started_at=known["sessionStartedAt"],
        last_interaction_at=known["lastInteractionAt"],
        model=known["model"],
        context_tokens=known["contextTokens"],
        context_window=known["contextWindow"],
        input_tokens=known["inputTokens"],
        output_tokens=known["outputTokens"],
        total_tokens=known["totalTokens"],
        compaction_count=known["compactionCount"],
        flags={name: known[name] for name in _FLAGS if known[name] is not None},
        live=0 if session_id is None else len(gateway.turns.live(session_id)),
    )


def _kind(conversation: Conversation) -> SessionKind:
    try:
        return session_kind(conversation.key, conversation.entry.get("chatType"))
    except InvalidId:
        return "unknown"  # somebody wrote the key by hand


# -- one conversation


class PreviousSession(Told, frozen=True):
    """A session that a conversation had before."""

    session_id: str
    ended_at: int | None
    reason: str | None


class ResetRule(Told, frozen=True):
    """When sessions end by themselves; `None` means that nothing happens by it."""

    at_hour: int | None
    idle_minutes: int | None
    time_zone: str | None


class Detail(Told, frozen=True):
    """A conversation: its row, its members as the store has them, and what the next turn would use."""

    session: Row
    entry: dict[str, Any]
    previous: tuple[PreviousSession, ...]
    resets: ResetRule
    model: str | None
    window: int | None


async def get_conversation(gateway: Gateway, query: OneKey) -> Detail:
    """One conversation."""
    return await gateway.call(lambda: detail_of(gateway, conversation_of(gateway, query.key)))


def detail_of(gateway: Gateway, conversation: Conversation) -> Detail:
    """A conversation with everything that is known of it; blocks."""
    policy = gateway.conversations.policy(conversation.text)
    return Detail(
        session=row_of(gateway, conversation, gateway.store.now()),
        entry=conversation.entry.members,
        previous=tuple(
            PreviousSession(session_id=one.session_id, ended_at=one.ended_at, reason=one.reason)
            for one in conversation.previous
        ),
        resets=ResetRule(at_hour=policy.at_hour, idle_minutes=policy.idle_minutes, time_zone=policy.time_zone),
        model=gateway.model_of(conversation.agent, conversation.entry),
        window=gateway.window_of(conversation.agent, conversation.entry),
    )


_CHANGED = ", ".join(f"{name} ({', '.join(few)})" if few else name for name, few in patchable().items())


class PatchBody(Taken, frozen=True):
    """Members to change; `null` clears one. `expected` are values that members must have now."""

    changes: Annotated[dict[str, Any], Meta(description=f"What can be changed: {_CHANGED}.")]
    expected: dict[str, Any] | None = None


async def patch_conversation(gateway: Gateway, query: OneKey, body: PatchBody) -> Detail:
    """Change what is set in a conversation, or begin one that nobody has spoken in."""

    def change() -> Detail:
        _check_model(gateway, query.key, body.changes)
        return detail_of(gateway, gateway.conversations.patch(query.key, body.changes, body.expected))

    return await gateway.call(change)


def _check_model(gateway: Gateway, key: str, changes: Mapping[str, Any]) -> None:
    """Refuse a model that cannot answer, before every message of the conversation fails; blocks."""
    found = gateway.conversations.get(key)
    held: Mapping[str, Any] = {} if found is None else found.entry
    model = changes["model"] if "model" in changes else model_override_of({**held, **changes})
    if isinstance(model, str) and not _MODELS.isdisjoint(changes):
        gateway.answerers.of(gateway.config.agents.default_id if found is None else found.agent, model)


class DeleteQuery(Taken, frozen=True):
    """Which conversation, and the id of the session that it is thought to have."""

    key: KeyText
    expected: IdText | None = None


class Deleted(Told, frozen=True):
    """What was deleted, and the token that takes it back."""

    key: str
    agent: str
    session_id: str | None
    token: str
    at: int


async def delete_conversation(gateway: Gateway, query: DeleteQuery) -> Deleted:
    """Forget a conversation and move its session to the trash."""
    conversation = await gateway.call(conversation_of, gateway, query.key)
    session_id = conversation.session_id

    def delete() -> Deleted:
        note = gateway.conversations.delete(query.key, expected=query.expected or session_id)
        if note.path is not None:
            gateway.let_go(note.path)
        return Deleted(key=note.key, agent=note.agent, session_id=session_id, token=note.token, at=note.at)

    if session_id is None:
        return await gateway.call(delete)
    async with gateway.turns.alone(session_id):
        return await gateway.call(delete)


class UndoDeleteBody(Taken, frozen=True):
    """The token that deleting gave."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


async def undo_delete(gateway: Gateway, body: UndoDeleteBody) -> Detail:
    """Take a deletion back."""
    return await gateway.call(lambda: detail_of(gateway, gateway.conversations.undo(body.token)))


# -- sessions of a conversation


class ResetBody(Taken, frozen=True):
    """Which conversation begins anew, why, with which model, and which session it is thought to have."""

    key: KeyText
    reason: Literal["new", "reset"] = "reset"
    model: ModelText | None = None
    expected: IdText | None = None


class ResumeBody(Taken, frozen=True):
    """Which conversation goes back, how many sessions, and which session it is thought to have."""

    key: KeyText
    back: Annotated[int, Meta(ge=1, le=1_000)] = 1
    expected: IdText | None = None


class Begun(Told, frozen=True):
    """The session that a conversation has now, and the one that it had."""

    key: str
    agent: str
    session_id: str
    previous_id: str | None
    notice: str | None = None


async def reset_conversation(gateway: Gateway, body: ResetBody) -> Begun:
    """A new session for a conversation."""

    def reset() -> Bound:
        if body.model is not None:
            _check_model(gateway, body.key, {"model": body.model})
        return gateway.conversations.reset(body.key, body.reason, body.model, expected=body.expected)

    bound = await gateway.call(reset)
    return _begun(gateway, bound, NEW_SESSION if bound.previous_id is None else reset_notice(body.reason))


async def resume_conversation(gateway: Gateway, body: ResumeBody) -> Begun:
    """Back to an earlier session of a conversation."""
    bound = await gateway.call(
        lambda: gateway.conversations.resume(body.key, body.back, expected=body.expected),
    )
    return _begun(gateway, bound)


def _begun(gateway: Gateway, bound: Bound, notice: str | None = None) -> Begun:
    gateway.tell_reset(bound)
    return Begun(
        key=bound.text,
        agent=bound.agent,
        session_id=bound.session_id,
        previous_id=bound.previous_id,
        notice=notice,
    )


# --- history api

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


# --- tree api

Instructions = Annotated[str, Meta(max_length=10_000)]


# -- compactions


class CompactBody(Taken, frozen=True):
    """Which conversation is compacted, and what its summary should hold."""

    key: KeyText
    instructions: Instructions | None = None


class Objected(Told, frozen=True):
    """Something that is wrong with a summary."""

    reason: str
    detail: str


class Compacted(Told, frozen=True):
    """What became of a compaction; tokens are `None` where they are unknown."""

    key: str
    session_id: str
    status: str
    tokens_before: int | None
    tokens_after: int | None
    entry_id: str | None
    objections: tuple[Objected, ...]


async def compact(gateway: Gateway, body: CompactBody) -> Compacted:
    """Sum up the older part of a conversation."""
    bound = await gateway.call(bound_of, gateway, body.key)
    outcome: Outcome = await gateway.turns.compact(bound, body.instructions)
    return Compacted(
        key=bound.text,
        session_id=bound.session_id,
        status=outcome.status,
        tokens_before=None if outcome.tokens_before is None else outcome.tokens_before.tokens,
        tokens_after=outcome.tokens_after,
        entry_id=None if outcome.receipt is None else outcome.receipt.id,
        objections=tuple(Objected(reason=one.reason, detail=one.detail) for one in outcome.objections),
    )


# -- forks


class ForkBody(Taken, frozen=True):
    """Which session is copied, up to which entry, and the new conversation that gets the copy."""

    key: KeyText | None = None
    session_id: IdText | None = None
    entry: EntryText | None = None
    to: KeyText | None = None


class Forked(Told, frozen=True):
    """The copy, and its conversation if it was given to one."""

    session_id: str
    from_session_id: str
    key: str | None
    leaf: str | None


async def fork(gateway: Gateway, body: ForkBody) -> Forked:
    """Copy a session, whole or the path to one of its entries."""
    return await gateway.call(_fork, gateway, body)


def _fork(gateway: Gateway, body: ForkBody) -> Forked:
    place = place_of(gateway, body.key, body.session_id)
    if body.to is not None:
        taken = gateway.conversations.get(body.to)
        if taken is not None and taken.session_id is not None:
            raise Conflict(f"{taken.text[:120]!r} has a session already", hint="choose another key")
    with gateway.store.open(place.path, readonly=True) as source:
        copy = source.fork() if body.entry is None else source.create_branched_session(body.entry)
        with copy:
            session_id, leaf = copy.id, copy.leaf_id
    key = None
    if body.to is not None:
        key = gateway.conversations.reset(body.to, "new", session_id=session_id).text
    return Forked(session_id=session_id, from_session_id=place.session_id, key=key, leaf=leaf)


# -- going back


class RewindBody(Taken, frozen=True):
    """Which session goes back to which entry, and whether what is left behind is summed up.

    Going to something that a user said means to say it anew: the leaf becomes its parent, and the text is given back.
    """

    entry: EntryText
    key: KeyText | None = None
    session_id: IdText | None = None
    summarize: bool = False
    instructions: Instructions | None = None
    expected_leaf: EntryText | None = None


class Rewound(Told, frozen=True):
    """Where the leaf is now, what to say anew, and the summary of what was left."""

    session_id: str
    leaf: str | None
    left: str | None
    text: str | None
    summary_id: str | None


async def rewind(gateway: Gateway, body: RewindBody) -> Rewound:
    """Go back to an earlier entry of a session; what came behind it stays, on a branch of its own."""
    place = await gateway.call(place_of, gateway, body.key, body.session_id)
    async with gateway.turns.alone(place.session_id):
        rewound = await gateway.call(_rewind, gateway, body, place)
    told: dict[str, Any] = {"notice": "rewound", "leaf": rewound.leaf, "left": rewound.left}
    gateway.hub.publish(Event(None, place.session_id, "entry", {}))
    gateway.hub.publish(Event(None, place.session_id, "notice", told))
    return rewound


def _rewind(gateway: Gateway, body: RewindBody, place: Place) -> Rewound:
    with gateway.opened(place.path) as session:
        left = session.leaf_id
        if body.expected_leaf is not None and body.expected_leaf != left:
            raise Conflict(f"the session is at {left} by now", hint="look at it again, then decide")
        if session.get_entry(body.entry) is None:
            raise EntryNotFound(f"there is no entry {body.entry[:80]!r}", hint="history says which there are")
        answerer = _answerer(gateway, place)
        went = Navigator(session, summarizer_of(answerer), window=answerer.window).navigate_tree(
            body.entry, summarize=body.summarize, instructions=body.instructions
        )
        if session.leaf_id is None:
            session.reset_leaf(durable=True)
        else:
            session.branch(session.leaf_id, durable=True)
        return Rewound(
            session_id=session.id, leaf=session.leaf_id, left=left, text=went.editor_text, summary_id=went.summary_id
        )


def _answerer(gateway: Gateway, place: Place) -> Answerer:
    """Who answers in a session: the agent of its conversation, else the default one."""
    told = place.conversation
    if told is None:
        return gateway.answerers.of(gateway.config.agents.default_id, None)
    return gateway.answerers.of(told.agent, toggles_of(told.entry).model)
