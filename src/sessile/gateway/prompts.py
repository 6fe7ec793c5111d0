"""What a model is asked in a turn: the context of the session, as its provider takes it.

    context → old tool results trimmed → messages of a model → hygiene of the provider

Nothing that is said changes by it. What was trimmed once is trimmed in every later request, so that a provider's cache keeps
holding; that is remembered in the session (`sessile.trimmed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sessile import can_resize, convert_to_llm, resize
from sessile.core.hygiene import clean
from sessile.core.images import LIMITS
from sessile.core.text import parse_timestamp
from sessile.core.trimming import Kept, applies_to, is_due, project, read_kept, trim
from sessile.gateway.runners import RunRequest

if TYPE_CHECKING:
    from sessile import Session, SessionContext
    from sessile.gateway.answerers import Answerer

TRIMMED = "sessile.trimmed"

Json = dict[str, Any]


def make_request(
    session: Session,
    context: SessionContext,
    answerer: Answerer,
    now: int,
    *,
    key: str,
    thinking: str | None = None,
    system: str | None = None,
    more: Sequence[Json] = (),
) -> RunRequest:
    """The request of a turn: a context of the session, and messages that are only said here.

    `system` stands behind the instructions of the agent.
    """
    messages = convert_to_llm([*_trimmed(session, context, answerer, now), *more])
    if answerer.policy is not None:
        limits = LIMITS._replace(side=answerer.agent.image_max_dimension_px)
        messages = clean(messages, answerer.policy, limits=limits, resize=resize if can_resize() else None).messages
    instructions = "\n\n".join(part for part in (answerer.agent.system_prompt, system) if part)
    return RunRequest(
        messages,
        system=instructions or None,
        model=answerer.settings.model,
        max_tokens=answerer.settings.max_tokens,
        thinking=thinking,
        session_key=key,
        session_id=session.id,
    )


# -- trimming


def _trimmed(session: Session, context: SessionContext, answerer: Answerer, now: int) -> list[Json]:
    """The messages with old tool results trimmed, where that is worth it."""
    messages, sources = context.messages, context.sources
    settings, window = answerer.agent.context_pruning.settings, answerer.window
    provider, model = answerer.settings.provider or answerer.settings.name, answerer.settings.model or ""
    if settings is None or window is None or not applies_to(provider, model):
        return messages
    if not any(message.get("role") == "toolResult" for message in messages):
        return messages
    kept = _kept(session, context)
    if not is_due(_last_answer(messages), now, settings.ttl):
        return project(messages, sources, kept)
    trimmed = trim(messages, sources, window, kept, settings)
    if trimmed.kept != kept:
        session.append_custom_entry(TRIMMED, trimmed.kept)
    return trimmed.messages


def _kept(session: Session, context: SessionContext) -> Kept:
    """What was trimmed in the part of the session that the context comes from."""
    missing = {source for source in context.sources if source is not None}
    for row in session.walk_up():
        if not missing:
            break
        if row.id in missing:
            missing.discard(row.id)
            continue
        entry = session.read_row(row)
        if entry.get("customType") == TRIMMED:
            return read_kept(entry.get("data"))
    return {}


def _last_answer(messages: Sequence[Json]) -> int | None:
    """When the provider saw this conversation last, in milliseconds."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            told = message.get("timestamp")
            return told if isinstance(told, int) else parse_timestamp(told)
    return None
