"""The time zone of this machine, with its daylight saving rules.

It is looked up as the C library does: the variable `TZ` (a name, a file of zone data, or a rule such as
`CET-1CEST,M3.5.0,M10.5.0/3`), then `/etc/localtime`, a link to zone data or a file with it; then `/etc/timezone`, where some
systems store only the name. The environment and the settings folder are arguments.

An unknown zone raises and is never replaced by another: resets would happen at the wrong hour.
"""

from __future__ import annotations

import io
import os
import posixpath
import struct
from collections.abc import Mapping
from datetime import UTC, timedelta, timezone, tzinfo
from time import localtime
from zoneinfo import ZoneInfo, available_timezones

from sessile.errors import InvalidConfig, storage_failures

_FOLDER = "/zoneinfo/"
_VARIANTS = ("posix/", "right/")  # the same zones, without and with leap seconds
_ALWAYS_KNOWN = ("UTC", "Etc/UTC")  # even without zone data
_SET = "set TZ, or user.timeZone in the configuration, to a name such as Europe/Berlin"


def machine_zone(environ: Mapping[str, str] | None = None, settings: str = "/etc") -> tzinfo | None:
    """Return the zone of the machine; `None` if none is set. Raise `InvalidConfig` if it is unknown."""
    environ = os.environ if environ is None else environ
    variable = environ.get("TZ")
    if variable is not None:
        return _of_variable(variable.removeprefix(":"))
    link = f"{settings}/localtime"
    with storage_failures(link, "look up the time zone"):
        name = _linked_name(link)
        if name is not None:
            return zone_named(name, link)
        if os.path.isfile(link):
            return _of_file(link, link)
        try:
            with open(f"{settings}/timezone", encoding="utf-8", errors="replace") as file:
                name = file.read().strip()
        except FileNotFoundError:
            return None
    return zone_named(name, f"{settings}/timezone") if name else None


def current_offset() -> tzinfo:
    """Return the current UTC offset of this machine as a fixed zone."""
    now = localtime()
    return timezone(timedelta(seconds=now.tm_gmtoff), now.tm_zone)


def zone_named(name: str, place: str | None = None) -> tzinfo:
    """Return the zone with that name. Raise `InvalidConfig` if it is unknown. `place` is where the name was found."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        if name in _ALWAYS_KNOWN:
            return UTC
        known = available_timezones()
        if not known:
            hint = "install the system package tzdata, or run `pip install tzdata`"
            message = f"unknown time zone {name[:80]!r}: this machine has no time zone data"
            raise InvalidConfig(message, path=place, hint=hint) from error
        same = sorted(other for other in known if other.lower() == name.strip().lower())
        hint = f"use the spelling {same[0]}" if same else "use a name such as Europe/Berlin"
        raise InvalidConfig(f"unknown time zone {name[:80]!r}", path=place, hint=hint) from error


def _of_variable(value: str) -> tzinfo:
    if not value:
        return UTC  # as in the C library
    if posixpath.isabs(value):
        name = _name_in(value)
        return _of_file(value, "TZ") if name is None else zone_named(name, "TZ")
    try:
        return ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        pass
    try:
        return ZoneInfo.from_file(io.BytesIO(_data_with_rule(value)), key=value)
    except ValueError:
        return zone_named(value, "TZ")  # raises


def _linked_name(path: str) -> str | None:
    """Return the zone that a link names, directly or by its final target."""
    if not os.path.islink(path):
        return None
    target = posixpath.join(posixpath.dirname(path), os.readlink(path))
    return _name_in(target) or _name_in(os.path.realpath(path))


def _name_in(path: str) -> str | None:
    """Return the name of a zone in the path of its data."""
    _, found, name = path.partition(_FOLDER)
    for variant in _VARIANTS:
        name = name.removeprefix(variant)
    return name if found and name else None


def _of_file(path: str, place: str) -> tzinfo:
    try:
        with open(path, "rb") as file:
            return ZoneInfo.from_file(file)
    except (ValueError, OSError, struct.error) as error:
        raise InvalidConfig("the file does not hold time zone data", path=place, hint=_SET) from error


def _data_with_rule(rule: str) -> bytes:
    """Return zone data that consists of one rule: `zoneinfo` reads rules only from such data."""
    try:
        footer = rule.encode("ascii")
    except UnicodeEncodeError as error:
        raise ValueError("a rule must be ASCII") from error
    block = struct.pack(">4s1s15x6l", b"TZif", b"2", 0, 0, 0, 0, 1, 1) + struct.pack(">lbB", 0, 0, 0) + b"\0"
    return block + block + b"\n" + footer + b"\n"
