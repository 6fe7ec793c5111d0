"""What each provider takes: one table, one row a policy, chosen by provider, API and model.

    sanitize    `full` removes blank texts; `images` only what is empty altogether. Both care for images.
    tool_ids    `none`, `strict` (letters and digits, at most 40) or `strict9` (exactly nine of them)
    synthetic   the text of the result that is made up for a call without one
    signatures  whose signatures and sealed thoughts the API takes back: `claude`, `gemini`, `openai` or nobody's
    results     whether a tool result may hold images, if it is no failure; where not, they follow it in a message of the user
    bootstrap   the conversation may not begin with the model
    merge_…     turns of one side may not follow each other

Pairing of calls and results is no column, because every API that we know refuses a request without it: Anthropic
("`tool_use` ids were found without `tool_result` blocks"), OpenAI chat ("must be followed by tool messages responding
to each `tool_call_id`"), OpenAI Responses ("No tool output found for function call"), Google ("the number of function
response parts is equal to the number of function call parts"), Mistral ("Not the same number of function calls and
responses"), Bedrock (as Anthropic), and the servers that imitate OpenAI's chat. It costs nothing where a server would
not mind. For the same reason a missing result is made up for everyone: to leave the call out instead would lose what
the model said.

The default for whoever is not listed is the one that nobody refuses: ids of letters and digits, no signatures, no
images inside results; texts and turns are left as they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

Sanitize = Literal["full", "images"]
ToolIds = Literal["none", "strict", "strict9"]
Signatures = Literal["claude", "gemini", "openai", "none"]

MISSING = "[The result of this tool call is missing: it was interrupted or never recorded.]"
ABORTED = "aborted"  # what OpenAI's own agent sends for a call that was stopped


class Policy(NamedTuple):
    """One row of the table: what the messages of a request must look like."""

    name: str
    sanitize: Sanitize = "images"
    tool_ids: ToolIds = "strict"
    synthetic: str = MISSING
    signatures: Signatures = "none"
    results: bool = False
    bootstrap: bool = False
    merge_assistants: bool = False
    merge_users: bool = False


class Match(NamedTuple):
    """When a row counts: all that is given must hold; `words` are looked for in the name of the model."""

    providers: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()


DEFAULT = Policy("default")

_GOOGLE_APIS = frozenset({"google-generative-ai", "google-gemini-cli", "google-antigravity", "google-vertex"})
_GOOGLE = frozenset({"google", "gemini", "google-gemini-cli", "google-antigravity", "google-vertex"})
_ROUTERS = frozenset({"openrouter", "opencode", "kilocode"})
_RESPONSES_APIS = frozenset({"openai-responses", "openai-codex-responses", "azure-openai-responses"})
_MISTRAL = ("mistral", "mixtral", "codestral", "pixtral", "devstral", "ministral")

# The first row that matches counts.
TABLE: tuple[tuple[Policy, tuple[Match, ...]], ...] = (
    (
        # Google's door, Claude's signatures.
        Policy("antigravity-claude", "full", signatures="claude", bootstrap=True, merge_assistants=True),
        (Match(apis=_GOOGLE_APIS, words=("claude",)), Match(providers=_GOOGLE, words=("claude",))),
    ),
    (
        Policy("google", "full", signatures="gemini", bootstrap=True, merge_assistants=True),
        (Match(apis=_GOOGLE_APIS), Match(providers=_GOOGLE)),
    ),
    (
        # Bedrock takes Anthropic's messages under another envelope, and is stricter about ids.
        Policy("bedrock", "full", signatures="claude", results=True, bootstrap=True, merge_users=True),
        (Match(providers=frozenset({"amazon-bedrock", "bedrock"})), Match(apis=frozenset({"bedrock-converse-stream"}))),
    ),
    (
        # Ids that another provider made are refused unless they are letters, digits, `_` and `-`; the strict form is.
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
        # Local servers put messages through the template of the model, and many templates insist on turns.
        Policy("openai-compatible", bootstrap=True, merge_assistants=True, merge_users=True),
        (Match(apis=frozenset({"openai-completions"})),),
    ),
)


@lru_cache(maxsize=256)  # it is asked for every message
def policy_for(provider: str | None = None, api: str | None = None, model: str | None = None) -> Policy:
    """The policy of a provider, its API and its model, as far as they are known."""
    named, spoken, called = (provider or "").lower(), (api or "").lower(), (model or "").lower()
    for policy, matches in TABLE:
        if any(_holds(match, named, spoken, called) for match in matches):
            return policy
    return DEFAULT


def _holds(match: Match, provider: str, api: str, model: str) -> bool:
    return (
        (not match.providers or provider in match.providers)
        and (not match.apis or api in match.apis)
        and (not match.words or any(word in model for word in match.words))
    )
