"""A conversation on its way to another agent: its live messages, in a form that the agent's own program and model accept.

    plain     for agents with a format of their own: only user, assistant and tool result messages (and developer ones)
    family    for the pi family, which also knows commands, custom messages and summaries

Rules:

- Everything that the model would see is kept: texts, calls, results and images, in order. What the other agent has no form for
  becomes a text. System prompts, tool definitions and what a program tells the model about itself (environment, model, skills)
  are left out, because the other agent sends its own.
- Calls have names and ids that every provider accepts, and every call has a result. A call that was stopped gets one, too.
- Thinking is kept where the model that will go on may accept it; the caller says where.
- Every change has a note. What is made here depends only on the conversation, so the same conversation gives the same copy.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sessile.core.codec import encode_plain
from sessile.core.hygiene import Cleaned, Note, Notes, Piece, clean, join_responses, pair, rewrite, separate
from sessile.core.ids import new_session_id, sha256
from sessile.core.messages.family import Message, blocks_of, convert_to_llm, text_block
from sessile.core.messages.request import given
from sessile.core.providers import Policy, sniff
from sessile.core.text import iso_timestamp, without_surrogates

FAMILY_ROLES = ("bashExecution", "custom", "hookMessage", "branchSummary", "compactionSummary")
"""Roles of the pi family that all of its programs understand."""

_NAMELESS = "unknown_tool"
_SPARED = "stands_for"
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_DATA_URL = re.compile(r"data:(image/[a-z+.-]+);base64,")
_OF_ANSWER = "Images from the answer above:"
_SHOWN = ("content", "text", "summary", "output", "message")  # members of an unknown message that a person would read


class Conversation(NamedTuple):
    """The live part of a session, from which another agent goes on.

    Attributes:
        id: The id of the session.
        origin: The agent that the session comes from, if it is known.
        cwd: The project.
        title: The title, if there is one.
        created: When the session was created, in milliseconds.
        messages: The messages of the context, with whole texts and images.
        surroundings: The types of messages in which its program tells the model about itself; they are left out.
    """

    id: str
    origin: str | None
    cwd: str
    title: str | None
    created: int
    messages: Sequence[Message]
    surroundings: tuple[str, ...] = ()

    @property
    def last_time(self) -> int:
        """The time of the last message that has one."""
        return max((at for message in self.messages if (at := time_of(message))), default=self.created)

    def digest(self, agent: str) -> bytes:
        """Return a hash of the conversation for an agent: the same for the same messages."""
        told = [agent, self.id, self.cwd, self.title, self.messages]
        return sha256(encode_plain({"told": told})).digest()

    def new_id(self, agent: str) -> str:
        """Return the UUIDv7 of the copy for an agent; its time is that of the last message."""
        digest = self.digest(agent)
        return new_session_id(self.last_time, lambda count: digest[:count])

    def times(self) -> str:
        """Return the time of the last message, as files store it."""
        return iso_timestamp(self.last_time)


class Takes(NamedTuple):
    """What an agent can take.

    Attributes:
        policy: What its provider accepts.
        documents: Whether messages may contain documents.
        urls: Whether an image may be an address.
        developer: Whether there are developer messages.
        thinking: Whether thinking is kept whole, whatever its signature, because it goes back to where it came from.
    """

    policy: Policy
    documents: bool = False
    urls: bool = False
    developer: bool = False
    thinking: bool = False


def plain(conversation: Conversation, takes: Takes) -> Cleaned:
    """Return user, assistant and tool result messages that an agent and its provider accept."""
    notes = Notes()
    pieces = _prepared(conversation, notes, family=False)
    pieces = [_taken(piece, takes, notes) for piece in pieces]
    pieces = _images_after_answers(pieces, notes)
    cleaned = clean([piece.message for piece in pieces], takes.policy)
    messages = [_restored(message) for message in cleaned.messages]
    places = [piece.place for piece in pieces]
    moved = [note._replace(place=place) for note in cleaned.notes if (place := places[note.place]) is not None]
    origins = [None if at is None else places[at] for at in cleaned.origins]
    return Cleaned(messages, origins, sorted([*notes, *moved], key=lambda note: note.place))


def _restored(message: Message) -> Message:
    """Return a message with the parts that texts stand for."""
    content = message.get("content")
    if not isinstance(content, list) or not any(_SPARED in block for block in content):
        return message
    return {**message, "content": [block.get(_SPARED, block) for block in content]}


def family(conversation: Conversation, takes: Takes) -> Cleaned:
    """Return messages for a program of the pi family; thinking stays as it is."""
    notes = Notes()
    pieces = join_responses(_prepared(conversation, notes, family=True), notes)
    pieces = [_taken(piece, takes, notes) for piece in pieces]
    pieces = _images_after_answers(pieces, notes)
    pieces = rewrite(pieces, takes.policy.tool_ids)
    pieces = pair(pieces, takes.policy.synthetic, notes)
    pieces = separate(pieces, takes.policy.tool_ids)
    kept = []
    for piece in pieces:
        if piece.role == "assistant" and not any(_says(block) for block in piece.blocks):
            notes.add(piece, "dropped", "an empty answer")
        else:
            kept.append(piece)
    return Cleaned(
        [piece.message for piece in kept],
        [piece.place for piece in kept],
        sorted(notes, key=lambda note: note.place),
    )


def told(cleaned: Cleaned) -> list[str]:
    """Return what was left out, changed or made, each once; what only moved is not a loss."""
    return list(dict.fromkeys(note.text for note in cleaned.notes if note.did in ("dropped", "changed", "made")))


_YEAR_10000 = 253_402_300_800_000


def time_of(message: Message) -> int | None:
    """Return the time of a message in milliseconds; `None` if no date can tell it."""
    at = message.get("timestamp")
    return int(at) if isinstance(at, int | float) and not isinstance(at, bool) and 0 < at < _YEAR_10000 else None


def _prepared(conversation: Conversation, notes: Notes, *, family: bool) -> list[Piece]:
    """Return the messages that the model would see, in roles that the target knows."""
    pieces: list[Piece] = []
    talk = given(conversation.messages).messages
    if len(talk) < len(conversation.messages):
        notes.append(Note(0, "dropped", "the system prompt and the tools: the other agent sends its own"))
    for place, message in enumerate(talk):
        piece = Piece(place, message)
        if str(message.get("customType", "")).startswith(conversation.surroundings):
            notes.add(piece, "dropped", f"what {conversation.origin} told the model about its surroundings")
            continue
        if piece.role == "system":  # a note of the agent's program within the conversation
            pieces.append(piece.having(role="developer"))
            continue
        if family and piece.role in FAMILY_ROLES:
            pieces.append(piece)
            continue
        converted = convert_to_llm([message])
        if converted:
            pieces.append(piece._replace(message=converted[0]))
        elif (text := _unknown(message)) is not None:
            notes.add(piece, "changed", f"a message of the unknown role {piece.role} became a message of the user")
            pieces.append(piece._replace(message={"role": "user", "content": text, "timestamp": time_of(message)}))
    return pieces


def _unknown(message: Message) -> Any:
    """Return what a message of an unknown role says; `None` if it is not for the model."""
    if message.get("excludeFromContext") or message.get("role") in (*FAMILY_ROLES, "pythonExecution", "fileMention"):
        return None
    return next((message[name] for name in _SHOWN if isinstance(message.get(name), str | list) and message[name]), None)


def _taken(piece: Piece, takes: Takes, notes: Notes) -> Piece:
    """Return a message whose parts the target knows."""
    message = piece.message
    role = piece.role
    if role in FAMILY_ROLES and role not in ("custom", "hookMessage"):
        return piece
    if role == "developer" and not takes.developer:
        piece = piece.having(role="user")
    if role == "assistant" and message.get("stopReason") in ("error", "aborted"):
        # A stopped call was made as far as the model knows, so it gets a result instead of being removed.
        piece = piece.having(stopReason="toolUse" if piece.calls else "stop")
    if role == "toolResult":
        piece = piece.having(toolName=_name(message.get("toolName")))
    blocks = [_block(block, piece, takes, notes) for block in _given(message)]
    return piece.having(content=[block for block in blocks if block is not None])


def _given(message: Message) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [text_block(content)]
    return content if isinstance(content, list) else []


def _block(block: Any, piece: Piece, takes: Takes, notes: Notes) -> Message | None:
    if isinstance(block, str):
        return text_block(block)
    if not isinstance(block, dict):
        notes.add(piece, "dropped", f"a part that is no object: {type(block).__name__}")
        return None
    kind = block.get("type")
    if kind == "image":
        return _image(block, piece, takes, notes)
    if kind in ("toolCall", "toolUse", "functionCall"):
        return _call(block, piece, notes)
    if kind == "document" and takes.documents and (block.get("data") or block.get("url")):
        return _spared(block)
    if kind in ("document", "audio"):
        return _attachment(block, str(kind), piece, notes)
    if kind == "thinking" and takes.thinking:
        return _spared(block)
    if kind in ("text", "thinking", "redactedThinking"):
        return block
    value = block.get("value") if kind == "other" else block
    notes.add(piece, "changed", f"a part of type {kind} became a text")
    return text_block(encode_plain(value if isinstance(value, dict) else {"value": value}).decode("utf-8", "replace"))


def _image(block: Message, piece: Piece, takes: Takes, notes: Notes) -> Message:
    data, url = block.get("data"), block.get("url")
    if isinstance(url, str) and not isinstance(data, str):
        found = _DATA_URL.match(url)
        if found is None and takes.urls:
            return _spared({"type": "image", "url": url})
        if found is None:
            notes.add(piece, "changed", "an image that is only an address became a text")
            return text_block(f"[image: {url}]")
        data, block = url[found.end() :], {"mimeType": found.group(1)}
    if not isinstance(data, str) or not _is_base64(data):
        notes.add(piece, "dropped", "an image whose data is missing or damaged")
        return text_block("[an image was here, but its data is missing]")
    return {"type": "image", "data": data, "mimeType": sniff(data) or block.get("mimeType") or "image/png"}


def _spared(block: Message) -> Message:
    """Return a text that stands for a part that hygiene does not know."""
    return {**text_block(f"[{block['type']}]"), _SPARED: block}


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data, strict_mode=True))
    except ValueError:
        return False


def _attachment(block: Message, kind: str, piece: Piece, notes: Notes) -> Message:
    """Return a document or a recording as a text: its own text, or what it was."""
    name = next((str(block[key]) for key in ("name", "title", "fileId", "url") if block.get(key)), kind)
    text = block.get("text") or block.get("transcript")
    if isinstance(text, str) and text:
        return text_block(f'<{kind} name="{name}">\n{text}\n</{kind}>')
    notes.add(piece, "dropped", f"the {kind} {name}, which the other agent cannot take")
    return text_block(f"[{kind} {name}: not available here]")


def _call(block: Message, piece: Piece, notes: Notes) -> Message:
    given = block.get("name")
    name = _name(given)
    if name != given:
        notes.add(piece, "changed", f"the tool {given!r} is called {name}, a name that providers accept")
    arguments: Any = next((block[key] for key in ("arguments", "input", "args") if block.get(key) is not None), {})
    kept = {key: value for key, value in block.items() if key not in ("input", "args", "partialJson")}
    return {**kept, "type": "toolCall", "name": name, "arguments": arguments}


def _name(given: object) -> str:
    """Return the name of a tool as every provider accepts it."""
    name = given.strip() if isinstance(given, str) else ""
    return _NO_NAME.sub("_", without_surrogates(name))[:_LONGEST_NAME] or _NAMELESS


def _images_after_answers(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """Move images that the model made to a user message after the answer and the results of its calls."""
    result: list[Piece] = []
    waiting: list[Message] = []
    for piece, following in pairwise([*pieces, None]):
        assert piece is not None
        images = [block for block in blocks_of(piece.message.get("content")) if block.get("type") == "image"]
        if piece.role == "assistant" and images:
            notes.add(piece, "moved", f"images of an answer ({len(images)}) follow in a message of the user")
            piece = piece.having(content=[block for block in piece.blocks if block.get("type") != "image"])
            waiting += images
        result.append(piece)
        if waiting and (following is None or following.role != "toolResult"):
            content = [text_block(_OF_ANSWER), *waiting]
            result.append(Piece(piece.place, {"role": "user", "content": content, "timestamp": time_of(piece.message)}))
            waiting = []
    return result


def _says(block: Message) -> bool:
    """Return whether a part of an answer says anything."""
    return block.get("type") not in ("text", "thinking") or bool(block.get("text") or block.get("thinking"))
