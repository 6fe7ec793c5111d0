"""From a context to a request: the wrappers of the agent that will send it, hygiene, then the shape of the provider's API.

A request has the shape of the agent that goes on with the session (its `Dialect`), or the smallest change that the provider
accepts if no agent is named.

The receiver is the model that the request goes to. It decides which thoughts are the model's own, and whether images are sent.
If it is not given, it is the session's model, or the last one that answered through the same API.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

from sessile.core.context import SessionContext
from sessile.core.hygiene import Receiver, clean
from sessile.core.messages.anthropic import to_anthropic
from sessile.core.messages.family import Message, blocks_of, convert_to_llm, text_block
from sessile.core.messages.gemini import to_google
from sessile.core.messages.openai_chat import to_openai
from sessile.core.messages.openai_responses import to_responses
from sessile.core.messages.request import Request, RequestNote, Source, Sourced, changes_prompt, is_prompt
from sessile.core.providers import Dialect, Resize, Words, policy_for

Api = Literal["anthropic", "openai", "responses", "google"]

APIS: dict[str, Callable[[Source], Request]] = {
    "anthropic": to_anthropic,
    "openai": to_openai,
    "responses": to_responses,
    "google": to_google,
}
_POLICIES = {"responses": policy_for(api="openai-responses")}

_NAMES = (  # names of APIs in the files of agents start with these
    ("anthropic", "anthropic"),
    ("bedrock", "anthropic"),
    ("openai-completions", "openai"),
    ("openai", "responses"),
    ("azure-openai", "responses"),
    ("google", "google"),
)
_ANTHROPICS_OWN = ("web_search",)  # tools with a name that Anthropic gives


def request_for(
    context: SessionContext,
    api: str,
    dialect: Dialect | None = None,
    *,
    receiver: Receiver | None = None,
    tools: Collection[str] | None = None,
    resize: Resize | None = None,
) -> Request:
    """Return what is sent to a provider, with a note for each change that this needed.

    Args:
        context: The context.
        api: The provider's API: a key of `APIS`.
        dialect: How the agent that sends it writes its requests; `None` for the provider's own rules only.
        receiver: The model that it goes to; `None` to take the session's.
        tools: The names of the existing tools; calls of others are dropped. `None` if unknown.
        resize: Makes large images smaller.
    """
    if dialect is not None and dialect.replay is not None:
        whole = [*context.prompts, *context.messages]
        made: Request | None = dialect.replay(api, whole, [*[None] * len(context.prompts), *context.sources])
        if made is not None:
            return made
    # An agent's system messages are its prompt, wherever they are. Those of other programs may be part of the conversation.
    of_prompt = changes_prompt if dialect is None else is_prompt
    prompts = [*context.prompts, *filter(of_prompt, context.messages)]
    messages: list[Message] = []
    sources: list[str | None] = []
    prepared = context.messages if dialect is None or dialect.prepare is None else dialect.prepare(context.messages)
    for message, source in zip(prepared, context.sources, strict=True):
        if message is None:
            continue
        converted = [] if of_prompt(message) else convert_to_llm([_worded(message, dialect)])
        messages += converted
        sources += [source] * len(converted)
    if dialect is not None and api in dialect.brief_thoughts:
        messages = _without_old_thoughts(messages)
    receiver = receiver_of(context, api) if receiver is None else receiver
    policy = _POLICIES.get(api) or policy_for(api)
    cleaned = clean(messages, policy, tools=tools, resize=resize, dialect=dialect, receiver=receiver)
    shaped = cleaned.messages if dialect is None else list(_shaped(cleaned.messages, api, dialect, receiver))
    if dialect is not None and dialect.prefix and api == "anthropic":
        prompts = [_prefixed_tools(message, dialect.prefix) for message in prompts]
    origins = [None if place is None else sources[place] for place in cleaned.origins]
    request = APIS[api](Sourced([*prompts, *shaped], [*([None] * len(prompts)), *origins]))
    if api == "google" and dialect is not None and dialect.merge_users:
        request["contents"] = _merged(request["contents"], "parts")
    elif api == "anthropic" and dialect is not None and dialect.merge_users is None:
        request["messages"] = _merged(request["messages"], "content")
    request.notes += [RequestNote(sources[note.place], note.did, note.text) for note in cleaned.notes]
    request.gaps += gaps_of(context, dialect)
    return request


def gaps_of(context: SessionContext, dialect: Dialect | None) -> list[str]:
    """Return what an agent sends but does not store, without what this session has."""
    if dialect is None:
        return []
    known = {"system prompt": bool(context.system), "tools": bool(context.tools)}
    return [gap for gap in dialect.gaps if not known.get(gap.partition(":")[0])]


# -- the receiver


def api_named(name: object) -> str | None:
    """Return the API for a name in an agent's files, such as `anthropic-messages`."""
    return next((api for start, api in _NAMES if isinstance(name, str) and name.startswith(start)), None)


