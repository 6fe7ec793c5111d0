"""Operations on the tree of a session: compact it, fork it, go back in it.

Rules: nothing is removed from a session: a compaction is an entry more, a fork is a copy, and rewinding moves the leaf. Whatever
moves the leaf is refused while a turn runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sessile import Navigator
from sessile.errors import Conflict, EntryNotFound
from sessile.gateway.care import summarizer_of
from sessile.gateway.events import Event
from sessile.gateway.sessions_api import EntryText, IdText, KeyText, Place, bound_of, place_of
from sessile.gateway.toggles import toggles_of
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from sessile.care.compactor import Outcome
    from sessile.gateway.answerers import Answerer
    from sessile.gateway.service import Gateway

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
