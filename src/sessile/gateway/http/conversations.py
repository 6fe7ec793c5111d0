"""Operations on conversations: list, show, change, delete, reset and resume them; read, compact, fork and rewind their
sessions.

Rules:
- A conversation is named by its key, which is a parameter and never part of the path: keys contain slashes and colons.
- A conversation with a running turn cannot be deleted, compacted or rewound. Deleting and resetting can be undone.
- Sessions are opened read-only where nothing changes. Silent answers are returned without their text (`replies.shown`).
- Nothing is removed from a session: compacting appends an entry, forking copies, rewinding moves the leaf.
- A history is read backwards from the leaf, in pages limited by entries and bytes.

The engine blocks, so it is called on the gateway's threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from sessile.agents.openclaw.entries import patchable
from sessile.core.compaction import context_size
from sessile.core.kinds import MARKER
from sessile.core.resets import NEW_SESSION, reset_notice
from sessile.core.text import utf16_cut, utf16_length
from sessile.errors import Conflict, EntryNotFound, InvalidId, InvalidQuery, NotFound, SessileError, SessionNotFound
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.conversations.registry import ConversationFilter
from sessile.gateway.events import Event
from sessile.gateway.http.wire import RequestModel, ResponseModel, Routes, as_json
from sessile.gateway.turns.context_window import summarizer_of
from sessile.gateway.turns.replies import shown, shown_message, text_of
from sessile.gateway.turns.turn import model_override_of, toggles_of
from sessile.render.status import SessionKind, session_kind, session_row
from sessile.upkeep.navigation import Navigator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sessile.core.entries import Entry
    from sessile.gateway.conversations.registry import Conversation
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.runners import Answerer
    from sessile.session import Session
    from sessile.upkeep.compactor import Outcome


routes = Routes()

KeyText = Annotated[str, Meta(min_length=1, max_length=1_000, description="Key of a conversation, in any spelling.")]
IdText = Annotated[str, Meta(min_length=1, max_length=128, description="Id of a session.")]
EntryText = Annotated[str, Meta(min_length=1, max_length=128, description="Id of an entry.")]
AgentText = Annotated[str, Meta(min_length=1, max_length=64, description="Id of an agent.")]
ModelText = Annotated[str, Meta(min_length=1, max_length=200, description='Model, as "provider/model".')]
ShortText = Annotated[str, Meta(max_length=1_000)]
Instructions = Annotated[str, Meta(max_length=10_000)]
KeyKind = (
    Literal["global", "unknown", "main", "direct", "group", "cron", "hook", "node", "subagent", "acp", "dashboard"]
    | Literal["explicit", "temp", "http", "channel", "room", "slash", "named", "other"]
)

MAX_BYTES = 6 << 20  # of a page of history, as documented; more makes browsers wait
_MAX_PREVIEW_ENTRIES = 400  # entries that a preview reads
_MAX_INT = 2**31
_LIST_HINT = "list them with GET /v1/sessions or `sessile sessions`"


class OneKey(RequestModel, frozen=True):
    """The conversation."""

    key: KeyText


class Place(NamedTuple):
    """A session, and its conversation if it was found by its key."""

    conversation: Conversation | None
    session_id: str
    path: str


def place_of(gateway: Gateway, key: str | None, session_id: str | None) -> Place:
    """Return the session of a key or with an id. Blocks."""
    if (key is None) == (session_id is None):
        raise InvalidQuery("key or sessionId is required", hint="pass exactly one of them")
    if key is None:
        found = gateway.store.find(str(session_id))
        if found is None:
            raise SessionNotFound(f"session not found: {str(session_id)[:80]!r}", hint=_LIST_HINT)
        return Place(None, str(session_id), found)
    conversation = conversation_of(gateway, key)
    path = gateway.conversations.path_of(key)
    if path is None or conversation.session_id is None:
        raise SessionNotFound(
            f"conversation {conversation.text[:120]!r} has no session yet", hint="send a message first"
        )
    return Place(conversation, conversation.session_id, path)


def conversation_of(gateway: Gateway, key: str) -> Conversation:
    """Return the conversation of a key. Blocks."""
    found = gateway.conversations.get(key)
    if found is None:
        raise NotFound(f"conversation not found: {key[:120]!r}", hint=_LIST_HINT)
    return found


def bound_of(gateway: Gateway, key: str) -> Bound:
    """Return a conversation and its current session, even if a reset is due. Blocks."""
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


# -- listing


class ListQuery(RequestModel, frozen=True):
    """Filters of the list."""

    agent: AgentText | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    offset: Annotated[int, Meta(ge=0, le=_MAX_INT)] = 0
    active: Annotated[int, Meta(ge=1, le=_MAX_INT, description="Changed within this number of minutes.")] | None = None
    search: ShortText | None = None
    label: ShortText | None = None
    spawned_by: KeyText | None = None
    kinds: tuple[KeyKind, ...] = ()
    include_global: bool = False
    include_unknown: bool = False


class Row(ResponseModel, frozen=True):
    """A conversation in a list. `null` means unknown. Times are in milliseconds since 1970."""

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
    live: int  # running and waiting turns


class Rows(ResponseModel, frozen=True):
    """A page of conversations, newest first. `count` is the number of matches, `hidden` how many the filter leaves out."""

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


@routes.get("/v1/sessions", query=ListQuery, answers={200: Rows})
async def list_conversations(gateway: Gateway, query: ListQuery) -> Rows:
    """List conversations, newest first."""
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
    """Return the row of a conversation."""
    entry = conversation.entry
    values = session_row(conversation.text, _kind(conversation), entry, now)
    title = next((value for name in _TITLES if isinstance(value := entry.get(name), str) and value), None)
    session_id = conversation.session_id
    return Row(
        key=conversation.text,
        kind=values["kind"],
        agent=conversation.agent,
        title=title,
        session_id=session_id,
        updated_at=values["updatedAt"],
        age_ms=values["ageMs"],
        session_started_at=values["sessionStartedAt"],
        last_interaction_at=values["lastInteractionAt"],
        model=values["model"],
        context_tokens=values["contextTokens"],
        context_window=values["contextWindow"],
        input_tokens=values["inputTokens"],
        output_tokens=values["outputTokens"],
        total_tokens=values["totalTokens"],
        compaction_count=values["compactionCount"],
        flags={name: values[name] for name in _FLAGS if values[name] is not None},
        live=0 if session_id is None else len(gateway.turns.live(session_id)),
    )


def _kind(conversation: Conversation) -> SessionKind:
    try:
        return session_kind(conversation.key, conversation.entry.get("chatType"))
    except InvalidId:
        return "unknown"  # a key edited by hand


# -- one conversation


class PreviousSession(ResponseModel, frozen=True):
    """An earlier session of a conversation."""

    session_id: str
    ended_at: int | None
    reason: str | None


class ResetRule(ResponseModel, frozen=True):
    """When sessions end automatically. `null` means never for that reason."""

    at_hour: int | None
    idle_minutes: int | None
    time_zone: str | None


class Detail(ResponseModel, frozen=True):
    """A conversation: its row, its members as stored, and what the next turn would use."""

    session: Row
    entry: dict[str, Any]
    previous: tuple[PreviousSession, ...]
    resets: ResetRule
    model: str | None
    window: int | None


@routes.get("/v1/session", query=OneKey, answers={200: Detail}, problems=(404,))
async def get_conversation(gateway: Gateway, query: OneKey) -> Detail:
    """Return a conversation."""
    return await gateway.call(lambda: detail_of(gateway, conversation_of(gateway, query.key)))


def detail_of(gateway: Gateway, conversation: Conversation) -> Detail:
    """Return everything known about a conversation. Blocks."""
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


_PATCHABLE = ", ".join(f"{name} ({', '.join(values)})" if values else name for name, values in patchable().items())


class PatchBody(RequestModel, frozen=True):
    """Members to change. `null` clears a member. `expected` are the values that members must have now."""

    changes: Annotated[dict[str, Any], Meta(description=f"Members that can be changed: {_PATCHABLE}.")]
    expected: dict[str, Any] | None = None


@routes.patch("/v1/session", query=OneKey, body=PatchBody, answers={200: Detail}, problems=(409,))
async def patch_conversation(gateway: Gateway, query: OneKey, body: PatchBody) -> Detail:
    """Change the settings of a conversation. Creates it if it does not exist."""

    def change() -> Detail:
        _check_model(gateway, query.key, body.changes)
        return detail_of(gateway, gateway.conversations.patch(query.key, body.changes, body.expected))

    return await gateway.call(change)


def _check_model(gateway: Gateway, key: str, changes: Mapping[str, Any]) -> None:
    """Raise if a model cannot answer, before every message of the conversation fails. Blocks."""
    found = gateway.conversations.get(key)
    entry: Mapping[str, Any] = {} if found is None else found.entry
    model = changes["model"] if "model" in changes else model_override_of({**entry, **changes})
    if isinstance(model, str) and not _MODELS.isdisjoint(changes):
        gateway.answerers.of(gateway.config.agents.default_id if found is None else found.agent, model)


class DeleteQuery(RequestModel, frozen=True):
    """The conversation, and the id of the session that it is expected to have."""

    key: KeyText
    expected: IdText | None = None


class Deleted(ResponseModel, frozen=True):
    """What was deleted, and the token that undoes it."""

    key: str
    agent: str
    session_id: str | None
    token: str
    at: int


@routes.delete("/v1/session", query=DeleteQuery, answers={200: Deleted}, problems=(404, 409))
async def delete_conversation(gateway: Gateway, query: DeleteQuery) -> Deleted:
    """Delete a conversation and move its session to the trash."""
    conversation = await gateway.call(conversation_of, gateway, query.key)
    session_id = conversation.session_id

    def delete() -> Deleted:
        note = gateway.conversations.delete(query.key, expected=query.expected or session_id)
        if note.path is not None:
            gateway.drop(note.path)
        return Deleted(key=note.key, agent=note.agent, session_id=session_id, token=note.token, at=note.at)

    if session_id is None:
        return await gateway.call(delete)
    async with gateway.turns.alone(session_id):
        return await gateway.call(delete)


class UndoDeleteBody(RequestModel, frozen=True):
    """The token returned by the deletion."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


