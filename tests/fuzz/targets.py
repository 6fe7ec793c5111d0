"""The fuzz targets: every parser of untrusted input, with its law and its seeds.

A law takes any bytes and returns. It may raise only our typed errors, and asserts what must hold for any bytes. The modules of
the laws are imported on demand, so that a guided run instruments only what it needs.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from fuzz import seeds
from sessile.errors import SessileError

Law = Callable[[bytes], None]
_LONGEST = 30.0  # maximum seconds of CPU time for one input


class Hang(AssertionError):
    """One input takes too long."""


class Target(NamedTuple):
    """A parser, by the module and the name of its law."""

    module: str
    name: str
    begin: Callable[[], Sequence[bytes]]

    def law(self) -> Law:
        """Return the law; typed errors are accepted."""
        check: Law = getattr(importlib.import_module(f"fuzz.{self.module}"), self.name)

        def hold(data: bytes) -> None:
            try:
                check(data)
            except SessileError:
                pass

        return hold

    def seeds(self) -> list[bytes]:
        """Return samples of the format, and the inputs that once broke the law."""
        return [*self.begin(), *seeds.crashes(self.name), b""]


def _made(module: str, name: str) -> Callable[[], Sequence[bytes]]:
    """Return seeds that the module of a law creates."""

    def make() -> Sequence[bytes]:
        found: Sequence[bytes] = getattr(importlib.import_module(f"fuzz.{module}"), name)()
        return found

    return make


_WORDS = (
    "retry",
    '"two words" webh*',
    "résumé 会话\nun résumé 恢复会话树",
    "Foo_bar\nthe foo_bar here",
    "=> *\n=>",
    "İ ſ ß\nİSTANBUL ſharp ß",
)
_KEYS = (
    "main", "agent:main:main", "agent:main:telegram:group:-100:topic:5", "agent:ops:slack:channel:C1:thread:1.2", "cron:x:run:y",
    "agent:main:subagent:a:subagent:b", "agent:main:matrix:direct:@a%3Ab", "hook:1", "whatsapp:group:1@g.us", "dm:x", "global",
)  # fmt: skip
_CONFIG = (
    '{"session":{"reset":{"mode":"daily","atHour":4},"resetByType":{"dm":{"idleMinutes":5}},"sendPolicy":{"default":"allow","rules":[]}},'
    '"agents":{"defaults":{"model":{"primary":"a/b"}},"list":[{"id":"main","default":true}]},"gateway":{"port":8787},"limits":{}}',
    '[session]\nidleMinutes = 5\n[session.reset]\nmode = "idle"\n[gateway]\nport = 1\nhost = "127.0.0.1"\n',
)
_REQUESTS = (
    'limit=5&offset=0&q=x\n{"text":"hello","cwd":"/","title":"t","name":"x"}',
    'after=a&depth=all\n{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}',
    "a=%ff&a=1\n[]",
)
_ASKED = (
    '{"query":"retry","limit":5,"agent":"sessile","since":"2w","in":["text"]}',
    '{"session":"@last","entry":"a","around":3,"from":"end","continuation":"x"}',
    '{"project":"/work","since":"yesterday","limit":1}',
)
_ANSWERS = (
    '{"choices":[{"delta":{"content":"hi","tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}\n'
    '{"usage":{"prompt_tokens":1,"completion_tokens":2},"choices":[]}',
    '{"type":"message_start","message":{"usage":{"input_tokens":1}}}\n{"type":"content_block_start","index":0,"content_block":{"type":"text"}}\n'
    '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
)
_SHOWN = (
    "# Title\n\n- one\n- *two* `three` [four](javascript:x) ![five](data:text/html,x)\n\n"
    "```python\nx = 1\n```\n<b onclick=x>six</b>\n|a|b|\n|-|-|\n",
    "\x1b[1;31mred\x1b[0m \x1b[38;5;12mblue\x1b[K\r\n\x1b]0;title\x07 \u202eevil 🙂 e\u0301 会话 ~~~\n````\n``` x",
    "---\n<script>alert(1)</script> &lt;script&gt; <!-- --> $$x$$ <svg/onload=x> <a href='x'>",
)
_SECRETS = (
    "password=hunter2hunter2 AKIAIOSFODNN7EXAMPLE ghp_N0tARealKeyN0tARealKeyN0tARealKey7N0t",
    '{"api_key":"sk-ant-api03-abcdefghijklmnop","url":"postgres://u:p4ssw0rd-x9@h/db","token":"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc"}',
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
)


def _texts(values: Sequence[str]) -> Callable[[], Sequence[bytes]]:
    return lambda: seeds.texts(*values)


def _pictures() -> Sequence[bytes]:
    return [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10",
        b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xc0\0\x11\x08\0\x10\0\x10",
        b"RIFF\0\0\0\0WEBPVP8X\n\0\0\0\0\0\0\0\x0f\0\0\x0f\0\0",
        b"GIF89a\x10\0\x10\0",
    ]


def _dates() -> Sequence[bytes]:
    return seeds.texts(
        "14d", "2 weeks ago", "yesterday", "last month", "2026-11-01", "2026-11-01T09:30:00+02:00", "999999y"
    )


def _addresses() -> Sequence[bytes]:
    return seeds.texts(
        "0190abcd", "@last-1", "@here#ab12", "words of a title@main", "/a/b.jsonl#x@y", "webhook/agent-a1"
    )


def _commands() -> Sequence[bytes]:
    return seeds.texts(
        "/new hello",
        "@bot /model opus",
        "/think: high",
        "/status",
        "/reset anthropic/claude-opus go",
        "hello /new",
        "/compact x",
    )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("native", "lines", seeds.sessions),
        Target("native", "codec", seeds.sessions),
        Target("native", "tree", seeds.sessions),
        Target("native", "context", seeds.sessions),
        Target("native", "care", seeds.sessions),
        Target("native", "migrate", seeds.sessions),
        Target("native", "looking", seeds.sessions),
        Target("native", "session", seeds.sessions),
        Target("native", "repairing", seeds.sessions),
        Target("native", "appending", seeds.sessions),
        Target("native", "asked", seeds.sessions),
        Target("native", "index", _made("native", "indexes")),
        Target("cataloguing", "catalog", _made("cataloguing", "catalogs")),
        Target("foreign", "rows_in_place", lambda: [*seeds.claude()[:12], *seeds.codex(), *seeds.myagents()]),
        Target("foreign", "codex_rollout", seeds.codex),
        Target("foreign", "codex_items", seeds.codex_items),
        Target("foreign", "claude_conversation", seeds.claude),
        Target("foreign", "claude_listing", seeds.claude),
        Target("foreign", "claude_rows", seeds.claude),
        Target("foreign", "myagents_messages", seeds.myagents),
        Target("foreign", "myagents_index", seeds.myagents_index),
        Target("foreign", "bindings", seeds.bindings),
        Target("foreign", "keys", _texts(_KEYS)),
        Target(
            "foreign",
            "routing",
            _texts(("telegram:group:-1\nuser\ngroup\ntelegram", "agent:main:main", "x\ny\ndirect\nwhatsapp")),
        ),
        Target("asking", "addresses", _addresses),
        Target("asking", "dates", _dates),
        Target("asking", "queries", _texts(_WORDS)),
        Target("asking", "commands", _commands),
        Target("asking", "config", _texts(_CONFIG)),
        Target("asking", "requests", _texts(_REQUESTS)),
        Target("asking", "tools", _texts(_ASKED)),
        Target("showing", "terminals", _texts(_SHOWN)),
        Target("showing", "pages", _texts(_SHOWN)),
        Target("showing", "documents", _texts(_SHOWN)),
        Target("showing", "secrets", _texts(_SECRETS)),
        Target("showing", "values", _texts((*_CONFIG[:1], *_REQUESTS))),
        Target("showing", "pictures", _pictures),
        Target("showing", "answers", _texts(_ANSWERS)),
        Target("showing", "packed", seeds.packed),
        Target("showing", "turns", _texts(('{"turn":3}\n', "\n[1]\n{"))),
    )
}


@contextmanager
def watched() -> Iterator[Callable[[], None]]:
    """Yield a function that restarts a timer; raise `Hang` if the timer runs out."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"one input has taken {_LONGEST} seconds of work")

    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST) and None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
