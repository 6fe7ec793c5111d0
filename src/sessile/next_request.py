"""The next request of a session: what its agent would send to the model after an entry.

    request = next_request(session, "anthropic", at="9f31c2a0", agent=AGENTS.get("pi"))

The agent is the one that the session belongs to, or another one that is to go on with it. It decides about the shape, and its own
settings about what the model accepts. Without an agent the request has the smallest changes that the provider needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sessile.agents.base import Agent
from sessile.agents.registry import AGENTS
from sessile.core.context import SessionContext
from sessile.core.hygiene import Receiver
from sessile.core.kinds import BOUNDARY, CHAIN, MESSAGE, STATE
from sessile.core.sending import APIS, gaps_of, last_api, receiver_of, request_for
from sessile.errors import Invalid
from sessile.storage.base import NATIVE, Filesystem
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.core.messages.family import Message
    from sessile.core.messages.request import Request
    from sessile.core.providers import Resize
    from sessile.session import SessionView

DEFAULT_API = "anthropic"

__all__ = ["agent_named", "agent_of", "context_for", "gaps_of", "next_request", "whole_context"]


def agent_of(session: SessionView, sources: Iterable[Source] = ()) -> Agent | None:
    """Return the agent that a session belongs to; `None` for our own sessions.

    Files of the pi family are in our format, so their folder tells the agent: one of `sources`, or the usual one.
    """
    if session.format != NATIVE:
        return AGENTS.get(session.format)
    path = session.path
    name = next((source.agent for source in sources if path.startswith(f"{source.sessions}/")), None)
    if name is not None:
        return AGENTS.get(name)
    return next((agent for agent in AGENTS if _is_below(path, agent)), None)


def agent_named(name: str) -> Agent:
    """Return the agent with that name, if it is known how it writes its requests."""
    found = AGENTS.get(name)
    if found is None or found.dialect is None:
        known = ", ".join(agent.name for agent in AGENTS if agent.dialect is not None)
        raise Invalid(f"agent {name!r}: use one of {known}")
    return found


def _is_below(path: str, agent: Agent) -> bool:
    """Return whether a path goes through the folder in which an agent keeps its sessions by default."""
    folders = (default.removeprefix("~").strip("/") for _, default in agent.variables)
    return agent.format is None and any(f"/{folder}/" in path for folder in folders if folder.startswith("."))


def context_for(
    session: SessionView, agent: Agent | None, at: str | None = None, *, bridge: bool = False
) -> SessionContext:
    """Return the context at an entry, or at the leaf; with an agent, as whole as its sessions need it."""
    if agent is not None or session.format != NATIVE:
        return whole_context(session, at, bridge=bridge)
    return session.context(bridge=bridge) if at is None else session.context(at, bridge=bridge)


def whole_context(session: SessionView, at: str | None = None, *, bridge: bool = False) -> SessionContext:
    """Return the context with the system prompt and the tools that were set before its oldest message.

    That reads the whole path, which our own sessions do not need: their compactions repeat the system prompt.
    """
    context = session.context(bridge=bridge) if at is None else session.context(at, bridge=bridge)
    earlier = list(_earlier(session, at, bridge, frozenset(context.sources)))
    return replace(context, prompts=earlier[::-1]) if earlier else context


def _earlier(session: SessionView, at: str | None, bridge: bool, live: frozenset[str | None]) -> Iterable[Message]:
    """Yield the system messages of a path that are not in its context, newest first."""
    for row in session.walk_up(at, bridge=bridge):
        if row.id in live and not row.flags & BOUNDARY:
            continue
        if row.flags & BOUNDARY:
            if isinstance(session.read_row(row).get("systemMessage"), dict):
                return
        elif row.flags & (MESSAGE | STATE) == MESSAGE:
            message = session.read_row(row).get("message")
            if isinstance(message, dict) and message.get("role") == "system":
                yield message
        elif row.flags == CHAIN:
            entry = session.read_row(row)
            if entry.get("type") == "session_init" and isinstance(entry.get("systemPrompt"), str):
                yield {"role": "system", "content": entry["systemPrompt"]}


def next_request(
    session: SessionView,
    api: str | None = None,
    *,
    at: str | None = None,
    agent: Agent | None = None,
    bridge: bool = False,
    resize: Resize | None = None,
    fs: Filesystem | None = None,
) -> tuple[str, Request]:
    """Return the API and the request that an agent would send after an entry.

    Args:
        session: The session.
        api: The API: "anthropic", "openai", "responses" or "google"; `None` for the one that answered last.
        at: The entry; `None` for the leaf.
        agent: The agent that sends it; `None` for the provider's own rules only.
        bridge: Continue at the nearest earlier entry where a parent is missing.
        resize: Makes large images smaller.
        fs: Where the agent's settings are read; `None` to do without them.
    """
    told = None if agent is None or bridge else _told(session, at, agent, api)
    if told is not None:
        return told
    context = context_for(session, agent, at, bridge=bridge)
    api = last_api(context.messages) or DEFAULT_API if api is None else api
    if api not in APIS:
        raise Invalid(f"API {api!r}: use one of {', '.join(APIS)}")
    receiver = receiver_of(context, api)
    dialect = None if agent is None else agent.dialect
    if dialect is not None and agent is not None:
        receiver = receiver if fs is None else _described(fs, session.path, agent, receiver)
        resize = None  # agents make images smaller before they store them
    return api, request_for(context, api, dialect, receiver=receiver, resize=resize)


def _told(session: SessionView, at: str | None, agent: Agent, api: str | None) -> tuple[str, Request] | None:
    """Return the request as the agent's own files tell it, if it is the agent of the session."""
    reader, entry_id = session._foreign_reader(), at or session.leaf_id
    if reader is None or reader.agent is not agent or entry_id is None:
        return None
    return agent.request(reader, entry_id, api)


def _described(fs: Filesystem, path: str, agent: Agent, receiver: Receiver) -> Receiver:
    """Return the receiver with what the agent's own settings say about the model."""
    if receiver.provider is None or receiver.model is None:
        return receiver
    facts = agent.model_facts(fs, path, receiver.provider, receiver.model)
    accepted = facts.get("input")
    images = "image" in accepted if isinstance(accepted, list) else receiver.images
    return receiver._replace(images=images, thinks=bool(facts.get("reasoning", receiver.thinks)))