@routes.post("/v1/session/undo", body=UndoDeleteBody, answers={200: Detail}, problems=(404, 409))
async def undo_delete(gateway: Gateway, body: UndoDeleteBody) -> Detail:
    """Undo a deletion."""
    return await gateway.call(lambda: detail_of(gateway, gateway.conversations.undo(body.token)))


# -- sessions of a conversation


class ResetBody(RequestModel, frozen=True):
    """The conversation to reset, the reason, a new model, and the session that it is expected to have."""

    key: KeyText
    reason: Literal["new", "reset"] = "reset"
    model: ModelText | None = None
    expected: IdText | None = None


class ResumeBody(RequestModel, frozen=True):
    """The conversation, how many sessions to go back, and the session that it is expected to have."""

    key: KeyText
    back: Annotated[int, Meta(ge=1, le=1_000)] = 1
    expected: IdText | None = None


class Begun(ResponseModel, frozen=True):
    """The current session of a conversation, and the previous one."""

    key: str
    agent: str
    session_id: str
    previous_id: str | None
    notice: str | None = None


@routes.post("/v1/session/reset", body=ResetBody, answers={200: Begun}, problems=(409,))
async def reset_conversation(gateway: Gateway, body: ResetBody) -> Begun:
    """Start a new session in a conversation."""

    def reset() -> Bound:
        if body.model is not None:
            _check_model(gateway, body.key, {"model": body.model})
        return gateway.conversations.reset(body.key, body.reason, body.model, expected=body.expected)

    bound = await gateway.call(reset)
    return _begun(gateway, bound, NEW_SESSION if bound.previous_id is None else reset_notice(body.reason))


