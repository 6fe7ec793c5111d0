"""The time zone of the user: the configured one, or that of the machine."""

from __future__ import annotations

import sys
import time
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path

import pytest

from sessile import config
from sessile.config import local_zone
from sessile.errors import InvalidConfig
from sessile.storage import local_zone as looking
from sessile.storage.local_zone import machine_zone

pytestmark = pytest.mark.mission("Y4")

DATA = next(Path(folder) for folder in zoneinfo.TZPATH if Path(folder).is_dir())
BERLIN = (1, 2)  # hours in winter and in summer


def hours(zone: tzinfo | None) -> tuple[float, float]:
    """Return the offsets of a zone in winter and in summer."""
    assert zone is not None
    found = [datetime(2026, month, 1, tzinfo=zone).utcoffset() for month in (1, 7)]
    winter, summer = (offset / timedelta(hours=1) for offset in found if offset is not None)
    return winter, summer


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without time zone data."""
    before = zoneinfo.TZPATH
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(())
    monkeypatch.setattr(looking, "available_timezones", set)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    yield
    zoneinfo.reset_tzpath(before)
    zoneinfo.ZoneInfo.clear_cache()


def test_a_name_is_that_zone() -> None:
    """The zone has its daylight saving time."""
    assert hours(local_zone("Europe/Berlin")) == BERLIN
    assert hours(local_zone("Australia/Lord_Howe")) == (11, 10.5)
    assert hours(local_zone("UTC")) == (0, 0)


@pytest.mark.parametrize(
    "name", ["", "Nowhere/Atall", "Europe", "../../etc/passwd", "/etc/localtime", "a\0b", "\ud800"]
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    """The hint has an example."""
    with pytest.raises(InvalidConfig, match="unknown time zone") as caught:
        local_zone(name)
    assert "Europe/Berlin" in (caught.value.hint or "")


def test_a_name_in_another_case_is_told_as_it_is_spelled() -> None:
    """Only some file systems would accept the name."""
    try:
        zone = local_zone("america/new_york")
    except InvalidConfig as error:
        assert error.hint == "use the spelling America/New_York"
    else:  # on a case-insensitive file system
        assert hours(zone) == (-5, -4)


@pytest.mark.usefixtures("without_data")
def test_a_machine_without_data_is_told_what_to_install() -> None:
    """Only UTC is known there, and the hint says what to install."""
    with pytest.raises(InvalidConfig, match="no time zone data") as caught:
        local_zone("Europe/Berlin")
    assert "tzdata" in (caught.value.hint or "")
    assert local_zone("UTC") is UTC


# -- the machine


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("Europe/Berlin", BERLIN),
        (":Europe/Berlin", BERLIN),
        (str(DATA / "Europe/Berlin"), BERLIN),
        ("/somewhere/else/zoneinfo/posix/Europe/Berlin", BERLIN),
        ("", (0, 0)),
        ("UTC0", (0, 0)),
        ("CET-1CEST,M3.5.0,M10.5.0/3", BERLIN),
        ("LHST-10:30LHDT-11,M10.1.0,M4.1.0", (11, 10.5)),
        ("<+0330>-3:30", (3.5, 3.5)),
    ],
)
def test_the_variable_counts_before_all_else(tmp_path: Path, told: str, expected: tuple[float, float]) -> None:
    """TZ can be a name, a file or a rule, as in the C library."""
    (tmp_path / "localtime").symlink_to(DATA / "Asia/Tokyo")
    assert hours(machine_zone({"TZ": told}, str(tmp_path))) == expected


@pytest.mark.parametrize("told", ["Nowhere/Atall", "CET-1CEST", "Ä", "/no/such/file", "/etc/hostname"])
def test_a_variable_that_means_nothing_is_told(tmp_path: Path, told: str) -> None:
    """An invalid TZ does not fall back to UTC."""
    with pytest.raises(InvalidConfig) as caught:
        machine_zone({"TZ": told}, str(tmp_path))
    assert caught.value.path == "TZ" and caught.value.hint


def test_a_link_tells_the_name(tmp_path: Path) -> None:
    """The link may be relative, lead to another link, or point to another data folder."""
    link = tmp_path / "localtime"
    middle = tmp_path / "middle"
    middle.symlink_to(DATA / "Europe/Berlin")
    (tmp_path / "timezone").write_text("Asia/Tokyo\n")
    for target in (
        DATA / "Europe/Berlin",
        DATA / "posix/Europe/Berlin",
        Path("../somewhere/zoneinfo/Europe/Berlin"),
        Path("/var/db/timezone/zoneinfo/Europe/Berlin"),
        middle,
    ):
        link.symlink_to(target)
        assert str(machine_zone({}, str(tmp_path))) == "Europe/Berlin", target
        link.unlink()


def test_a_copy_of_the_data_is_as_good_as_a_link(tmp_path: Path) -> None:
    """The content of the file takes precedence over the name in `timezone`."""
    (tmp_path / "localtime").write_bytes((DATA / "Europe/Berlin").read_bytes())
    (tmp_path / "timezone").write_text("Asia/Tokyo\n")
    assert hours(machine_zone({}, str(tmp_path))) == BERLIN
    (tmp_path / "localtime").write_bytes(b"nonsense")
    with pytest.raises(InvalidConfig, match="does not hold time zone data"):
        machine_zone({}, str(tmp_path))


def test_a_file_with_the_name_is_enough(tmp_path: Path) -> None:
    """Without any information the result is `None`."""
    assert machine_zone({}, str(tmp_path)) is None
    (tmp_path / "timezone").write_text("\n")
    assert machine_zone({}, str(tmp_path)) is None
    (tmp_path / "timezone").write_text("Europe/Berlin\n")
    assert hours(machine_zone({}, str(tmp_path))) == BERLIN
    (tmp_path / "timezone").write_text("Nowhere/Atall\n")
    with pytest.raises(InvalidConfig, match="unknown time zone") as caught:
        machine_zone({}, str(tmp_path))
    assert caught.value.path == str(tmp_path / "timezone")


def test_without_a_name_it_is_the_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same as in the C library."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        zone = local_zone()
        for month in (1, 7):
            moment = datetime(2026, month, 1, 12)
            assert moment.astimezone().utcoffset() == moment.replace(tzinfo=zone).utcoffset()
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_where_nothing_says_what_the_zone_is_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current offset of the clock is used."""
    monkeypatch.setattr(config, "machine_zone", lambda: None)
    zone = local_zone()
    assert isinstance(zone, timezone)
    assert zone.utcoffset(None) == timedelta(seconds=time.localtime().tm_gmtoff)
