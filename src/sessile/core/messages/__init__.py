"""Messages: the neutral message of a session, and its translation from and to the APIs of providers.

neutral            what is stored: one shape, whichever API a message came from
family             the wrappers of the pi family
anthropic, openai_chat, openai_responses, gemini
                   each API: from it and to it
request            a complete request: system prompt, messages, tools, and notes on what differs from the session

Every session loads `request`; the APIs are loaded when a message of theirs comes or goes.
"""