@routes.post("/v1/session/resume", body=ResumeBody, answers={200: Begun}, problems=(404, 409))
async def resume_conversation(gateway: Gateway, body: ResumeBody) -> Begun:
    """Resume an earlier session of a conversation."""
    bound = await gateway.call(
        lambda: gateway.conversations.resume(body.key, body.back, expected=body.expected),
    )
    return _begun(gateway, bound)


def _begun(gateway: Gateway, bound: Bound, notice: str | None = None) -> Begun:
    gateway.publish_reset(bound)
    return Begun(
        key=bound.text,
        agent=bound.agent,
        session_id=bound.session_id,
        previous_id=bound.previous_id,
        notice=notice,
    )


# -- history


class HistoryQuery(RequestModel, frozen=True):
    """The session, and the page: at most `limit` entries before the entry `before`."""

    key: KeyText | None = None
    session_id: IdText | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200
    before: EntryText | None = None


class History(ResponseModel, frozen=True):
    """Entries of the current branch, newest last. Pass `before` to get the page before these; `null` if there is none."""

    session_id: str
    key: str | None
    leaf: str | None
    entries: tuple[dict[str, Any], ...]
    before: str | None


@routes.get("/v1/session/history", query=HistoryQuery, answers={200: History}, problems=(404,))
async def history(gateway: Gateway, query: HistoryQuery) -> History:
    """Return the history of a session in pages, starting from the end."""
    return await gateway.call(_history, gateway, query)