def last_api(messages: Iterable[Message]) -> str | None:
    """Return the API of the last answer that names one."""
    found = None
    for message in messages:
        if message.get("role") == "assistant":
            found = api_named(message.get("api")) or found
    return found


def receiver_of(context: SessionContext, api: str) -> Receiver:
    """Return the session's model if it answers through this API, otherwise the last one that did."""
    answered: dict[str, Receiver] = {}
    for message in context.messages:
        if message.get("role") == "assistant" and isinstance(message.get("api"), str):
            name = f"{message.get('provider')}/{message.get('model')}"
            answered.pop(name, None)
            answered[name] = Receiver(message.get("provider"), message["api"], message.get("model"))
    chosen = context.models.get("default")
    if chosen is not None and (chosen not in answered or api_named(answered[chosen].api) == api):
        provider, _, model = chosen.partition("/")
        return answered.get(chosen, Receiver(provider, None, model))
    fitting = [receiver for receiver in answered.values() if api_named(receiver.api) == api]
    return fitting[-1] if fitting else Receiver(None, api)


# -- the shape of an agent's requests


def _worded(message: Message, dialect: Dialect | None) -> Message:
    """Return a summary in the words of the agent."""
    words: Words | None = None
    if dialect is not None and message.get("role") == "compactionSummary":
        words = dialect.compaction
    elif dialect is not None and message.get("role") == "branchSummary":
        words = dialect.branch
    if words is None:
        return message
    text = f"{words.before}{message.get('summary') or ''}{words.after}"
    return {"role": "user", "content": [text_block(text)], "timestamp": message.get("timestamp")}


def _without_old_thoughts(messages: list[Message]) -> list[Message]:
    """Return the messages without the thoughts before the last prompt."""
    prompts = (place for place in reversed(range(len(messages))) if messages[place].get("role") == "user")
    last = next(prompts, 0)
    return [_without_thoughts(message) for message in messages[:last]] + messages[last:]


def _without_thoughts(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    return message | {"content": [block for block in content if block.get("type") != "thinking"]}


def _shaped(messages: Iterable[Message], api: str, dialect: Dialect, receiver: Receiver) -> Iterable[Message]:
    for message in messages:
        content = message.get("content")
        if message.get("isError") and not dialect.failures:
            message = message | {"isError": False}
        if message.get("role") == "toolResult" and dialect.joined_results:
            message = message | {"content": _joined(content, dialect.result_joint if api == "openai" else "\n")}
        elif message.get("role") == "user" and dialect.joined_users and not receiver.images:
            message = message | {"content": _joined(content)}
        elif message.get("role") == "user" and dialect.user_joint is not None and api == "openai":
            message = message | {"content": _joined(content, dialect.user_joint)}
        elif message.get("role") == "assistant":
            if api == "openai":
                content = _one_text(content, dialect.joint)
            if dialect.prefix and api == "anthropic":
                content = _prefixed_calls(content, dialect.prefix)
            message = message | {"content": content}
        yield message


def _merged(messages: list[Message], member: str) -> list[Message]:
    """Return messages of which none has the role of the one before: results of calls are the user's, as what follows them."""
    merged: list[Message] = []
    for message in messages:
        parts = message[member] if isinstance(message[member], list) else [text_block(message[member])]
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**merged[-1], member: [*merged[-1][member], *parts]}
        else:
            merged.append({**message, member: parts})
    return merged


def _joined(content: Any, joint: str = "\n") -> Any:
    """Return texts as one, unless there is anything else."""
    if not isinstance(content, list) or len(content) < 2 or any(block.get("type") != "text" for block in content):
        return content
    return [text_block(joint.join(str(block.get("text", "")) for block in content))]


def _one_text(content: Any, joint: str) -> Any:
    """Return an answer with its texts as one, in the place of the first."""
    if not isinstance(content, list):
        return content
    texts = [block for block in content if block.get("type") == "text"]
    if len(texts) < 2:
        return content
    whole = text_block(joint.join(str(block.get("text", "")) for block in texts))
    first = content.index(texts[0])
    rest = [block for block in content if block.get("type") != "text"]
    return [*rest[:first], whole, *rest[first:]]


def _prefixed_calls(content: Any, prefix: str) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {**block, "name": _prefixed(block.get("name"), prefix)} if block.get("type") == "toolCall" else block
        for block in content
    ]


def _prefixed_tools(message: Message, prefix: str) -> Message:
    added = message.get("toolsAdded")
    if not isinstance(added, list):
        return message
    named = [tool for tool in blocks_of(added) if isinstance(tool.get("name"), str)]
    return {**message, "toolsAdded": [{**tool, "name": _prefixed(tool.get("name"), prefix)} for tool in named]}


def _prefixed(name: object, prefix: str) -> str:
    return str(name) if name in _ANTHROPICS_OWN else f"{prefix}{name}"
