"""Operations on conversations: list, look at, change, delete and undo, reset and resume.

Rules: a conversation is named by its key, which is an argument and never a part of the path: keys hold slashes and colons. A
conversation in which a turn runs is not deleted, but refused as busy. What was deleted or reset can be taken back by what the
answer says.

Everything of the engine blocks, and is called on the gateway's threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from sessile import Bound, ConversationFilter, patchable
from sessile.core.rollover import NEW_SESSION, reset_notice
from sessile.core.status_text import SessionKind, session_kind, session_row
from sessile.errors import InvalidId, InvalidQuery, NotFound, SessionNotFound
from sessile.gateway.toggles import model_override_of
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessile import Conversation
    from sessile.gateway.service import Gateway

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