def _history(gateway: Gateway, query: HistoryQuery) -> History:
    place = place_of(gateway, query.key, query.session_id)
    with gateway.store.open(place.path, readonly=True) as session:
        if query.before is not None and session.get_entry(query.before) is None:
            raise EntryNotFound(f"entry not found: {query.before[:80]!r}", hint="start again without `before`")
        found: list[dict[str, Any]] = []
        size, before = 0, None
        for entry in _upwards(session, query.before):
            visible, length = _limited(entry)
            size += length
            if found and (len(found) == query.limit or size > MAX_BYTES):
                before = str(found[-1]["id"])
                break
            found.append({**visible, "id": entry.id})
        return History(
            session_id=session.id,
            key=None if place.conversation is None else place.conversation.text,
            leaf=session.leaf_id,
            entries=tuple(reversed(found)),
            before=before,
        )


def _upwards(session: Session, before: str | None) -> Iterator[Entry]:
    """Yield the entries from the leaf, or from above an entry, to the root."""
    rows = session.walk_up(before)
    if before is not None:
        next(rows, None)
    for row in rows:
        entry = None if row.flags & MARKER else session.get_entry(row.id)
        if entry is not None:
            yield entry


def _limited(entry: Entry) -> tuple[dict[str, Any], int]:
    """Return an entry as clients see it, and its size: as it is stored if it is larger than a page, or a stub."""
    if len(entry.raw) <= MAX_BYTES:
        for form in (entry.body, entry.stored):
            visible = shown(form) or {}
            size = len(as_json(visible))
            if size <= MAX_BYTES or form is entry.stored:
                return visible, size
    base = {name: entry.get(name) for name in ("type", "id", "parentId", "timestamp")}
    stub = {**base, "omitted": {"bytes": len(entry.raw)}}
    return stub, len(as_json(stub))


# -- previews


