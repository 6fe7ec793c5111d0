"""Messages for the peer tests, and assertions that a peer and Sessile agree on a file."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import sessile
from peers.peers import Context, Message, Peer

CWD = "/work/app"
MODEL = "anthropic/claude-sonnet-4-5"

# Members of projected messages that only the xcsh/omp branch of the family has (spec §2.4, §2.5, §6.5); pi drops them.
NOT_IN_PI = {
    "custom": {"attribution"},
    "compactionSummary": {"shortSummary", "providerPayload"},
}


def user(content: str | list[Message], timestamp: int = 1_760_000_000_000) -> Message:
    """Return a user message."""
    return {"role": "user", "content": content, "timestamp": timestamp}


def assistant(content: str | list[Message], model: str = MODEL, stop_reason: str = "stop") -> Message:
    """Return an assistant message."""
    provider, model_id = model.split("/", 1)
    cost = {"input": 0.1, "output": 0.25, "cacheRead": 0, "cacheWrite": 0, "total": 0.35}
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else content,
        "api": "anthropic-messages",
        "provider": provider,
        "model": model_id,
        "usage": {"input": 10, "output": 5, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 15, "cost": cost},
        "stopReason": stop_reason,
        "timestamp": 1_760_000_001_000,
    }


def tool_call(call_id: str, model: str = MODEL) -> Message:
    """Return an assistant message with thinking and a call that reads a file."""
    thought = {"type": "thinking", "thinking": "看一下", "thinkingSignature": "c2ln"}
    call = {"type": "toolCall", "id": call_id, "name": "read", "arguments": {"path": "src/a.py", "limit": 10}}
    return assistant([thought, call], model, "toolUse")


def tool_result(call_id: str) -> Message:
    """Return the result of that call."""
    return {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": "read",
        "content": [
            {"type": "text", "text": "print('naïve')\n"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        ],
        "details": {"lines": 1, "nested": [None, True, {}]},
        "isError": False,
        "timestamp": 1_760_000_002_000,
    }


def bash(command: str) -> Message:
    """Return a command that the user ran."""
    return {
        "role": "bashExecution",
        "command": command,
        "output": "ok\n",
        "exitCode": 0,
        "cancelled": False,
        "truncated": False,
        "timestamp": 1_760_000_003_000,
    }


def records(path: str) -> list[dict[str, Any]]:
    """Return the parsed lines of a session file."""
    with open(path, encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def contents(path: str) -> bytes:
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def comparable(messages: list[Message]) -> list[Message]:
    """Return messages as JSON values, without the members that pi does not know."""
    values: list[Message] = json.loads(json.dumps(messages))
    return [{k: v for k, v in m.items() if k not in NOT_IN_PI.get(m["role"], ())} for m in values]


def assert_same_context(session: sessile.Session, theirs: Context) -> None:
    """Assert that Sessile and the peer would send the same messages to the model."""
    ours = session.build_session_context()
    assert comparable(ours.messages) == comparable(theirs.messages)
    assert ours.thinking_level == theirs.thinking_level
    assert ours.models.get("default") == theirs.model


def assert_agree(store: sessile.Store, peer: Peer, path: str) -> Context:
    """Assert that both read the file with equal results and leave its bytes unchanged."""
    before = contents(path)
    theirs = peer.context(path)
    with closing(store.open(path, readonly=True)) as session:
        assert_same_context(session, theirs)
    assert contents(path) == before
    return theirs
