"""A request to a model provider, what it is made from, and what is kept beside a message for the API that it came from.

`extra` of a message or part has one object per API: members that the neutral form has no place for. Only that API gets them
back. Names that are not members of the API start with a dollar sign:

    $without     members that the API's form did not have, although it usually has them
    $form        how a value was written, where the API has several forms
    $part        the number of this message among those that one message of the API became
    $message     the members of that one message
    $item        the members of an object inside the API's form, such as the `function` of a call
    $arguments   the arguments of a call as they were written
    $answer      what an answer tells about itself besides model, tokens and stop reason
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sessile.core.messages.family import Message, blocks_of, convert_to_llm
from sessile.core.providers import DEFAULT, policy_for
from sessile.errors import InvalidEntry

Tool = dict[str, Any]
"""The definition of a tool: `name`, `description` and `parameters` (a JSON schema)."""

ALIASES = {
    "anthropic": ("anthropic", "anthropic-messages"),
    "openai": ("openai", "openai-completions"),
    "responses": ("responses", "openai-responses", "openai-codex-responses"),
    "google": ("google", "google-generative-ai", "google-gemini-cli", "google-vertex"),
}
"""The APIs, and the names under which parts and messages refer to each."""

_SIGNED = {"anthropic": "claude", "openai": "none", "responses": "openai", "google": "gemini"}
REASONING = ("reasoning_content", "reasoning", "reasoning_text")
"""Members of chat messages that hold thinking. The pi family stores their name in place of a signature."""


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


class Notes(list[RequestNote]):
    """The notes of one conversion; `entry` is the entry that the conversion is at."""

    entry: str | None = None

    def add(self, did: str, text: str) -> None:
        self.append(RequestNote(self.entry, did, text))


class Context(Protocol):
    """The part of a `SessionContext` that a request is made from."""

    @property
    def messages(self) -> Sequence[Message]: ...


class Sourced(NamedTuple):
    """Messages with the entry of each, for a request that is not made from a whole context."""

    messages: Sequence[Message]
    sources: Sequence[str | None]


Source = Context | Iterable[Message]
"""A context, or the messages of one."""


class Given(NamedTuple):
    """A source taken apart."""

    system: list[str]
    tools: list[Tool]
    messages: list[Message]
    sources: list[str | None]


def given(source: Source, api: str | None = None, *, in_place: bool = False, notes: Notes | None = None) -> Given:
    """Return system prompt, tools and conversation of a context or a list of messages.

    System messages at the start of the conversation are its system prompt. A system message of the pi family has named
    `sections`, and the tools that it adds and removes; later ones change those of earlier ones, wherever they are. One with
    `replaces` (a snapshot) stands for all before it; the tools stay if it has none. Any other system message within the
    conversation stays where it is, and so does one that came from `api` as a message.

    Args:
        source: A context, or its messages.
        api: The API that the request is for.
        in_place: Leave system messages without sections or tools at the start of the conversation, too.
        notes: Where parts of the system prompt that are no text are noted.
    """
    messages = list(source.messages if hasattr(source, "messages") else source)
    sources = list(getattr(source, "sources", ())) or [None] * len(messages)
    prompts: list[Message] = []
    lost: list[RequestNote] = []
    talk: list[tuple[Message, str | None]] = []
    started = False
    for message, entry in zip(messages, sources, strict=True):
        if not is_prompt(message):
            started = started or message.get("role") != "developer"
        elif changes_prompt(message) or not (in_place or started or (api is not None and came_from(message, api))):
            prompts.append(message)
            if notes is not None:
                lost = [] if message.get("replaces") else lost
                lost += [
                    RequestNote(entry, "dropped", f"{_named(part)} in a system message: the system prompt is text")
                    for part in blocks_of(message.get("content"))
                    if part.get("type") != "text" and not part.get("text")
                ]
            continue
        talk.append((message, entry))
    if notes is not None:
        notes += lost
    return Given(*replayed(prompts), [message for message, _ in talk], [entry for _, entry in talk])


def is_prompt(message: Mapping[str, Any]) -> bool:
    """Return whether a message changes the system prompt or the tools, rather than being part of the conversation."""
    return message.get("role") == "system"


def changes_prompt(message: Message) -> bool:
    """Return whether a message has named sections or tools, or is a snapshot: it belongs to the system prompt wherever it is."""
    return any(name in message for name in ("sections", "toolsAdded", "toolsRemoved", "replaces"))


def replayed(messages: Iterable[Message]) -> tuple[list[str], list[Tool]]:
    """Return the system prompt, in blocks, and the tools after a conversation's system messages."""
    texts: list[str] = []
    sections: dict[str, str] = {}
    tools: dict[str, Tool] = {}
    for message in filter(is_prompt, messages):
        content = message.get("content")
        if message.get("replaces"):
            texts, sections = [], {}
            tools = {} if "toolsAdded" in message else tools
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
        for tool in blocks_of(message.get("toolsAdded")):
            if isinstance(tool.get("name"), str):
                tools[tool["name"]] = tool
        for name in _strings(message.get("toolsRemoved")):
            tools.pop(name, None)
    whole = "\n\n".join(text for text in sections.values() if text)
    return [*texts, whole] if whole else texts, list(tools.values())


