"""Hygiene: make the messages of a context acceptable to one provider, with a note on every change.

    join responses → contents → ids → pairing → empty answers → images of results → start of the conversation
    → merge answers → merge user messages → history limit → pairing again

It runs after `convert_to_llm` and before the conversion to a provider's API. Nothing stored is changed; what is added here is
added anew for each request. Cleaning clean messages changes nothing. Messages that end with the model's are not a request
yet: the caller adds the next one. Lone surrogates are replaced by the conversion, except in ids, which must stay pairs. A
note names a message by its position in the given list; everything dropped, moved, merged, added or changed has one.

Contents:
- Texts are not empty (with the policy `full`, not blank). Images go through `core/providers.py`. A tool call has a valid name
  of a known tool, and arguments. A thought stays only with a signature that the API accepts.
- A user message or a result with nothing left keeps its place with a short text. Answers with nothing left are dropped after
  pairing.
- Other agents' names for calls, arguments and signatures are converted here, so that later steps need not know them.

Pairing: every call has one result, directly after it, and every result has a call.
- A result belongs to the first open call with its id in the last message with calls before it. A late result belongs to the
  only open call with its id before it, and to none if there are several. Ids may repeat in later turns. Of several results
  the first counts.
- Results follow their message in the order of its calls; what was between follows the results.
- A call without a result gets an added one, marked `synthetic` and never stored. A call of a turn that failed or was stopped
  was never made and is removed instead.

Ids of tool calls (`strict`, `strict9`, `safe` and `none` in the policy):

    strict    only letters and digits, at most 40; empty becomes `sanitizedtoolid`, missing `defaulttoolid`; a collision
              ends in eight digits of the hash of its original, then in `x2`, `x3`, …
    strict9   exactly nine letters and digits: the first nine, or nine of the hash of fewer; missing becomes `defaultid`
    safe      unchanged if it has only letters, digits, `_` and `-`, at most 40; else as `strict`
    paired    as `safe`, but two ids with `|` between them stay: the pi family splits them
    none      unchanged; only a missing one is added

`rewrite` uses one map for the whole conversation, so that a result keeps the id of its call. `separate` runs after pairing,
because agents reuse ids and providers refuse duplicates. An id depends only on the messages before it, so that a cached
prompt stays valid.

Turns: merging keeps every block of both messages. The members of the first count, except that usage and end are those of the
later answer. Messages added here carry `synthetic` and do not count as turns of the user. Leading system messages are not
part of the history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple

from sessile.core.codec import decode
from sessile.core.ids import sha1
from sessile.core.messages.family import ATTACHED, SEE_BELOW
from sessile.core.providers import (
    DEFAULT,
    LIMITS,
    Dialect,
    Limits,
    Policy,
    Resize,
    Signatures,
    ToolIds,
    fit,
    policy_for,
)
from sessile.core.text import without_surrogates

Message = dict[str, Any]
Did = Literal["dropped", "moved", "merged", "made", "changed"]


class Note(NamedTuple):
    """A change to the messages; `place` is the position of the message in the given list."""

    place: int
    did: Did
    text: str


class Piece(NamedTuple):
    """A message in progress; `place` is its position in the given list, `None` if it was added here."""

    place: int | None
    message: Message
    merged: tuple[int, ...] = ()  # the positions of messages merged into it

    @property
    def role(self) -> str:
        return str(self.message.get("role"))

    @property
    def blocks(self) -> list[Message]:
        """The blocks of the content; a text is one block."""
        content = self.message.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return content if isinstance(content, list) else []

    @property
    def calls(self) -> list[Message]:
        """The tool calls of an assistant message, in order."""
        if self.role != "assistant":
            return []
        return [block for block in self.blocks if block.get("type") == "toolCall"]

    def having(self, **members: Any) -> Piece:
        """Return the piece with some members of its message replaced."""
        return self._replace(message={**self.message, **members})


class Notes(list[Note]):
    """The notes of one run, in the order of the steps."""

    def add(self, piece: Piece, did: Did, text: str) -> None:
        """Add a note about a piece; messages that were added here need none."""
        places = piece.merged if piece.place is None else (piece.place, *piece.merged)
        self.extend(Note(place, did, text) for place in places)


class Receiver(NamedTuple):
    """The model that a request goes to, as far as it is known."""

    provider: str | None = None
    api: str | None = None  # such as `anthropic-messages`
    model: str | None = None
    images: bool = True  # whether it accepts images
    thinks: bool = True  # whether it thinks before it answers


ANY_MODEL = Receiver()


class Care(NamedTuple):
    """What the rules for contents need besides the policy."""

    tools: Collection[str] | None = None  # the existing tools; `None` if unknown
    limits: Limits = Limits()
    resize: Resize | None = None
    dialect: Dialect | None = None
    receiver: Receiver = ANY_MODEL


class Cleaned(NamedTuple):
    """Messages that can be sent, and the notes; `origins[i]` is the position of `messages[i]`, `None` if it was added."""

    messages: list[Message]
    origins: list[int | None]
    notes: list[Note]


def clean(
    messages: Iterable[Message],
    policy: Policy,
    *,
    history_limit: int | None = None,
    tools: Collection[str] | None = None,
    limits: Limits = LIMITS,
    resize: Resize | None = None,
    dialect: Dialect | None = None,
    receiver: Receiver = ANY_MODEL,
) -> Cleaned:
    """Return the messages for a provider, with at most the last `history_limit` user messages.

    With a dialect they are those that its agent sends to `receiver`.
    """
    notes = Notes()
    parts = join_responses([Piece(*item) for item in enumerate(messages)], notes)
    if dialect is not None:
        policy = dialect.over(policy)
        parts = parts if dialect.stopped else without_stopped(parts, notes)
    pieces = tidy(parts, policy, Care(tools, limits, resize, dialect, receiver), notes)
    if any(piece.role == "toolResult" or piece.calls for piece in pieces):  # most conversations have none
        pieces = rewrite(pieces, policy.tool_ids)
        pieces = pair(pieces, policy.synthetic, notes)
        pieces = separate(pieces, policy.tool_ids)
    silent, empty = (dialect.silent, dialect.empty) if dialect is not None else (False, False)
    pieces = settle(pieces, notes, silent=silent, empty=empty)
    if dialect is None:
        # Providers that accept images in results do not accept them in failed ones.
        pieces = images_after_results(pieces, notes, of_failures=policy.results)
    elif not policy.results:
        pieces = images_after_results(
            pieces, notes, words=ATTACHED if dialect.attached is None else dialect.attached, note=dialect.image_note
        )
    if policy.bootstrap:
        pieces = bootstrap(pieces, notes)
    if policy.merge_assistants:
        pieces = merge_assistants(pieces, notes)
    if policy.merge_users:
        pieces = merge_users(pieces, notes)
    pieces = last_turns(pieces, history_limit, notes)
    if history_limit is not None:
        # A cut before a user message separates no pair, but pairs must be right in any case.
        pieces = pair(pieces, policy.synthetic, notes)
    notes.sort(key=lambda note: note.place)
    return Cleaned([piece.message for piece in pieces], [piece.place for piece in pieces], list(notes))


# -- contents

EMPTY = {"user": "[omitted: this message was empty]", "toolResult": "[omitted: this result was empty]"}
INTER_SESSION = "[Inter-session message]"
SILENT = "NO_REPLY"  # an answer that was not delivered

_BLOCKS = {
    "user": ("text", "image", "document", "audio", "other"),
    "system": ("text",),
    "developer": ("text",),
    "assistant": ("text", "thinking", "redactedThinking", "toolCall", "audio", "other"),
    "toolResult": ("text", "image", "document", "audio", "other"),
}
_CALLS = ("toolCall", "toolUse", "functionCall")
_ARGUMENTS = ("arguments", "input", "args")
_THOUGHT_SIGNATURES = ("thinkingSignature", "signature", "thought_signature", "thoughtSignature")
_SIGNATURES = ("textSignature", "thought_signature", "thoughtSignature")
_THOUGHTS = ("thinking", "redactedThinking")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


def tidy(pieces: Iterable[Piece], policy: Policy, care: Care, notes: Notes) -> list[Piece]:
    """Clean the contents of the pieces; drop messages with roles that no provider knows."""
    result = []
    for piece in pieces:
        if piece.role in _BLOCKS:
            result += _Cleaning(piece, policy, care, notes).pieces()
        else:
            notes.add(piece, "dropped", f"unknown role {piece.role}")
    return result


def without_stopped(pieces: Iterable[Piece], notes: Notes) -> list[Piece]:
    """Drop answers that failed or were stopped."""
    result = []
    for piece in pieces:
        if piece.role == "assistant" and piece.message.get("stopReason") in STOPPED:
            notes.add(piece, "dropped", f"an answer that ended with {piece.message['stopReason']}")
        else:
            result.append(piece)
    return result


def settle(pieces: Iterable[Piece], notes: Notes, *, silent: bool = False, empty: bool = False) -> list[Piece]:
    """Drop thoughts at the end of answers, and answers that are empty or silent, unless they are sent."""
    result = []
    for piece in pieces:
        if piece.role == "assistant":
            blocks = piece.blocks
            end = max((at + 1 for at, block in enumerate(blocks) if block.get("type") not in _THOUGHTS), default=0)
            if end < len(blocks):
                notes.add(piece, "dropped", "a thought at the end of an answer")
                piece = piece.having(content=blocks[:end])
            if not end:
                if empty and piece.message.get("stopReason") != "error":
                    result.append(piece)
                else:
                    notes.add(piece, "dropped", "an empty answer")
                continue
            if not silent and _is_silent(blocks[:end]):
                notes.add(piece, "dropped", f"an answer that was not delivered ({SILENT})")
                continue
        result.append(piece)
    return result


def _is_silent(blocks: list[Message]) -> bool:
    visible = [block for block in blocks if block.get("type") not in _THOUGHTS]
    return len(visible) == 1 and str(visible[0].get("text", "")).strip() == SILENT


class _Cleaning:
    """Cleans the content of one message."""

    def __init__(self, piece: Piece, policy: Policy, care: Care, notes: Notes) -> None:
        self._piece = piece
        self._policy = policy
        self._care = care
        self._notes = notes
        own = _is_own(piece.message, policy) if care.dialect is None else _is_from(piece.message, care.receiver)
        self._own = own
        self._signatures: Signatures = policy.signatures if own else "none"

    def pieces(self) -> list[Piece]:
        """Return the cleaned message; none if a system message is empty."""
        piece, role = self._piece, self._piece.role
        given = self._given()
        blocks = [tidied for block in given if (tidied := self._block(block)) is not None]
        if role == "user":
            blocks = self._marked(blocks)
        if not blocks and role in EMPTY:
            self._note("made", "the content was empty; a text replaces it")
            blocks = [{"type": "text", "text": EMPTY[role]}]
        if not blocks and role in ("system", "developer"):
            self._note("dropped", "an empty system message")
            return []
        if blocks == piece.blocks and (isinstance(piece.message.get("content"), list) or role != "assistant"):
            return [self._with_call_id(piece)]
        return [self._with_call_id(piece.having(content=blocks))]

    def _note(self, did: Did, text: str) -> None:
        self._notes.add(self._piece, did, text)

    def _given(self) -> list[Any]:
        content = self._piece.message.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if isinstance(content, list):
            return content
        if content is not None:
            self._note("dropped", f"content that is neither text nor blocks: {type(content).__name__}")
        return []

    def _with_call_id(self, piece: Piece) -> Piece:
        """Rename `toolUseId` of a result to `toolCallId`."""
        if piece.role != "toolResult" or "toolUseId" not in piece.message:
            return piece
        message = {name: value for name, value in piece.message.items() if name != "toolUseId"}
        return piece._replace(message={"toolCallId": piece.message["toolUseId"], **message})

    def _block(self, block: Any) -> Message | None:
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        kind = block.get("type") if isinstance(block, dict) else None
        kind = "toolCall" if kind in _CALLS else kind
        if kind not in _BLOCKS[self._piece.role]:
            self._note("dropped", f"a block of type {kind}, which {self._piece.role} messages cannot contain")
            return None
        return {
            "text": self._text,
            "image": self._image,
            "thinking": self._thought,
            "redactedThinking": self._sealed,
            "toolCall": self._call,
        }.get(kind, self._as_it_is)(block)

    def _as_it_is(self, block: Message) -> Message:
        """Return a block that the conversion to the API takes, turns into text or leaves out with a note of its own."""
        return block

    def _text(self, block: Message) -> Message | None:
        text = block.get("text")
        if not isinstance(text, str):
            self._note("dropped", "a text block without a text")
            return None
        if not text:
            return None
        if self._policy.sanitize == "full" and not text.strip():
            self._note("dropped", "a blank text")
            return None
        return self._without_signatures(block)

    def _image(self, block: Message) -> Message:
        if not block.get("data") and (block.get("url") or block.get("fileId")):
            return block  # the provider fetches it
        name = self._piece.message.get("toolName")
        label = name if isinstance(name, str) and name else self._piece.role
        dialect = self._care.dialect
        if dialect is not None and not self._care.receiver.images:
            words = dialect.no_tool_image if self._piece.role == "toolResult" else dialect.no_image
            if words is not None:
                self._note("changed", "an image was replaced by a text: the model accepts no images")
                return {"type": "text", "text": words}
        fitted = fit(block, label, self._care.limits, self._care.resize)
        if fitted.note is not None:
            self._note("changed" if fitted.block.get("type") == "image" else "dropped", fitted.note)
        return fitted.block

    def _thought(self, block: Message) -> Message | None:
        signature = next((value for name in _THOUGHT_SIGNATURES if (value := block.get(name))), None)
        if self._care.dialect is not None:
            return self._thought_of_agent(block, signature, self._care.dialect)
        if self._signatures == "openai" and isinstance(block.get("encrypted"), str) and block["encrypted"]:
            return block
        if not _takes(self._signatures, signature) or not isinstance(block.get("thinking", ""), str):
            self._note("dropped", "a thought without a signature that this API accepts")
            return None
        if block.get("redacted"):
            return self._sealed({"type": "redactedThinking", "data": signature})
        if block.get("thinkingSignature") == signature and not any(name in block for name in _THOUGHT_SIGNATURES[1:]):
            return block
        rest = {name: value for name, value in block.items() if name not in _THOUGHT_SIGNATURES}
        return rest | {"thinkingSignature": signature}

    def _thought_of_agent(self, block: Message, signature: Any, dialect: Dialect) -> Message | None:
        """Return a thought as an agent sends it: back to its own model, otherwise as a text."""
        text = block.get("thinking")
        if self._own and (signature or block.get("encrypted")):
            if block.get("redacted"):
                return self._sealed({"type": "redactedThinking", "data": signature})
            return block
        if dialect.shared_thoughts and self._policy.signatures == "claude" and isinstance(text, str):
            if _signatures_of(self._piece.message) == "claude" and signature:
                return block
            if self._care.receiver.thinks:
                self._note("changed", "a thought of another model lost its signature")
                return {"type": "thinking", "thinking": text, "thinkingSignature": "", "extra": {"anthropic": {}}}
        if dialect.thoughts == "reasoning" and self._policy.signatures == "claude":
            if signature and _signatures_of(self._piece.message) == "claude":
                return block
            text = None
        if dialect.thoughts == "dropped" or not isinstance(text, str) or not text.strip():
            self._note("dropped", "a thought of another model")
            return None
        if dialect.thoughts == "reasoning":
            shown = {"type": "thinking", "thinking": text, "thinkingSignature": "reasoning_content"}
            return {**shown, "extra": {"openai": {}}}
        self._note("changed", "a thought of another model became a text")
        return {"type": "text", "text": f"<thinking>\n{text}\n</thinking>" if dialect.thoughts == "tagged" else text}

    def _sealed(self, block: Message) -> Message | None:
        if self._signatures == "claude" and isinstance(block.get("data"), str) and block["data"]:
            return block
        self._note("dropped", "a sealed thought that this API does not accept")
        return None

    def _call(self, block: Message) -> Message | None:
        name, arguments = (
            block.get("name"),
            next((block[key] for key in _ARGUMENTS if block.get(key) is not None), None),
        )
        tools = self._care.tools
        if not isinstance(name, str) or not name or name != name.strip():
            self._note("dropped", f"a tool call with an invalid name: {name!r}")
            return None
        if tools is not None and name not in tools:
            self._note("dropped", f"a call of an unknown tool: {name}")
            return None
        if arguments is None:
            self._note("dropped", f"an unfinished call of {name} without arguments")
            return None
        allowed = _NO_NAME.sub("_", name)[:_LONGEST_NAME]
        if allowed != name:
            self._note("changed", f"the tool {name} was renamed to {allowed}, a name that providers accept")
        given = self._arguments(name, arguments)
        if block.get("type") == "toolCall" and block.get("arguments") is given and allowed == name:
            return self._without_signatures(block)
        rest = {key: value for key, value in block.items() if key not in _ARGUMENTS}
        return self._without_signatures(rest | {"type": "toolCall", "name": allowed, "arguments": given})

    def _arguments(self, name: str, arguments: Any) -> Message:
        """Return the arguments as an object, because providers refuse anything else."""
        if isinstance(arguments, dict):
            return arguments
        if isinstance(arguments, str):
            try:
                decoded = decode(arguments.encode("utf-8", "surrogatepass"))
            except ValueError:
                decoded = None
            if isinstance(decoded, dict):
                return decoded
        self._note("changed", f"the arguments of {name} were not an object and were put into one")
        return {"arguments": arguments}

    def _without_signatures(self, block: Message) -> Message:
        """Return the block without signatures that this API would refuse."""
        gone = [name for name in _SIGNATURES if name in block and not self._takes_on_block(name, block[name])]
        if not gone:
            return block
        self._note("changed", "a signature that this API does not accept was removed")
        return {name: value for name, value in block.items() if name not in gone}

    def _takes_on_block(self, name: str, signature: Any) -> bool:
        if self._signatures == "openai":  # there it is the id of the message, not a signature
            return name == "textSignature" and isinstance(signature, str)
        return self._signatures == "gemini" and _takes("gemini", signature)

    def _marked(self, blocks: list[Message]) -> list[Message]:
        """Mark a message from another session, visibly for the model."""
        provenance = self._piece.message.get("provenance")
        if not isinstance(provenance, dict) or provenance.get("kind") != "inter_session":
            return blocks
        if blocks and str(blocks[0].get("text", "")).startswith(INTER_SESSION):
            return blocks
        sender = provenance.get("sourceSessionKey")
        mark = f"{INTER_SESSION} from {sender}" if isinstance(sender, str) and sender else INTER_SESSION
        self._note("made", "a mark for a message from another session")
        return [{"type": "text", "text": mark}, *blocks]


def _is_own(message: Message, policy: Policy) -> bool:
    """Return whether the signatures of a message may come from this API; if the origin is unknown, their form decides."""
    provider, api, model = (_string(message.get(name)) for name in ("provider", "api", "model"))
    origin = policy_for(provider, api, model)
    return origin is DEFAULT or origin.signatures == policy.signatures


def _signatures_of(message: Message) -> Signatures:
    return policy_for(*(_string(message.get(name)) for name in ("provider", "api", "model"))).signatures


def _is_from(message: Message, receiver: Receiver) -> bool:
    """Return whether a message was written by this very model."""
    return all(
        known is None or message.get(name) == known
        for name, known in (("provider", receiver.provider), ("api", receiver.api), ("model", receiver.model))
    )


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _takes(signatures: Signatures, signature: Any) -> bool:
    if not isinstance(signature, str) or not signature or signatures == "none":
        return False
    if signatures == "openai":
        return "rs_" in signature or '"type":"reasoning"' in signature  # a reasoning item, stored whole
    return _BASE64.fullmatch(signature) is not None


# -- pairing

STOPPED = ("error", "aborted")

_Call = tuple[int, int]  # the position of the message, and the number of the call in it


def pair(pieces: Sequence[Piece], synthetic: str, notes: Notes) -> list[Piece]:
    """Pair calls and results; ids must be texts already."""
    answers = _answers(pieces, notes)
    owned = set(answers.values())
    survivors = [at for at, piece in enumerate(pieces) if piece.role != "toolResult" or at in owned]
    rank = {at: number for number, at in enumerate(survivors)}
    result: list[Piece] = []
    for at, piece in enumerate(pieces):
        if piece.role == "toolResult":
            continue
        if not piece.calls:
            result.append(piece)
            continue
        answered = [answers.get((at, number)) for number in range(len(piece.calls))]
        if piece.message.get("stopReason") in STOPPED:
            piece = _without_unanswered(piece, answered, notes)
            answered = [where for where in answered if where is not None]
        result.append(piece)
        behind = rank[at] + 1  # the position of a result that need not move
        for call, where in zip(piece.calls, answered, strict=True):
            if where is None:
                notes.add(piece, "made", f"the call {call['id']} of {_tool_name(call)} has no result; one was added")
                result.append(Piece(None, _missing(piece, call, synthetic)))
                continue
            found = pieces[where]
            if rank[where] == behind:
                behind += 1
            else:
                notes.add(found, "moved", f"the result of {_tool_name(call)} was moved directly after its call")
            result.append(
                found if found.message.get("toolName") == _tool_name(call) else found.having(toolName=_tool_name(call))
            )
    return result


def _answers(pieces: Sequence[Piece], notes: Notes) -> dict[_Call, int]:
    """Return which result belongs to which call; note results that belong to none."""
    answers: dict[_Call, int] = {}
    unanswered: dict[str, list[_Call]] = {}
    called: set[str] = set()
    last = -1  # the position of the last message with calls
    for at, piece in enumerate(pieces):
        for number, call in enumerate(piece.calls):
            unanswered.setdefault(call["id"], []).append((at, number))
            called.add(call["id"])
            last = at
        if piece.role != "toolResult":
            continue
        call_id = piece.message.get("toolCallId")
        open_calls = unanswered.get(call_id, []) if isinstance(call_id, str) else []
        near = [call for call in open_calls if call[0] == last]
        if near or len(open_calls) == 1:
            owner = (near or open_calls)[0]
            open_calls.remove(owner)
            answers[owner] = at
        elif open_calls:
            notes.add(piece, "dropped", f"a late result for {call_id}, which several calls could own")
        elif call_id in called:
            notes.add(piece, "dropped", f"a second result for {call_id}; the first one is used")
        else:
            notes.add(piece, "dropped", f"a result for {call_id}, which has no call before it")
    return answers


def _without_unanswered(piece: Piece, answered: Sequence[int | None], notes: Notes) -> Piece:
    """Return the message of a stopped turn without the calls that were never made."""
    if None not in answered:
        return piece
    following = iter(answered)
    kept = []
    for block in piece.blocks:
        if block.get("type") == "toolCall" and next(following) is None:
            notes.add(piece, "dropped", f"the call {block['id']} of {_tool_name(block)} was stopped before it was made")
        else:
            kept.append(block)
    return piece.having(content=kept)


def _missing(piece: Piece, call: Message, text: str) -> Message:
    return {
        "role": "toolResult",
        "toolCallId": call["id"],
        "toolName": _tool_name(call),
        "content": [{"type": "text", "text": text.replace("{tool}", _tool_name(call))}],
        "isError": True,
        "synthetic": True,
        "timestamp": piece.message.get("timestamp"),
    }


def _tool_name(call: Message) -> str:
    name = call.get("name")
    return name if isinstance(name, str) and name else "unknown"


# -- ids of tool calls

LONGEST = 40
_OTHER = re.compile(r"[^A-Za-z0-9]+")
_SAFE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PAIRED = re.compile(r"[A-Za-z0-9_-]{1,64}")

Make = Callable[[str | None, Container[str]], str]


def strict_id(original: str | None, taken: Container[str]) -> str:
    """Return the strict form of an id, different from the taken ones."""
    base = "defaulttoolid" if original is None else _OTHER.sub("", original)[:LONGEST] or "sanitizedtoolid"
    if base not in taken:
        return base
    hashed = _hash(original or "", 8)
    candidate = base[: LONGEST - len(hashed)] + hashed
    numbered = (candidate[: LONGEST - len(f"x{number}")] + f"x{number}" for number in count(2))
    return candidate if candidate not in taken else next(name for name in numbered if name not in taken)


def strict9_id(original: str | None, taken: Container[str]) -> str:
    """Return the nine-character form of an id, different from the taken ones."""
    if original is None:
        base = "defaultid"
    else:
        kept = _OTHER.sub("", original)
        base = kept[:9] if len(kept) >= 9 else _hash(kept or "sanitized", 9)
    if base not in taken:
        return base
    hashed = (_hash(f"{original or ''}:{number}", 9) for number in count())
    return next(name for name in hashed if name not in taken)


def plain_id(original: str | None, taken: Container[str]) -> str:
    """Return the id unchanged, or a strict one if it is missing or taken."""
    return original if original is not None and original not in taken else strict_id(original, taken)


def safe_id(original: str | None, taken: Container[str]) -> str:
    """Return the id unchanged if every provider with ids of any length accepts it, or a strict one."""
    fine = original is not None and _SAFE.fullmatch(original) is not None
    return plain_id(original, taken) if fine else strict_id(original, taken)


def paired_id(original: str | None, taken: Container[str]) -> str:
    """Return a safe id; two of them in one, as the pi family stores them, stay."""
    first, mark, second = (original or "").partition("|")
    both = mark and _SAFE.fullmatch(first) and _PAIRED.fullmatch(second)
    return plain_id(original, taken) if both else safe_id(original, taken)


MAKERS: dict[ToolIds, Make] = {
    "none": plain_id,
    "strict": strict_id,
    "strict9": strict9_id,
    "safe": safe_id,
    "paired": paired_id,
}


def rewrite(pieces: Iterable[Piece], form: ToolIds) -> list[Piece]:
    """Convert all ids of calls and results; equal ids stay equal."""
    make = MAKERS[form]
    made: dict[str | None, str] = {}
    taken: set[str] = set()

    def renamed(value: Any) -> str:
        original = _original(value)
        if original not in made:
            made[original] = make(original, taken)
            taken.add(made[original])
        return made[original]

    return [_with_ids(piece, [renamed(value) for value in _ids(piece)]) for piece in pieces]


def separate(pieces: Sequence[Piece], form: ToolIds) -> list[Piece]:
    """Give every call of paired pieces a unique id, and its result the same one."""
    make = MAKERS[form]
    taken: set[str] = set()
    result: list[Piece] = []
    owed: list[str] = []  # ids of the results that follow
    for piece in pieces:
        if piece.role == "toolResult":
            result.append(_with_ids(piece, [owed.pop(0)]))
            continue
        ids = []
        for value in _ids(piece):
            ids.append(value if value not in taken else make(value, taken))
            taken.add(ids[-1])
        owed = ids.copy()
        result.append(_with_ids(piece, ids))
    return result


def _ids(piece: Piece) -> list[Any]:
    if piece.role == "toolResult":
        return [piece.message.get("toolCallId")]
    return [call.get("id") for call in piece.calls]


def _with_ids(piece: Piece, ids: Sequence[str]) -> Piece:
    if list(ids) == _ids(piece):
        return piece
    if piece.role == "toolResult":
        return piece.having(toolCallId=ids[0])
    following = iter(ids)
    return piece.having(
        content=[
            {**block, "id": next(following)} if block.get("type") == "toolCall" else block for block in piece.blocks
        ]
    )


def _original(value: Any) -> str | None:
    """Return an id as text; some agents use numbers, any other value counts as missing."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return without_surrogates(value) if isinstance(value, str) and value.strip() else None


