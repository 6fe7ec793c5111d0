"""What each provider accepts: a table of message policies, and images that are small enough.

A policy is chosen by provider, API and model:

    sanitize    `full` removes blank texts; `images` only empty ones. Both check images.
    tool_ids    `none`, `strict` (letters and digits, at most 40), `strict9` (exactly nine of them) or `safe` (as `strict`,
                with `_` and `-`, which every API but Mistral's accepts); `paired` is `safe` and also allows the two ids that
                the pi family stores for a call of OpenAI's Responses API, with `|` between them
    synthetic   the text of the result that is added for a call without one
    signatures  whose signatures and sealed thinking the API accepts: `claude`, `gemini`, `openai` or `none`
    results     whether a successful tool result may contain images; otherwise they follow in a user message
    bootstrap   the conversation may not start with the model
    merge_…     consecutive turns of one side are merged

Real agents send more than the smallest change that a provider accepts. `Dialect` has the same columns for an agent, and others
that no provider asks for.

Pairing of calls and results is not a column, because every known API refuses a request without it: Anthropic ("`tool_use` ids
were found without `tool_result` blocks"), OpenAI chat ("must be followed by tool messages responding to each
`tool_call_id`"), OpenAI Responses ("No tool output found for function call"), Google ("the number of function response parts
is equal to the number of function call parts"), Mistral ("Not the same number of function calls and responses"), Bedrock (as
Anthropic), and servers that imitate OpenAI's chat. A missing result is added for all of them, because removing the call would
lose what the model said.

The default policy is one that no provider refuses: ids of letters and digits, no signatures, no images in results, texts and
turns unchanged.

Images: the type is read from the first characters of the data, whatever the block says. An image within the limits is sent
unchanged. A larger one is converted to JPEG, first with fewer pixels, then with less quality, until it fits; it is never
enlarged. If it cannot fit, a text replaces it. Resizing is an argument; without it an image with many pixels is sent
unchanged as long as a provider accepts it, which costs more but loses nothing. Width and height are read from the header of a
PNG, JPEG, GIF or WebP; nothing here decodes pixels.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Sanitize = Literal["full", "images"]
ToolIds = Literal["none", "strict", "strict9", "safe", "paired"]
Signatures = Literal["claude", "gemini", "openai", "none"]
Thoughts = Literal["dropped", "text", "tagged", "reasoning"]

MISSING = "[The result of this tool call is missing: it was interrupted or never recorded.]"
ABORTED = "aborted"  # sent by OpenAI's own agent for a call that was stopped


class Policy(NamedTuple):
    """A row of the table: what the messages of a request must look like."""

    name: str
    sanitize: Sanitize = "images"
    tool_ids: ToolIds = "strict"
    synthetic: str = MISSING
    signatures: Signatures = "none"
    results: bool = False
    bootstrap: bool = False
    merge_assistants: bool = False
    merge_users: bool = False


class Words(NamedTuple):
    """What stands around a summary."""

    before: str
    after: str


class Dialect(NamedTuple):
    """How one agent writes its requests, where that differs from what the provider requires.

    Attributes:
        name: The agent.
        gaps: What the agent sends but does not store, such as its system prompt.
        tool_ids: The form of the ids of calls, as in `Policy`.
        missing: The text of the result that is added for a call without one; `{tool}` stands for the name of its tool.
        bootstrap: Whether a user message is added before a conversation that starts with the model.
        merge_users: Whether consecutive user messages are merged; `None` where the provider requires it.
        merge_assistants: Whether consecutive answers are merged.
        silent: Whether answers that were not delivered (NO_REPLY) are sent.
        thoughts: What becomes of thoughts of other models: dropped, a text, a text in `<thinking>`, or reasoning in OpenAI's
            chat; Claude's models get each other's back.
        shared_thoughts: Whether Anthropic's models get each other's thoughts back, and those of others without a signature.
        attached: The text before images of tool results, where the API does not accept them in results; empty for none.
        image_note: What is added to a result whose images follow it.
        no_image: The text instead of a user's image, for a model that accepts none.
        no_tool_image: The same for an image of a tool result.
        joined_results: Whether the texts of a result are sent as one.
        result_joint: What is between them in OpenAI's chat; elsewhere it is a line break.
        user_joint: What is between the texts of a user that OpenAI's chat gets as one; `None` if they stay separate.
        joined_users: Whether the texts of a user are sent as one, for a model that accepts no images.
        joint: What is between the texts of an answer that OpenAI's chat gets as one.
        prefix: What the names of tools start with in requests to Anthropic, but for the tools of Anthropic itself.
        compaction: The words around the summary of a compaction; `None` for those of pi.
        branch: The words around the summary of a branch; `None` for those of pi.
        stopped: Whether answers that failed or were stopped are sent, as far as they have content.
        brief_thoughts: The APIs that get back only the thoughts of the current turn.
        failures: Whether a result says that its call failed.
        empty: Whether answers without content are sent, unless they failed.
        replay: Makes the request from an API, messages and the entries that they come from, for an agent that sends again what
            it has stored; it returns `None` for messages of others.
        prepare: What the agent does to the messages of a context before anything else; `None` for one that is not sent.
    """

    name: str
    gaps: tuple[str, ...] = ()
    tool_ids: ToolIds = "none"
    missing: str = MISSING
    bootstrap: bool = False
    merge_users: bool | None = False
    merge_assistants: bool = False
    silent: bool = True
    thoughts: Thoughts = "dropped"
    shared_thoughts: bool = False
    attached: str | None = None
    image_note: str = ""
    no_image: str | None = None
    no_tool_image: str | None = None
    joined_results: bool = False
    result_joint: str = "\n"
    user_joint: str | None = None
    joined_users: bool = False
    joint: str = ""
    prefix: str = ""
    compaction: Words | None = None
    branch: Words | None = None
    stopped: bool = True
    brief_thoughts: tuple[str, ...] = ()
    failures: bool = True
    empty: bool = False
    replay: Callable[[str, Sequence[Any], Sequence[str | None]], Any] | None = None
    prepare: Callable[[Sequence[dict[str, Any]]], Sequence[dict[str, Any] | None]] | None = None

    def over(self, policy: Policy) -> Policy:
        """Return the policy of a provider as this agent follows it."""
        return policy._replace(
            tool_ids=policy.tool_ids if policy.tool_ids == "strict9" else self.tool_ids,
            synthetic=self.missing,
            bootstrap=self.bootstrap,
            merge_users=policy.merge_users if self.merge_users is None else self.merge_users,
            merge_assistants=self.merge_assistants,
        )


class Match(NamedTuple):
    """When a row applies: all given conditions must hold; `words` are searched in the name of the model."""

    providers: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()


DEFAULT = Policy("default")

_GOOGLE_APIS = frozenset({"google-generative-ai", "google-gemini-cli", "google-antigravity", "google-vertex"})
_GOOGLE = frozenset({"google", "gemini", "google-gemini-cli", "google-antigravity", "google-vertex"})
_ROUTERS = frozenset({"openrouter", "opencode", "kilocode"})
_RESPONSES_APIS = frozenset({"openai-responses", "openai-codex-responses", "azure-openai-responses"})
_MISTRAL = ("mistral", "mixtral", "codestral", "pixtral", "devstral", "ministral")

# The first matching row is used.
TABLE: tuple[tuple[Policy, tuple[Match, ...]], ...] = (
    (
        # Google's API with Claude's signatures.
        Policy("antigravity-claude", "full", signatures="claude", bootstrap=True, merge_assistants=True),
        (Match(apis=_GOOGLE_APIS, words=("claude",)), Match(providers=_GOOGLE, words=("claude",))),
    ),
    (
        Policy("google", "full", signatures="gemini", bootstrap=True, merge_assistants=True),
        (Match(apis=_GOOGLE_APIS), Match(providers=_GOOGLE)),
    ),
    (
        # Bedrock accepts Anthropic's messages in another envelope and is stricter about ids.
        Policy("bedrock", "full", signatures="claude", results=True, bootstrap=True, merge_users=True),
        (Match(providers=frozenset({"amazon-bedrock", "bedrock"})), Match(apis=frozenset({"bedrock-converse-stream"}))),
    ),
    (
        # Ids may contain only letters, digits, `_` and `-`, which the strict form guarantees.
        Policy("anthropic", "full", signatures="claude", results=True, bootstrap=True, merge_users=True),
        (Match(apis=frozenset({"anthropic-messages"})), Match(providers=frozenset({"anthropic"}))),
    ),
    (
        Policy("mistral", "full", "strict9"),
        (Match(providers=frozenset({"mistral", "mistralai"})), Match(words=_MISTRAL)),
    ),
    (
        Policy("router-gemini", "full", "none", signatures="gemini"),
        (Match(providers=_ROUTERS, words=("gemini",)),),
    ),
    (
        Policy("openai-responses", synthetic=ABORTED, signatures="openai", results=True),
        (Match(apis=_RESPONSES_APIS), Match(providers=frozenset({"openai-codex"}))),
    ),
    (
        # Ids over 40 characters are refused, and those of the Responses API are longer.
        Policy("openai"),
        (Match(providers=frozenset({"openai", "azure-openai"})), Match(apis=frozenset({"openai"}))),
    ),
    (
        Policy("router"),
        (Match(providers=_ROUTERS),),
    ),
    (
        # Local servers use the chat template of the model, and many templates require alternating turns.
        Policy("openai-compatible", bootstrap=True, merge_assistants=True, merge_users=True),
        (Match(apis=frozenset({"openai-completions"})),),
    ),
)


@lru_cache(maxsize=256)  # called for every message
def policy_for(provider: str | None = None, api: str | None = None, model: str | None = None) -> Policy:
    """Return the policy of a provider, API and model, as far as they are known."""
    names = (provider or "").lower(), (api or "").lower(), (model or "").lower()
    for policy, matches in TABLE:
        if any(_applies(match, *names) for match in matches):
            return policy
    return DEFAULT


def _applies(match: Match, provider: str, api: str, model: str) -> bool:
    return (
        (not match.providers or provider in match.providers)
        and (not match.apis or api in match.apis)
        and (not match.words or any(word in model for word in match.words))
    )


# -- images

Block = dict[str, Any]
Resize = Callable[
    [bytes, int, int], bytes | None
]  # (data, longest side, quality) → JPEG, or None if the image cannot be read

SIDES = (1800, 1600, 1400, 1200, 1000, 800)
QUALITIES = (85, 75, 65, 55, 45, 35)

_HEADS = {"/9j/": "image/jpeg", "iVBOR": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}


class Limits(NamedTuple):
    """The largest image to send: pixels of its longer side, and bytes."""

    side: int = 2000  # Anthropic refuses larger images in requests with many images
    size: int = 5 * 1024 * 1024 * 3 // 4  # Anthropic refuses 5 MiB of base64, which is a third longer
    hard_side: int = 8000  # Anthropic refuses any larger image; the limit if images cannot be resized


LIMITS = Limits()


class Fitted(NamedTuple):
    """A block that can be sent, and a note on what was done to the image, if anything."""

    block: Block
    note: str | None = None


def sniff(data: str) -> str | None:
    """Return the type of a base64 image from its first characters; `None` if no provider accepts it."""
    return next((mime for head, mime in _HEADS.items() if data.startswith(head)), None)


def dimensions(image: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of an image; `None` if it cannot be read."""
    found = None
    if image.startswith(b"\x89PNG\r\n\x1a\n") and image[12:16] == b"IHDR" and len(image) >= 24:
        found = int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")
    elif image[:6] in (b"GIF87a", b"GIF89a") and len(image) >= 10:
        found = int.from_bytes(image[6:8], "little"), int.from_bytes(image[8:10], "little")
    elif image.startswith(b"RIFF") and image[8:12] == b"WEBP" and len(image) >= 30:
        found = _webp(image)
    elif image.startswith(b"\xff\xd8"):
        found = _jpeg(image)
    return found if found and all(found) else None