def leading(messages: Sequence[Message], sources: Sequence[str | None], notes: Notes, target: str) -> list[list[str]]:
    """Return the texts of the developer messages at the start, which belong to the system prompt of some APIs."""
    found: list[list[str]] = []
    for message, entry in zip(messages, sources, strict=True):
        if message.get("role") != "developer":
            break
        notes.entry = entry
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else blocks_of(content)
        texts = (
            part.get("text") if part.get("type") == "text" else as_text(part, notes, f"the system prompt of {target}")
            for part in parts
        )
        found.append([str(text) for text in texts if text])
    notes.entry = None
    return found


def folded(messages: Iterable[Mapping[str, Any]]) -> Message | None:
    """Return one system message that stands for several, for a compaction to carry; `None` if there is none."""
    prompts = [dict(message) for message in messages if is_prompt(message)]
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


def conversation(messages: Sequence[Message], sources: Sequence[str | None], notes: Notes) -> Iterator[Message]:
    """Yield the messages without the family's wrappers; `notes` follows their entries."""
    for number, message in enumerate(messages):
        notes.entry = sources[number] if number < len(sources) else None
        converted = convert_to_llm([message])
        if not converted and not message.get("excludeFromContext"):
            notes.add("dropped", f"a message with the unknown role {message.get('role')!r}")
        yield from converted
    notes.entry = None


def called(messages: Iterable[Message]) -> dict[str, Message]:
    """Return the calls of a conversation by id."""
    return {
        part["id"]: part
        for message in messages
        if message.get("role") == "assistant"
        for part in blocks_of(message.get("content"))
        if part.get("type") == "toolCall" and isinstance(part.get("id"), str)
    }


# -- what is kept for the API that a message came from


def extra_of(value: Message, api: str) -> Message:
    """Return what a message or part keeps for an API; empty if nothing."""
    extra = value.get("extra")
    found = extra.get(api) if isinstance(extra, dict) else None
    return found if isinstance(found, dict) else {}


def absent_of(value: Message, api: str) -> list[str]:
    """Return the members that the API's form did not have."""
    return _strings(extra_of(value, api).get("$without"))


def form_of(value: Message, api: str) -> str | None:
    """Return how a value was written, where the API has several forms."""
    return _string(extra_of(value, api).get("$form"))


def item_of(value: Message, api: str) -> Message:
    """Return the members of an object inside the API's form; empty if nothing is kept."""
    item = extra_of(value, api).get("$item")
    return item if isinstance(item, dict) else {}


def came_from(value: Message, api: str) -> bool:
    """Return whether a message or part keeps anything for an API, so that it came from there."""
    extra = value.get("extra")
    return isinstance(extra, dict) and api in extra


