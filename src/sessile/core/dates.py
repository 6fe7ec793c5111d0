"""Parse dates as users write them: `14d`, `2w`, `yesterday`, `last week`, `2026-11-01`, an ISO time.

Days start at midnight in the given time zone, weeks on Monday.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from sessile.errors import InvalidQuery

_BACK = re.compile(r"(\d{1,6})\s*(min|mo|[smhdwy])[a-z]*(?:\s+ago)?")
_UNITS = {
    "s": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "mo": timedelta(days=30),
    "y": timedelta(days=365),
}


def parse_moment(text: str, now: int, zone: tzinfo) -> int:
    """Return the time that a text means, in milliseconds since 1970. `now` is in the same unit."""
    present = datetime.fromtimestamp(now / 1000, zone)
    today = present.replace(hour=0, minute=0, second=0, microsecond=0)
    written = " ".join(text.split()).lower()
    back = _BACK.fullmatch(written)
    try:
        moment = _named(written, present, today)
        if moment is None and back is not None:
            moment = present - int(back.group(1)) * _UNITS[back.group(2)]
        if moment is None:
            moment = datetime.fromisoformat(text.strip())
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=zone)
        return int(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidQuery(
            f"invalid time {text[:40]!r}",
            hint="use 14d, 2w, yesterday, last week, 2026-11-01 or 2026-11-01T09:30",
        ) from error


def parse_span(text: str) -> int:
    """Return the duration that a text such as `90d` means, in milliseconds."""
    match = _BACK.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidQuery(f"invalid duration {text[:40]!r}", hint="use 90d, 12w or 36h")
    return int(match.group(1)) * _UNITS[match.group(2)] // timedelta(milliseconds=1)


def _named(written: str, now: datetime, today: datetime) -> datetime | None:
    monday = today - timedelta(days=today.weekday())
    first = today.replace(day=1)
    return {
        "now": now,
        "today": today,
        "yesterday": today - timedelta(days=1),
        "this week": monday,
        "last week": monday - timedelta(weeks=1),
        "this month": first,
        "last month": (first - timedelta(days=1)).replace(day=1),
    }.get(written)
