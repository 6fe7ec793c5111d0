"""From a context to a request: the wrappers of the agent that will send it, hygiene, then the shape of the provider's API.

A request has the shape of the agent that goes on with the session (its `Dialect`), or the smallest change that the provider
accepts if no agent is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from sessile.core.context import SessionContext
from sessile.core.hygiene import clean
from sessile.core.messages.anthropic import to_anthropic
from sessile.core.messages.family import Message, convert_to_llm
from sessile.core.messages.gemini import to_google
from sessile.core.messages.openai_chat import to_openai
from sessile.core.messages.openai_responses import to_responses
from sessile.core.messages.request import Request, RequestNote, Source, Sourced
from sessile.core.providers import Dialect, Resize, policy_for

Api = Literal["anthropic", "openai", "responses", "google"]

APIS: dict[str, Callable[[Source], Request]] = {
    "anthropic": to_anthropic,
    "openai": to_openai,
    "responses": to_responses,
    "google": to_google,
}
_POLICIES = {"responses": policy_for(api="openai-responses")}


def request_for(
    context: SessionContext,
    api: Api,
    dialect: Dialect | None = None,
    *,
    tools: Collection[str] | None = None,
    resize: Resize | None = None,
) -> Request:
    """Return what is sent to a provider, with a note for each change that this needed.

    Args:
        context: The context.
        api: The provider's API.
        dialect: How the agent that sends it writes its requests; `None` for the provider's own rules only.
        tools: The names of the existing tools; calls of others are dropped. `None` if unknown.
        resize: Makes large images smaller.
    """
    messages: list[Message] = []
    sources: list[str | None] = []
    for message, source in zip(context.messages, context.sources, strict=True):
        converted = convert_to_llm([message])
        messages += converted
        sources += [source] * len(converted)
    cleaned = clean(messages, _POLICIES.get(api) or policy_for(api), tools=tools, resize=resize)
    origins = [None if place is None else sources[place] for place in cleaned.origins]
    request = APIS[api](Sourced(cleaned.messages, origins))
    request.notes += [RequestNote(sources[note.place], note.did, note.text) for note in cleaned.notes]
    return request