def with_extra(value: Message, api: str, members: Message | None) -> Message:
    """Return a message or part that keeps members for an API; `None` keeps nothing, not even where it came from."""
    return value if members is None else {**value, "extra": {api: members}}


def with_answer(message: Message, api: str, answer: Message, *names: str) -> Message:
    """Return a message that keeps some members of its answer, which no request has."""
    found = {name: answer[name] for name in names if answer.get(name) not in (None, [], {})}
    return with_extra(message, api, extra_of(message, api) | {"$answer": found}) if found else message


def sent_back(value: Message, api: str) -> Message:
    """Return the members of the API itself among those that are kept for it."""
    return {name: item for name, item in extra_of(value, api).items() if not name.startswith("$")}


def rest_of(value: Message, *known: str) -> Message | None:
    """Return the members of an API's object that its translation does not know; `None` if there are none."""
    return {name: item for name, item in value.items() if name not in known} or None


def others(part: Message, api: str) -> Message | None:
    """Return the value of a part that only this API understands; `None` if it is another API's."""
    value = part.get("value") if part.get("api") in ALIASES[api] else None
    return value if isinstance(value, dict) else None


def may_sign(message: Message, part: Message, api: str) -> bool:
    """Return whether the signatures of a part may come from this API; if the origin is unknown, they may."""
    extra = part.get("extra")
    if isinstance(extra, dict) and any(name in ALIASES for name in extra):
        return api in extra
    origin = policy_for(*(_string(message.get(name)) for name in ("provider", "api", "model")))
    return origin is DEFAULT or origin.signatures == _SIGNED[api]


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


# -- refusals


def refused(at: str, value: object, rule: str) -> InvalidEntry:
    """Return the error for a member: its path, its value and the rule."""
    shown = f" {value!r:.80}" if isinstance(value, str | int | float | bool) or value is None else ""
    return InvalidEntry(f"{at}{shown}: {rule}")


def one_of(names: Iterable[str]) -> str:
    """Return the rule that lists the values of a member."""
    return "use one of " + ", ".join(f'"{name}"' for name in names)


def text_at(value: Message, name: str, at: str) -> str:
    """Return a member that must be a text."""
    found = value.get(name)
    if not isinstance(found, str):
        raise refused(f"{at}.{name}" if at else name, found, "use a text")
    return found


# -- data in URLs

_BASE64 = ";base64,"


def media(url: str) -> Message:
    """Return the members of a part for a URL: its data and type if the URL holds them, else the URL."""
    head, mark, data = url.partition(_BASE64)
    mime = head.removeprefix("data:")
    if mark and head.startswith("data:") and mime and ";" not in mime:
        return {"data": data, "mimeType": mime}
    return {"url": url}


def media_url(part: Message) -> str | None:
    """Return the URL of an image or document; `None` if it has neither data nor a URL."""
    if isinstance(part.get("data"), str):
        return f"data:{part.get('mimeType')}{_BASE64}{part['data']}"
    url = part.get("url")
    return url if isinstance(url, str) else None


def _named(part: Message) -> str:
    kind, name = part.get("type"), part.get("name")
    named = f" ({name})" if isinstance(name, str) and name else ""
    return f"{'an' if kind in ('audio', 'image', 'other') else 'a'} {kind}{named}"


def failed_note(message: Message, notes: Notes, target: str) -> None:
    """Note that a result is marked as failed, for an API that has no such mark."""
    if message.get("isError"):
        notes.add("changed", f"the result is marked as failed, which {target} cannot tell")


def as_text(part: Message, notes: Notes, target: str) -> str | None:
    """Return the text that stands for a part which an API does not take, with a note; `None` if it is left out."""
    kind, what = part.get("type"), _named(part)
    text = part.get("transcript") if kind == "audio" else part.get("text")
    if not isinstance(text, str) or not text:
        url = part.get("url")
        text = url if kind in ("image", "document") and isinstance(url, str) and not url.startswith("data:") else None
    if text is None:
        notes.add("dropped", f"{what}, which {target} does not take")
    else:
        notes.add("changed", f"{what}, which {target} does not take, is sent as text")
    return text
