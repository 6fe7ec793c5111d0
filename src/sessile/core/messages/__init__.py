"""Messages: the neutral message of a session, and its translation from and to the APIs of providers.

neutral            what is stored: one shape, whichever API a message came from
family             the wrappers of the pi family
anthropic, openai_chat, openai_responses, gemini
                   each API: from it and to it
request            a complete request: system prompt, messages, tools, and notes on what differs from the session
"""

from sessile.core.messages.anthropic import to_anthropic
from sessile.core.messages.family import blocks_of, convert_to_llm, joined_text, sendable, text_block
from sessile.core.messages.gemini import to_google
from sessile.core.messages.openai_chat import to_openai
from sessile.core.messages.openai_responses import to_responses
from sessile.core.messages.request import Request, RequestNote

__all__ = [
    "Request",
    "RequestNote",
    "blocks_of",
    "convert_to_llm",
    "joined_text",
    "sendable",
    "text_block",
    "to_anthropic",
    "to_google",
    "to_openai",
    "to_responses",
]
