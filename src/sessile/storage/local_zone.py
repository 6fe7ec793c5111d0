"""The time zone that this machine is set to, with its changes of the clocks.

It is looked for where the C library looks, in its order: the variable `TZ` (a name, a file of zone data, or a rule such as
`CET-1CEST,M3.5.0,M10.5.0/3`), then `/etc/localtime`, a link that tells the name or a file with the data; then `/etc/timezone`,
where some systems keep the name alone. The environment and the folder of settings are arguments.

A zone that is set but not known is raised, never replaced by another: resets would come at a wrong hour.
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
_ALWAYS_KNOWN = ("UTC", "Etc/UTC")  # without any data
_SET = "set TZ, or user.timeZone in the configuration, to a name such as Europe/Berlin"


def machine_zone(environ: Mapping[str, str] | None = None, settings: str = "/etc") -> tzinfo | None:
    """The zone that the machine is set to; `None` if nothing says so. Raises `InvalidConfig` for one that is not known."""
    environ = os.environ if environ is None else environ
    told = environ.get("TZ")
    if told is not None:
        return _of_variable(told.removeprefix(":"))
    link = f"{settings}/localtime"
    with storage_failures(link, "find out the time zone"):
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
    """The offset that the clock of this machine has now, for ever."""
    now = localtime()
    return timezone(timedelta(seconds=now.tm_gmtoff), now.tm_zone)


def zone_named(name: str, place: str | None = None) -> tzinfo:
    """The zone of a name; raises `InvalidConfig` for one that is not known. `place` is where the name was found."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        if name in _ALWAYS_KNOWN:
            return UTC
        known = available_timezones()
        if not known:
            hint = "install the package tzdata of the system, or `pip install tzdata`"
            message = f"nothing is known of {name[:80]!r}: this machine has no data of time zones"
            raise InvalidConfig(message, path=place, hint=hint) from error
        same = sorted(other for other in known if other.lower() == name.strip().lower())
        hint = f"it is spelled {same[0]}" if same else "use a name such as Europe/Berlin"
        raise InvalidConfig(f"{name[:80]!r} is no time zone", path=place, hint=hint) from error


def _of_variable(told: str) -> tzinfo:
    if not told:
        return UTC  # what an empty variable means to the C library
    if posixpath.isabs(told):
        name = _name_in(told)
        return _of_file(told, "TZ") if name is None else zone_named(name, "TZ")
    try:
        return ZoneInfo(told)
    except (KeyError, ValueError, OSError):
        pass
    try:
        return ZoneInfo.from_file(io.BytesIO(_data_with_rule(told)), key=told)
    except ValueError:
        return zone_named(told, "TZ")  # raises, and says what is wrong


def _linked_name(path: str) -> str | None:
    """The zone that a link names, itself or by where it leads to in the end."""
    if not os.path.islink(path):
        return None
    target = posixpath.join(posixpath.dirname(path), os.readlink(path))
    return _name_in(target) or _name_in(os.path.realpath(path))


def _name_in(path: str) -> str | None:
    """The name of a zone in the path of its data."""
    _, found, name = path.partition(_FOLDER)
    for variant in _VARIANTS:
        name = name.removeprefix(variant)
    return name if found and name else None


def _of_file(path: str, place: str) -> tzinfo:
    try:
        with open(path, "rb") as file:
            return ZoneInfo.from_file(file)
    except (ValueError, OSError, struct.error) as error:
        raise InvalidConfig("the file holds no time zone", path=place, hint=_SET) from error


def _data_with_rule(rule: str) -> bytes:
    """Zone data without any past, in which a rule holds for all times: `zoneinfo` reads rules only there."""
    try:
        footer = rule.encode("ascii")
    except UnicodeEncodeError as error:
        raise ValueError("a rule is plain ASCII") from error
    block = struct.pack(">4s1s15x6l", b"TZif", b"2", 0, 0, 0, 0, 1, 1) + struct.pack(">lbB", 0, 0, 0) + b"\0"
    return block + block + b"\n" + footer + b"\n"
