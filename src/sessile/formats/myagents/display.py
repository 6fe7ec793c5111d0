"""How MyAgents shows numbers and times: the same characters as its own window.

What is not known is `-`. Numbers are rounded as JavaScript's `toFixed` and `Math.round` do it, halves upwards. The clock and
the time zone are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from sessile.core.text import parse_timestamp
from sessile.formats.myagents.types import count_of

UNKNOWN = "-"

_DAY = 86_400_000
_WEEK = 7


def format_tokens(tokens: int | None) -> str:
    """`1.2M`, `3.4K` or the number itself."""
    if tokens is None:
        return UNKNOWN
    if tokens >= 1_000_000:
        return f"{_fixed(tokens / 1_000_000)}M"
    if tokens >= 1000:
        return f"{_fixed(tokens / 1000)}K"
    return str(tokens)


def format_duration(milliseconds: int | None) -> str:
    """`1m 5s`, `2.3s` or `40ms`."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds >= 60_000:
        minutes, rest = divmod(milliseconds, 60_000)
        return f"{minutes}m {(rest + 500) // 1000}s"
    if milliseconds >= 1000:
        return f"{_fixed(milliseconds / 1000)}s"
    return f"{milliseconds}ms"


def _fixed(number: float) -> str:
    """One decimal, as `toFixed(1)` gives it: of the exact value of the number, halves upwards."""
    return str(Decimal(number).quantize(Decimal("0.1"), rounding=ROUND_HALF_UP))


def row_text(stats: Mapping[str, Any] | None) -> str:
    """What a list shows under a session; the tokens of caches do not count."""
    messages = count_of((stats or {}).get("messageCount"))
    parts = [count_of((stats or {}).get(name)) for name in ("totalInputTokens", "totalOutputTokens")]
    known = [part for part in parts if part is not None]
    tokens = sum(known) if known else None
    return f"{UNKNOWN if messages is None else messages} 条消息 · {format_tokens(tokens)} tokens"


def row_time(last_active_at: str | None, now: int, zone: tzinfo) -> str:
    """When a session was active. Days are spans of 24 hours, not of the calendar."""
    then = parse_timestamp(last_active_at)
    if then is None:
        return UNKNOWN
    days = (now - then) // _DAY
    moment = datetime.fromtimestamp(then / 1000, zone)
    if days <= 0:
        return f"{moment:%H:%M}"
    if days == 1:
        return "昨天"
    return f"{days}天前" if days < _WEEK else f"{moment.month}月{moment.day}日"