def _webp(image: bytes) -> tuple[int, int] | None:
    kind = image[12:16]
    if kind == b"VP8X":
        return int.from_bytes(image[24:27], "little") + 1, int.from_bytes(image[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(image[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(image[26:28], "little") & 0x3FFF, int.from_bytes(image[28:30], "little") & 0x3FFF
    return None


def _jpeg(image: bytes) -> tuple[int, int] | None:
    """Return the size of the first frame, skipping segments such as thumbnails and colour profiles."""
    at = 2
    while at + 9 <= len(image) and image[at] == 0xFF:
        marker = image[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(image[at + 7 : at + 9], "big"), int.from_bytes(image[at + 5 : at + 7], "big")
        else:
            at += 2 + int.from_bytes(image[at + 2 : at + 4], "big")
    return None


def plan(width: int, height: int, size: int, limits: Limits = LIMITS) -> tuple[tuple[int, int], ...]:
    """Return the longest sides and qualities to try, in order, until the JPEG fits; none if the image already fits."""
    longest = max(width, height)
    if longest <= limits.side and size <= limits.size:
        return ()
    first = min(limits.side, longest)
    sides = [first, *(side for side in SIDES if side < first)]
    return tuple((side, quality) for side in sides for quality in QUALITIES)


def omitted(label: str, reason: str | None) -> Block:
    """Return the text that replaces an image that is not sent; without a reason it was empty."""
    detail = "omitted empty image payload" if reason is None else f"omitted image payload: {reason}"
    return {"type": "text", "text": f"[{label}] {detail}"}


def fit(block: Block, label: str, limits: Limits = LIMITS, resize: Resize | None = None) -> Fitted:
    """Return an image block that can be sent, or a text that replaces it."""
    data = block.get("data")
    if not isinstance(data, str) or not data:
        return _omit(label, None)
    mime = sniff(data)
    if mime is None:
        return _omit(label, "it is no JPEG, PNG, GIF or WebP")
    try:
        image = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return _omit(label, "it is not valid base64")
    shape = dimensions(image)
    if shape is None:
        return _omit(label, "its header cannot be read")
    steps = plan(*shape, len(image), limits)
    if not steps or (resize is None and _passes(image, shape, limits)):
        if block.get("mimeType") == mime:
            return Fitted(block)
        return Fitted({**block, "mimeType": mime}, f"an image with the type {block.get('mimeType')} is {mime}")
    if resize is None:
        return _omit(label, f"{_size(shape, len(image))} is over the limit, and nothing here can resize it")
    for side, quality in steps:
        smaller = resize(image, side, quality)
        if smaller is None:
            return _omit(label, "it cannot be decoded")
        made = dimensions(smaller)
        if made is not None and not plan(*made, len(smaller), limits):
            note = f"an image of {_size(shape, len(image))} was resized to {_size(made, len(smaller))}"
            jpeg = binascii.b2a_base64(smaller, newline=False).decode()
            return Fitted({**block, "data": jpeg, "mimeType": "image/jpeg"}, note)
    return _omit(label, f"{_size(shape, len(image))} cannot be made small enough")


def _passes(image: bytes, shape: tuple[int, int], limits: Limits) -> bool:
    return max(shape) <= limits.hard_side and len(image) <= limits.size


def _omit(label: str, reason: str | None) -> Fitted:
    return Fitted(omitted(label, reason), f"an image was omitted: {reason or 'it was empty'}")


def _size(shape: tuple[int, int], size: int) -> str:
    return f"{shape[0]}×{shape[1]} pixels and {size} bytes"