def _hash(text: str, digits: int) -> str:
    return sha1(text.encode()).hexdigest()[:digits]


# -- turns

BOOTSTRAP = "(session bootstrap)"

_LATER = ("usage", "stopReason", "errorMessage")
_ORIGIN = ("provider", "api", "model")  # the origin of the signatures; a merged message may have none
_SYSTEM = ("system", "developer")


def bootstrap(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """Add a short user message if the conversation starts with the model."""
    start = _after_system(pieces)
    if start == len(pieces) or pieces[start].role != "assistant":
        return list(pieces)
    notes.add(pieces[start], "made", f"the conversation started with the model; {BOOTSTRAP} was added before it")
    first = {"role": "user", "content": BOOTSTRAP, "synthetic": True}
    return [*pieces[:start], Piece(None, first), *pieces[start:]]


def merge_assistants(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """Merge consecutive answers."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.role == result[-1].role == "assistant":
            notes.add(piece, "merged", f"merged with the answer before it, message {result[-1].place}")
            result[-1] = _merged_answer(result[-1], piece)
        else:
            result.append(piece)
    return result


def join_responses(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """Join the parts of one response, because some agents store each block of it as a separate message.

    Results of calls may be between two parts. A part after anything else stays separate.
    """
    result: list[Piece] = []
    current: int | None = None  # the position of the response that may continue
    for piece in pieces:
        response = piece.message.get("responseId") if piece.role == "assistant" else None
        if response and current is not None and result[current].message.get("responseId") == response:
            notes.add(piece, "merged", f"joined with the start of its response, message {result[current].place}")
            result[current] = _merged_answer(result[current], piece)
            continue
        if piece.role != "toolResult":
            current = len(result) if response else None
        result.append(piece)
    return result


def merge_users(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """Merge consecutive user messages."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.role == result[-1].role == "user":
            before = result[-1]
            notes.add(piece, "merged", f"merged with the user message before it, message {before.place}")
            merged = before.having(content=[*before.blocks, *piece.blocks])
            if not piece.message.get("synthetic"):
                merged.message.pop("synthetic", None)
            result[-1] = _joined(merged, piece)
        else:
            result.append(piece)
    return result


def images_after_results(
    pieces: Sequence[Piece], notes: Notes, *, of_failures: bool = False, words: str = ATTACHED, note: str = ""
) -> list[Piece]:
    """Move images of results, or only of failed ones, to a user message after the last result of the turn."""
    result: list[Piece] = []
    images: list[Message] = []
    source: int | None = None
    for piece in pieces:
        if piece.role != "toolResult" and images:
            result.append(_attached(source, images, words))
            images = []
        concerned = piece.role == "toolResult" and (not of_failures or bool(piece.message.get("isError")))
        found = [block for block in piece.blocks if block.get("type") == "image"] if concerned else []
        if found:
            notes.add(piece, "moved", f"images of a tool result ({len(found)}) were moved after the results")
            rest = [block for block in piece.blocks if block.get("type") != "image"]
            if note:
                rest = [*rest, {"type": "text", "text": note}]
            piece = piece.having(content=rest or [{"type": "text", "text": SEE_BELOW}])
            images += found
            source = piece.place
        result.append(piece)
    return [*result, _attached(source, images, words)] if images else result


def last_turns(pieces: Sequence[Piece], limit: int | None, notes: Notes) -> list[Piece]:
    """Return the pieces from the last `limit` user messages on; all of them without a limit."""
    start = _after_system(pieces)
    questions = [
        at
        for at, piece in enumerate(pieces)
        if at >= start and piece.role == "user" and not piece.message.get("synthetic")
    ]
    if limit is None or limit <= 0 or len(questions) <= limit:
        return list(pieces)
    cut = questions[-limit]
    for piece in pieces[start:cut]:
        notes.add(piece, "dropped", f"before the last {limit} user messages")
    return [*pieces[:start], *pieces[cut:]]


def _after_system(pieces: Sequence[Piece]) -> int:
    return next((at for at, piece in enumerate(pieces) if piece.role not in _SYSTEM), len(pieces))


def _merged_answer(first: Piece, later: Piece) -> Piece:
    mixed = any(first.message.get(name) != later.message.get(name) for name in _ORIGIN)
    gone = (*_LATER, *_ORIGIN) if mixed else _LATER
    message = {name: value for name, value in first.message.items() if name not in gone}
    message |= {name: later.message[name] for name in _LATER if name in later.message}
    return _joined(first._replace(message=message | {"content": [*first.blocks, *later.blocks]}), later)


def _joined(merged: Piece, later: Piece) -> Piece:
    """Return the merged piece with the position of its later part."""
    return merged if later.place is None else merged._replace(merged=(*merged.merged, later.place))


def _attached(source: int | None, images: Sequence[Message], words: str) -> Piece:
    text = [{"type": "text", "text": words}] if words else []
    return Piece(source, {"role": "user", "content": [*text, *images], "synthetic": True})
