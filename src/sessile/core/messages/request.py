"""A request to a model provider, and what it is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sessile.core.messages.family import Message

Tool = dict[str, Any]
"""The definition of a tool: `name`, `description` and `parameters` (a JSON schema)."""


class RequestNote(NamedTuple):
    """Something that a request has, lacks or shows in another form than its session.

    Attributes:
        entry: The id of the entry that it is about; `None` if no entry has the message.
        did: What was done: "dropped", "moved", "merged", "made" or "changed".
        text: A description.
    """

    entry: str | None
    did: str
    text: str


class Request(dict[str, Any]):
    """The members of a request, ready for the provider's client: `client.messages.create(model=…, **request)`.

    Attributes:
        notes (list[RequestNote]): What was changed or left out, and of which entry.
        gaps (list[str]): What the agent sent besides, but does not store, such as its system prompt.
    """

    def __init__(self, members: Mapping[str, Any], notes: Iterable[RequestNote] = (), gaps: Iterable[str] = ()) -> None:
        super().__init__(members)
        self.notes = list(notes)
        self.gaps = list(gaps)


class Context(Protocol):
    """The part of a `SessionContext` that a request is made from."""

    @property
    def messages(self) -> Sequence[Message]: ...


Source = Context | Iterable[Message]
"""A context, or the messages of one."""


class Given(NamedTuple):
    """A source taken apart."""

    system: list[str]
    tools: list[Tool]
    messages: list[Message]


def given(source: Source) -> Given:
    """Return system prompt, tools and conversation of a context or a list of messages.

    System messages at the start of the conversation are its system prompt. A system message of the pi family has named
    `sections`, and the tools that it adds and removes; later ones change those of earlier ones.
    """
    messages = list(source.messages if hasattr(source, "messages") else source)
    return Given(*replayed(messages), [message for message in messages if not is_prompt(message)])


def is_prompt(message: Message) -> bool:
    """Return whether a message changes the system prompt or the tools, rather than being part of the conversation."""
    return message.get("role") == "system"


def replayed(messages: Iterable[Message]) -> tuple[list[str], list[Tool]]:
    """Return the system prompt, in blocks, and the tools after a conversation's system messages."""
    texts: list[str] = []
    sections: dict[str, str] = {}
    tools: dict[str, Tool] = {}
    for message in filter(is_prompt, messages):
        content = message.get("content")
        if isinstance(content, str) and content:
            texts.append(content)
        elif isinstance(content, list):
            texts += [str(block["text"]) for block in content if isinstance(block, dict) and block.get("text")]
        named = message.get("sections")
        for name, text in named.items() if isinstance(named, Mapping) else ():
            if isinstance(text, str):
                sections[name] = text
            else:
                sections.pop(name, None)
        for tool in message.get("toolsAdded") or ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                tools[tool["name"]] = tool
        for name in message.get("toolsRemoved") or ():
            tools.pop(name, None)
    whole = "\n\n".join(text for text in sections.values() if text)
    return [*texts, whole] if whole else texts, list(tools.values())


def folded(messages: Iterable[Message]) -> Message | None:
    """Return one system message that stands for several, for a compaction to carry; `None` if there is none."""
    prompts = [message for message in messages if is_prompt(message)]
    if len(prompts) < 2:
        return prompts[0] if prompts else None
    sections: dict[str, Any] = {}
    for message in prompts:
        named = message.get("sections")
        sections |= named if isinstance(named, Mapping) else {}
    bare = [{name: value for name, value in message.items() if name != "sections"} for message in prompts]
    texts, tools = replayed(bare)
    whole: Message = {"role": "system", "content": "\n\n".join(texts)}
    whole["sections"] = {name: text for name, text in sections.items() if isinstance(text, str)}
    return whole | {"toolsAdded": tools, "timestamp": prompts[-1].get("timestamp")}
