"""The content of one message as a provider takes it: blocks of known types, calls that can be made, nothing empty.

Rules, block by block: texts are texts and not empty (where the policy is `full`, not blank); images go through
`core/images.py`; a tool call has a name without blanks around it that is one of the known tools, and arguments; a
thought stays only with a signature that this API takes back. What cannot stay is noted. A message of the user, or a
result, that has nothing left keeps its place with a short text; `settle`, after pairing, drops answers that have
nothing left to say.

The names under which other agents store calls, arguments and signatures are brought to ours here, so that no later step
knows them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sessile.core.codec import decode
from sessile.core.hygiene_notes import Did, Message, Notes, Piece
from sessile.core.hygiene_policy import DEFAULT, Policy, Signatures, policy_for
from sessile.core.images import Limits, Resize, fit

EMPTY = {"user": "[omitted: this message was empty]", "toolResult": "[omitted: this result was empty]"}
INTER_SESSION = "[Inter-session message]"
SILENT = "NO_REPLY"  # an answer that was never delivered

_BLOCKS = {
    "user": ("text", "image"),
    "system": ("text",),
    "developer": ("text",),
    "assistant": ("text", "thinking", "redactedThinking", "toolCall"),
    "toolResult": ("text", "image"),
}
_CALLS = ("toolCall", "toolUse", "functionCall")
_ARGUMENTS = ("arguments", "input", "args")
_THOUGHT_SIGNATURES = ("thinkingSignature", "signature", "thought_signature", "thoughtSignature")
_SIGNATURES = ("textSignature", "thought_signature", "thoughtSignature")
_THOUGHTS = ("thinking", "redactedThinking")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


class Care(NamedTuple):
    """What the rules for contents need besides the policy."""

    tools: Collection[str] | None = None  # the tools that exist; None if nobody knows
    limits: Limits = Limits()
    resize: Resize | None = None


def tidy(pieces: Iterable[Piece], policy: Policy, care: Care, notes: Notes) -> list[Piece]:
    """The pieces with their contents put in order; messages that no provider knows are dropped."""
    result = []
    for piece in pieces:
        if piece.role in _BLOCKS:
            result += _Tidying(piece, policy, care, notes).pieces()
        else:
            notes.add(piece, "dropped", f"no provider knows the role {piece.role}")
    return result


def settle(pieces: Iterable[Piece], notes: Notes) -> list[Piece]:
    """The pieces without thoughts that nothing follows, and without answers that are empty or silent."""
    result = []
    for piece in pieces:
        if piece.role == "assistant":
            blocks = piece.blocks
            said = max((at + 1 for at, block in enumerate(blocks) if block.get("type") not in _THOUGHTS), default=0)
            if said < len(blocks):
                notes.add(piece, "dropped", "a thought that nothing follows is refused")
                piece = piece.having(content=blocks[:said])
            if not said:
                notes.add(piece, "dropped", "an answer that says nothing")
                continue
            if _is_silent(blocks[:said]):
                notes.add(piece, "dropped", f"an answer that was never delivered ({SILENT})")
                continue
        result.append(piece)
    return result


def _is_silent(blocks: list[Message]) -> bool:
    said = [block for block in blocks if block.get("type") not in _THOUGHTS]
    return len(said) == 1 and str(said[0].get("text", "")).strip() == SILENT


class _Tidying:
    """One message while its blocks are looked at."""

    def __init__(self, piece: Piece, policy: Policy, care: Care, notes: Notes) -> None:
        self._piece = piece
        self._policy = policy
        self._care = care
        self._notes = notes
        self._signatures: Signatures = policy.signatures if _is_own(piece.message, policy) else "none"

    def pieces(self) -> list[Piece]:
        """The message as it can be sent; none if a system message says nothing."""
        piece, role = self._piece, self._piece.role
        given = self._given()
        blocks = [tidied for block in given if (tidied := self._block(block)) is not None]
        if role == "user":
            blocks = self._marked(blocks)
        if not blocks and role in EMPTY:
            self._say("made", "nothing was left of it; a text says so")
            blocks = [{"type": "text", "text": EMPTY[role]}]
        if not blocks and role in ("system", "developer"):
            self._say("dropped", "a system message that says nothing")
            return []
        if blocks == piece.blocks and (isinstance(piece.message.get("content"), list) or role != "assistant"):
            return [self._with_call_id(piece)]
        return [self._with_call_id(piece.having(content=blocks))]

    def _say(self, did: Did, text: str) -> None:
        self._notes.add(self._piece, did, text)

    def _given(self) -> list[Any]:
        content = self._piece.message.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if isinstance(content, list):
            return content
        if content is not None:
            self._say("dropped", f"a content that is neither text nor blocks: {type(content).__name__}")
        return []

    def _with_call_id(self, piece: Piece) -> Piece:
        """A result under the name that we use for the id of its call."""
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
            self._say("dropped", f"a block of type {kind}, which {self._piece.role} messages cannot hold")
            return None
        return {
            "text": self._text,
            "image": self._image,
            "thinking": self._thought,
            "redactedThinking": self._sealed,
            "toolCall": self._call,
        }[kind](block)

    def _text(self, block: Message) -> Message | None:
        text = block.get("text")
        if not isinstance(text, str):
            self._say("dropped", "a text block without a text")
            return None
        if not text:
            return None
        if self._policy.sanitize == "full" and not text.strip():
            self._say("dropped", "a text of nothing but blanks")
            return None
        return self._without_signatures(block)

    def _image(self, block: Message) -> Message:
        name = self._piece.message.get("toolName")
        label = name if isinstance(name, str) and name else self._piece.role
        fitted = fit(block, label, self._care.limits, self._care.resize)
        if fitted.note is not None:
            self._say("changed" if fitted.block.get("type") == "image" else "dropped", fitted.note)
        return fitted.block

    def _thought(self, block: Message) -> Message | None:
        signature = next((value for name in _THOUGHT_SIGNATURES if (value := block.get(name))), None)
        if not _takes(self._signatures, signature) or not isinstance(block.get("thinking", ""), str):
            self._say("dropped", "a thought without a signature that this API takes back")
            return None
        if block.get("redacted"):
            return self._sealed({"type": "redactedThinking", "data": signature})
        if block.get("thinkingSignature") == signature and not any(name in block for name in _THOUGHT_SIGNATURES[1:]):
            return block
        rest = {name: value for name, value in block.items() if name not in _THOUGHT_SIGNATURES}
        return rest | {"thinkingSignature": signature}

    def _sealed(self, block: Message) -> Message | None:
        if self._signatures == "claude" and isinstance(block.get("data"), str) and block["data"]:
            return block
        self._say("dropped", "a sealed thought that this API does not take back")
        return None

    def _call(self, block: Message) -> Message | None:
        name, arguments = (
            block.get("name"),
            next((block[key] for key in _ARGUMENTS if block.get(key) is not None), None),
        )
        tools = self._care.tools
        if not isinstance(name, str) or not name or name != name.strip():
            self._say("dropped", f"a tool call whose name is blank or padded: {name!r}")
            return None
        if tools is not None and name not in tools:
            self._say("dropped", f"a call of {name}, which is no tool here")
            return None
        if arguments is None:
            self._say("dropped", f"a call of {name} without arguments: it was not finished")
            return None
        allowed = _NO_NAME.sub("_", name)[:_LONGEST_NAME]
        if allowed != name:
            self._say("changed", f"the tool {name} is called {allowed}, as providers spell names")
        given = self._arguments(name, arguments)
        if block.get("type") == "toolCall" and block.get("arguments") is given and allowed == name:
            return self._without_signatures(block)
        rest = {key: value for key, value in block.items() if key not in _ARGUMENTS}
        return self._without_signatures(rest | {"type": "toolCall", "name": allowed, "arguments": given})

    def _arguments(self, name: str, arguments: Any) -> Message:
        """The arguments as an object: providers refuse everything else."""
        if isinstance(arguments, dict):
            return arguments
        if isinstance(arguments, str):
            try:
                decoded = decode(arguments.encode("utf-8", "surrogatepass"))
            except ValueError:
                decoded = None
            if isinstance(decoded, dict):
                return decoded
        self._say("changed", f"the arguments of {name} were no object; they were put into one")
        return {"arguments": arguments}

    def _without_signatures(self, block: Message) -> Message:
        """The block without signatures that this API would refuse."""
        gone = [name for name in _SIGNATURES if name in block and not self._takes_on_block(name, block[name])]
        if not gone:
            return block
        self._say("changed", "a signature that this API does not take back was taken off")
        return {name: value for name, value in block.items() if name not in gone}

    def _takes_on_block(self, name: str, signature: Any) -> bool:
        if self._signatures == "openai":  # there it is the id of the message, not a seal
            return name == "textSignature" and isinstance(signature, str)
        return self._signatures == "gemini" and _takes("gemini", signature)

    def _marked(self, blocks: list[Message]) -> list[Message]:
        """A message that another session sent, with a mark that the model sees."""
        provenance = self._piece.message.get("provenance")
        if not isinstance(provenance, dict) or provenance.get("kind") != "inter_session":
            return blocks
        if blocks and str(blocks[0].get("text", "")).startswith(INTER_SESSION):
            return blocks
        sender = provenance.get("sourceSessionKey")
        told = f"{INTER_SESSION} from {sender}" if isinstance(sender, str) and sender else INTER_SESSION
        self._say("made", "a mark that another session sent it")
        return [{"type": "text", "text": told}, *blocks]


def _is_own(message: Message, policy: Policy) -> bool:
    """Whether the signatures of a message may be of the kind that this API made; where nobody says, their form decides."""
    provider, api, model = (_name(message.get(name)) for name in ("provider", "api", "model"))
    origin = policy_for(provider, api, model)
    return origin is DEFAULT or origin.signatures == policy.signatures


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _takes(signatures: Signatures, signature: Any) -> bool:
    if not isinstance(signature, str) or not signature or signatures == "none":
        return False
    if signatures == "openai":
        return "rs_" in signature  # a reasoning item, stored whole
    return _BASE64.fullmatch(signature) is not None