class PreviewQuery(RequestModel, frozen=True):
    """The conversations, the maximum number of messages for each, and the maximum length of a message."""

    key: Annotated[tuple[KeyText, ...], Meta(min_length=1, max_length=64)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 12
    max_chars: Annotated[int, Meta(ge=20, le=2_000)] = 240


class Words(ResponseModel, frozen=True):
    """A message of a preview."""

    role: Literal["user", "assistant"]
    text: str


class Preview(ResponseModel, frozen=True):
    """The last messages of a conversation, newest last, and the first user message."""

    key: str
    status: Literal["ok", "empty", "missing", "error"]
    first: str | None = None
    items: tuple[Words, ...] = ()
    detail: str | None = None


class Previews(ResponseModel, frozen=True):
    """Previews in the order of the query."""

    ts: int
    previews: tuple[Preview, ...]


@routes.get("/v1/session/preview", query=PreviewQuery, answers={200: Previews})
async def previews(gateway: Gateway, query: PreviewQuery) -> Previews:
    """Return the last messages of some conversations."""
    found = tuple([await gateway.call(_preview, gateway, key, query) for key in query.key])
    return Previews(ts=gateway.store.now(), previews=found)


def _preview(gateway: Gateway, key: str, query: PreviewQuery) -> Preview:
    try:
        place = place_of(gateway, key, None)
        with gateway.store.open(place.path, readonly=True) as session:
            items = _last_messages(session, query)
            first = _first_message(session, query.max_chars)
    except NotFound:
        return Preview(key=key, status="missing")
    except SessileError as error:
        return Preview(key=key, status="error", detail=error.message)
    return Preview(key=key, status="ok" if items else "empty", first=first, items=tuple(items))


def _last_messages(session: Session, query: PreviewQuery) -> list[Words]:
    items: list[Words] = []
    for number, entry in enumerate(_upwards(session, None)):
        if len(items) == query.limit or number == _MAX_PREVIEW_ENTRIES:
            break
        message = text_of(entry.stored)
        if message is not None:
            items.append(Words(role=message[0], text=_cut(message[1], query.max_chars)))  # type: ignore[arg-type]
    return items[::-1]


def _first_message(session: Session, max_chars: int) -> str | None:
    """Return the first user message in file order, if it is near the start of the file."""
    for number, entry in enumerate(session.iter_entries()):
        message = text_of(entry.stored)
        if message is not None and message[0] == "user":
            return _cut(message[1], max_chars)
        if number == _MAX_PREVIEW_ENTRIES:
            break
    return None


def _cut(text: str, max_chars: int) -> str:
    return text if utf16_length(text) <= max_chars else f"{utf16_cut(text, max_chars - 1)}…"


# -- context


class ContextQuery(RequestModel, frozen=True):
    """The session. With `bridge`, the context continues at the nearest earlier entry where a parent is missing."""

    key: KeyText | None = None
    session_id: IdText | None = None
    bridge: bool = False


class Context(ResponseModel, frozen=True):
    """What the model would be sent, before provider-specific cleaning. `sources` are the entries that messages come from.

    `system` and `tools` are the system prompt and the tools, as far as the session has them.
    """

    session_id: str
    leaf: str | None
    system: str
    tools: tuple[dict[str, Any], ...]
    messages: tuple[dict[str, Any], ...]
    sources: tuple[str | None, ...]
    thinking_level: Any
    models: dict[str, str]
    mode: str
    tokens: int
    tokens_from: Literal["provider", "estimate"]
    window: int | None
    findings: tuple[str, ...]


@routes.get("/v1/session/context", query=ContextQuery, answers={200: Context}, problems=(404,))
async def context(gateway: Gateway, query: ContextQuery) -> Context:
    """Return the context of a session, as the model sees it."""
    return await gateway.call(_context, gateway, query)


def _context(gateway: Gateway, query: ContextQuery) -> Context:
    place = place_of(gateway, query.key, query.session_id)
    conversation = place.conversation
    with gateway.store.open(place.path, readonly=True) as session:
        context = session.context(bridge=query.bridge)
        size = context_size(session.walk_up(bridge=query.bridge), session.read_row)
        return Context(
            session_id=session.id,
            leaf=session.leaf_id,
            system=context.system,
            tools=tuple(context.tools),
            messages=tuple(map(shown_message, context.messages)),
            sources=tuple(context.sources),
            thinking_level=context.thinking_level,
            models=context.models,
            mode=context.mode,
            tokens=size.tokens,
            tokens_from=size.source,
            window=None if conversation is None else gateway.window_of(conversation.agent, conversation.entry),
            findings=tuple(finding.detail for finding in context.findings),
        )


# -- compacting


class CompactBody(RequestModel, frozen=True):
    """The conversation, and instructions for the summary."""

    key: KeyText
    instructions: Instructions | None = None


class Objected(ResponseModel, frozen=True):
    """A defect of a summary."""

    reason: str
    detail: str


class Compacted(ResponseModel, frozen=True):
    """The outcome of a compaction. Token counts are `null` if unknown."""

    key: str
    session_id: str
    status: str
    tokens_before: int | None
    tokens_after: int | None
    entry_id: str | None
    objections: tuple[Objected, ...]


@routes.post("/v1/session/compact", body=CompactBody, answers={200: Compacted}, problems=(404, 409, 502))
async def compact(gateway: Gateway, body: CompactBody) -> Compacted:
    """Compact a conversation: replace its older part in the context by a summary."""
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


# -- forking


class ForkBody(RequestModel, frozen=True):
    """The session to copy, the entry to copy it up to, and the key of a new conversation for the copy."""

    key: KeyText | None = None
    session_id: IdText | None = None
    entry: EntryText | None = None
    to: KeyText | None = None


class Forked(ResponseModel, frozen=True):
    """The copy, and its conversation if a key was given."""

    session_id: str
    from_session_id: str
    key: str | None
    leaf: str | None


@routes.post("/v1/session/fork", body=ForkBody, answers={200: Forked}, problems=(404, 409))
async def fork(gateway: Gateway, body: ForkBody) -> Forked:
    """Copy a session, or the path to one of its entries."""
    return await gateway.call(_fork, gateway, body)


def _fork(gateway: Gateway, body: ForkBody) -> Forked:
    place = place_of(gateway, body.key, body.session_id)
    if body.to is not None:
        existing = gateway.conversations.get(body.to)
        if existing is not None and existing.session_id is not None:
            raise Conflict(f"conversation {existing.text[:120]!r} already has a session", hint="use another key")
    with gateway.store.open(place.path, readonly=True) as source:
        copy = source.fork() if body.entry is None else source.create_branched_session(body.entry)
        with copy:
            session_id, leaf = copy.id, copy.leaf_id
    key = None
    if body.to is not None:
        key = gateway.conversations.reset(body.to, "new", session_id=session_id).text
    return Forked(session_id=session_id, from_session_id=place.session_id, key=key, leaf=leaf)


# -- rewinding


class RewindBody(RequestModel, frozen=True):
    """The session, the entry to go back to, and whether to summarize the branch that is left.

    Rewinding to a user message makes its parent the leaf and returns its text for editing.
    """

    entry: EntryText
    key: KeyText | None = None
    session_id: IdText | None = None
    summarize: bool = False
    instructions: Instructions | None = None
    expected_leaf: EntryText | None = None


class Rewound(ResponseModel, frozen=True):
    """The new leaf, the text to edit, and the summary of the branch that was left."""

    session_id: str
    leaf: str | None
    left: str | None
    text: str | None
    summary_id: str | None


@routes.post("/v1/session/rewind", body=RewindBody, answers={200: Rewound}, problems=(404, 409, 502))
async def rewind(gateway: Gateway, body: RewindBody) -> Rewound:
    """Rewind a session to an earlier entry. Later entries stay on a branch of their own."""
    place = await gateway.call(place_of, gateway, body.key, body.session_id)
    async with gateway.turns.alone(place.session_id):
        rewound = await gateway.call(_rewind, gateway, body, place)
    notice: dict[str, Any] = {"notice": "rewound", "leaf": rewound.leaf, "left": rewound.left}
    gateway.hub.publish(Event(None, place.session_id, "entry", {}))
    gateway.hub.publish(Event(None, place.session_id, "notice", notice))
    return rewound


def _rewind(gateway: Gateway, body: RewindBody, place: Place) -> Rewound:
    with gateway.opened(place.path) as session:
        left = session.leaf_id
        if body.expected_leaf is not None and body.expected_leaf != left:
            raise Conflict(f"the leaf has moved to {left}", hint="reload the session and try again")
        if session.get_entry(body.entry) is None:
            raise EntryNotFound(
                f"entry not found: {body.entry[:80]!r}", hint="list entries with GET /v1/session/history"
            )
        answerer = _answerer(gateway, place)
        result = Navigator(session, summarizer_of(answerer), window=answerer.window).navigate_tree(
            body.entry, summarize=body.summarize, instructions=body.instructions
        )
        if session.leaf_id is None:
            session.reset_leaf(durable=True)
        else:
            session.branch(session.leaf_id, durable=True)
        return Rewound(
            session_id=session.id,
            leaf=session.leaf_id,
            left=left,
            text=result.editor_text,
            summary_id=result.summary_id,
        )


def _answerer(gateway: Gateway, place: Place) -> Answerer:
    """Return the answerer of a session's conversation, or the default agent's."""
    conversation = place.conversation
    if conversation is None:
        return gateway.answerers.of(gateway.config.agents.default_id, None)
    return gateway.answerers.of(conversation.agent, toggles_of(conversation.entry).model)
