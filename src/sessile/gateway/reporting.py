"""What the gateway tells of itself and of a conversation: the values of `/status`, and the document of its state.

Rules: what is unknown is `None`. The size of a context is that of the session's own entries, which say whether a provider
reported it; counters are those of the conversation's entry. Everything that blocks runs on the gateway's threads.

How the values look as text is `core.status_text`'s business.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sessile import Bound, Compactor, ConversationFilter, __version__
from sessile.core.status_text import Queue, Status, session_kind, session_row, status_lines
from sessile.errors import InvalidId
from sessile.gateway.problems import tellable
from sessile.gateway.sessions_api import conversation_of
from sessile.gateway.toggles import sending_of, toggles_of

if TYPE_CHECKING:
    from sessile import Conversation
    from sessile.core.tokens import Snapshot
    from sessile.gateway.service import Gateway
    from sessile.gateway.turn import Turn

Json = dict[str, Any]

_RECENT = 5  # conversations that a look at the whole gateway shows
_EVERY = ConversationFilter(include_global=True, include_unknown=True)


async def chat_status(gateway: Gateway, conversation: Bound | Conversation) -> Status:
    """Everything that `/status` tells of a conversation."""
    turns = turns_of(gateway, conversation.text)  # they live on the event loop
    return await gateway.call(_chat_status, gateway, conversation, sum(turn.state == "queued" for turn in turns))


async def status_of(gateway: Gateway, key: str | None = None) -> Json:
    """The state of the whole gateway as one document, and of a conversation if its key is given."""
    told = None
    if key is not None:
        status = await chat_status(gateway, await gateway.call(conversation_of, gateway, key))
        told = {**_document(status), "lines": status_lines(status)}
    states = Counter(turn.state for turn in gateway.turns.live())
    return {
        **await gateway.call(_whole, gateway),
        "turns": {state: states[state] for state in ("running", "queued")},
        "conversation": told,
    }


def turns_of(gateway: Gateway, key: str) -> list[Turn]:
    """The turns of a conversation that run or wait, also those of a session that it has left."""
    return [turn for turn in gateway.turns.live() if turn.key == key]


# -- one conversation


def _chat_status(gateway: Gateway, conversation: Bound | Conversation, waiting: int) -> Status:
    key, agent = conversation.text, conversation.agent
    current = gateway.conversations.get(key)
    entry = conversation.entry if current is None else current.entry
    toggles = toggles_of(entry)
    size = _size(gateway, conversation)
    settings = gateway.config.runner_of(agent, toggles.model)
    in_group = session_kind(conversation.key, entry.known("chatType")) == "group"
    return Status(
        version=__version__,
        now=gateway.store.now(),
        zone=gateway.zone,
        key=key,
        updated_at=_whole_number(entry.updated_at),
        model=gateway.model_of(agent, entry),
        auth=_auth(gateway, settings.provider),
        input_tokens=_whole_number(entry.known("inputTokens")),
        output_tokens=_whole_number(entry.known("outputTokens")),
        cost=entry.known("estimatedCostUsd"),
        context_tokens=None if size is None else size.tokens,
        context_estimated=size is not None and size.source == "estimate",
        context_window=gateway.window_of(agent, entry),
        compactions=_whole_number(entry.known("compactionCount")),
        runtime=settings.name,
        thinking=toggles.thinking,
        verbose=toggles.verbose,
        reasoning=toggles.reasoning,
        elevated=entry.known("elevatedLevel"),
        activation=entry.known("groupActivation") if in_group else None,
        queue=Queue(toggles.queue, depth=waiting, cap=gateway.config.limits.queued_turns),
        resets=gateway.conversations.policy(key),
        sending=sending_of(gateway.config.session.sending, key, entry).allowed,
    )


def _size(gateway: Gateway, conversation: Bound | Conversation) -> Snapshot | None:
    """How large the context of the current session is; `None` if there is none."""
    path = conversation.path if isinstance(conversation, Bound) else gateway.conversations.path_of(conversation.text)
    if path is None:
        return None
    with gateway.store.open(path, readonly=True) as session:  # to look at a session never makes one
        return Compactor(session).size()


def _auth(gateway: Gateway, provider: str | None) -> str | None:
    """How a provider knows us, as far as the configuration says."""
    settings = gateway.config.models.providers.get(provider or "")
    if settings is None:
        return None
    if settings.api_key is not None:
        return "api-key"
    return None if settings.api_key_env is None else f"api-key ({settings.api_key_env})"


def _whole_number(value: float | None) -> int | None:
    return None if value is None else int(value)


def _document(status: Status) -> Json:
    """A status as programs read it."""
    queue, resets = status.queue, status.resets
    return {
        "key": status.key,
        "updatedAt": status.updated_at,
        "model": status.model,
        "runtime": status.runtime,
        "inputTokens": status.input_tokens,
        "outputTokens": status.output_tokens,
        "estimatedCostUsd": status.cost,
        "contextTokens": status.context_tokens,
        "contextEstimated": status.context_estimated,
        "contextWindow": status.context_window,
        "compactionCount": status.compactions,
        "thinkingLevel": status.thinking,
        "verboseLevel": status.verbose,
        "reasoningLevel": status.reasoning,
        "queue": None if queue is None else {"mode": queue.mode, "depth": queue.depth, "cap": queue.cap},
        "reset": None if resets is None else {"atHour": resets.at_hour, "idleMinutes": resets.idle_minutes},
        "sending": status.sending,
    }


# -- the whole gateway


def _whole(gateway: Gateway) -> Json:
    now = gateway.store.now()
    rows = gateway.conversations.list(_EVERY).rows
    counts = Counter(row.agent for row in rows)
    return {
        "version": __version__,
        "startedAt": gateway.started_at,
        "uptimeMs": now - gateway.started_at,
        "now": now,
        "root": gateway.store.name,
        "agents": [_agent(gateway, agent, counts[agent]) for agent in gateway.conversations.agents()],
        "conversations": len(rows),
        "recent": [_recent(gateway, row, now) for row in rows[:_RECENT]],
        "problems": [
            {"path": problem.path, "message": tellable(problem.message, problem.path), "hint": problem.hint}
            for problem in gateway.conversations.problems()
        ],
    }


def _agent(gateway: Gateway, agent: str, conversations: int) -> Json:
    return {
        "id": agent,
        "model": gateway.model_of(agent, {}),
        "contextWindow": gateway.window_of(agent, {}),
        "runner": gateway.config.runner_of(agent).name,
        "workspace": gateway.workspace(agent),
        "conversations": conversations,
    }


def _recent(gateway: Gateway, row: Conversation, now: int) -> Json:
    try:
        kind = session_kind(row.key, row.entry.known("chatType"))
    except InvalidId:
        kind = "unknown"  # somebody wrote the key by hand
    told = session_row(row.text, kind, row.entry, now)
    return {**told, "contextWindow": told["contextWindow"] or gateway.window_of(row.agent, row.entry)}
