"""Output of the command line: data on stdout, everything else on stderr.

    terminal   colours, relative times, lines cut to the width, a pager for long output
    pipe       no colours, nothing cut, tabs between columns, ISO times, whole ids
    --json     one document with a versioned schema, or one document per line for streams
    --plain    words instead of glyphs and columns, for screen readers

Also here: tables that fit any width, progress, and files that a verb writes.

Rules:

- Colour never carries meaning alone.
- Callers make stored text visible, because that changes its width. Everything is made visible once more when it is written.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile import errors
from sessile.core.visible import cut, visible, visible_json, visible_line, width
from sessile.errors import Refused, storage_failures
from sessile.render.styled import Line, Span, Style, wrapped_line
from sessile.storage import atomic
from sessile.storage.filesystem import PosixFilesystem

if TYPE_CHECKING:
    from sessile.render.terminal import Prose

_STYLES: dict[str, str] = {
    "dim": "2",
    "strong": "1",
    "user": "1;36",
    "assistant": "1;32",
    "tool": "33",
    "failed": "1;31",
    "label": "1;35",
    "summary": "1;34",
    "id": "2",
    "active": "1;32",
    "added": "32",
    "removed": "31",
    "mark": "1;33",
}
_VERB = re.compile(r"\bsessile (?=[a-z])")
_HINTS = {  # by exit code, for errors without a hint
    2: "run `sessile help VERB`",
    3: "run `sessile ls` for a list",
    5: "run `sessile check` for details",
    6: "another process is using it; try again in a moment",
    8: "check the folder, its permissions and the free disk space",
}
_NARROWEST = 40
_CANDIDATE_WIDTH = 100  # columns of each value in a list of candidates


class Output:
    """The streams of a verb, and how it writes to them."""

    def __init__(self, *, json: bool, plain: bool, color: str, pager: bool, zone: str | None) -> None:
        self.json = json
        self.plain = plain or os.environ.get("SESSILE_PLAIN") == "1"
        self._color = color
        self._pager = pager
        self._zone = zone

    # -- the terminal

    @cached_property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return sys.stdout.isatty()

    @cached_property
    def colours(self) -> bool:
        """Whether to print colours."""
        if self._color != "auto":
            return self._color == "always"
        if os.environ.get("FORCE_COLOR"):
            return True
        no_color = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or self.plain
        return self.is_terminal and not no_color

    @cached_property
    def columns(self) -> int | None:
        """The width of the terminal; `None` in a pipe, where nothing is cut or wrapped."""
        return max(_screen().columns, _NARROWEST) if self.is_terminal else None

    @cached_property
    def zone(self) -> tzinfo:
        """The time zone for times."""
        if self._zone is None:
            return datetime.now().astimezone().tzinfo or UTC
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(self._zone)
        except (KeyError, ValueError, OSError) as error:
            raise errors.Invalid(
                f"unknown time zone {self._zone!r}", hint="use a name such as Europe/Berlin or UTC"
            ) from error

    @cached_property
    def prose(self) -> Prose | None:
        """What renders Markdown at a terminal with colours; `None` elsewhere, where the markup carries the meaning."""
        if not (self.is_terminal and self.colours) or self.plain:
            return None
        from sessile.cli.prose import prose_lines  # slow to import: rich and pygments

        return prose_lines

    # -- text

    def line(self, text: str = "", style: Style = "plain") -> None:
        """Print a line of data."""
        self.lines([(Span(text, style),)])

    def lines(self, lines: Iterable[Line]) -> None:
        """Print lines of data."""
        for line in lines:
            sys.stdout.write(self._styled(line) + "\n")

    def page(self, lines: Iterable[Line]) -> None:
        """Print lines of data, in a pager if they do not fit on the screen."""
        if not (self.is_terminal and self._pager) or self.plain:
            self.lines(lines)
            return
        waiting = iter(lines)
        first = list(islice(waiting, _screen().lines - 1))
        more = list(islice(waiting, 1))
        command = self._pager_command() if more else None
        everything = chain(first, more, waiting)
        if command is None:
            self.lines(everything)
        else:
            self._feed(command, everything)

    @staticmethod
    def _pager_command() -> list[str] | None:
        import shlex  # only for a pager
        import shutil

        wanted = next(
            (value for name in ("SESSILE_PAGER", "PAGER") if (value := os.environ.get(name)) is not None), None
        )
        command = shlex.split(wanted if wanted is not None else "less -FRX")
        return command if command and command != ["cat"] and shutil.which(command[0]) else None

    def _feed(self, command: Sequence[str], lines: Iterable[Line]) -> None:
        """Write the lines to a pager until it exits."""
        import subprocess

        with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "LESSCHARSET": "utf-8"}) as pager:
            assert pager.stdin is not None
            try:
                for line in lines:
                    pager.stdin.write((self._styled(line) + "\n").encode("utf-8", "replace"))
                pager.stdin.close()
            except BrokenPipeError:
                pass  # the user quit the pager
            except KeyboardInterrupt:
                pass  # the pager received it too, and decides what to do

    def _styled(self, line: Line) -> str:
        """Return a line as it is written; this is the last check for control characters."""
        if not self.colours:
            return visible("".join(span.text for span in line))
        pieces = []
        for span in line:
            code, text = span.look or _STYLES.get(span.style), visible(span.text)
            pieces.append(f"\x1b[{code}m{text}\x1b[0m" if code and text else text)
        return "".join(pieces)

    # -- tables

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, header: bool = False) -> None:
        """Print a table: aligned at a terminal, tab-separated in a pipe, as sentences with --plain."""
        if self.plain:
            for row in rows:
                self.line(in_words(columns, row))
        elif not self.is_terminal:
            heads = [[Cell(column.name) for column in columns]] if header else []
            for row in chain(heads, rows):
                values = (cell.text if cell.value is None else cell.value for cell in row)
                sys.stdout.write("\t".join(visible_line(value) for value in values) + "\n")
        else:
            self.lines(aligned(columns, list(rows), self.columns or 80))

    # -- documents

    def document(self, schema: str, items: Iterable[Any] | None = None, **members: Any) -> None:
        """Print one JSON document; items are written one at a time."""
        sys.stdout.flush()
        write = sys.stdout.buffer.write
        write(b'{"schema":' + _encoded(f"sessile.{schema}"))
        if items is not None:
            write(b',"items":[')
            for number, item in enumerate(items):
                write((b",\n" if number else b"\n") + _encoded(item))
            write(b"]")
        # Members follow the items, because some, such as hidden counts, are known only then.
        for name, value in members.items():
            # Lists are encoded item by item, so that one item with escapes does not slow down the others.
            encoded = b"[" + b",".join(map(_encoded, value)) + b"]" if isinstance(value, list) else _encoded(value)
            write(b"," + _encoded(name) + b":" + encoded)
        write(b"}\n")
        sys.stdout.buffer.flush()

    def record(self, schema: str, record: Mapping[str, Any]) -> None:
        """Print one JSON document on a line, and flush."""
        sys.stdout.flush()
        sys.stdout.buffer.write(_encoded({"schema": f"sessile.{schema}", **record}) + b"\n")
        sys.stdout.buffer.flush()

    # -- times

    def moment(self, milliseconds: int | None) -> Cell:
        """Return a cell for a time: relative for people, ISO for programs."""
        if milliseconds is None:
            return Cell("?", "dim", "")
        return Cell(ago(milliseconds, int(time.time() * 1000)), "dim", self.iso(milliseconds))

    def iso(self, milliseconds: int | None) -> str | None:
        """Return a time in ISO format, in the chosen zone."""
        if milliseconds is None:
            return None
        try:
            moment = datetime.fromtimestamp(milliseconds / 1000, self.zone)
        except (OverflowError, ValueError, OSError):
            return None  # out of range for the calendar
        return moment.isoformat(timespec="milliseconds")

    # -- notes and errors

    def note(self, text: str, style: Style = "dim") -> None:
        """Print a note for the user on stderr."""
        text = visible(text)
        code = _STYLES.get(style) if self.colours and sys.stderr.isatty() else None
        sys.stdout.flush()
        sys.stderr.write(f"\x1b[{code}m{text}\x1b[0m\n" if code else f"{text}\n")

    def hidden(self, hidden: Mapping[str, int], show: str) -> None:
        """Print how much a filter hides, and the option that shows it."""
        if hidden and not self.json:
            reasons = ", ".join(f"{count} {reason.replace('_', '-')}" for reason, count in hidden.items())
            self.note(f"… {sum(hidden.values())} hidden ({reasons}). Show: {show}")

    def fail(self, error: errors.SessileError, *, command: str = "sessile") -> int:
        """Print an error with its hint and return the exit code; verbs in hints are prefixed with `command`."""
        candidates = error.candidates if isinstance(error, errors.Ambiguous) else ()
        hint = _VERB.sub(f"{command} ", error.hint or _HINTS.get(error.exit_code) or "") or None
        if self.json:
            members = {"kind": _kind(error), "message": error.message, "path": error.path, "hint": hint}
            report = {"schema": "sessile.error/1", "error": {**members, "candidates": list(candidates)}}
            sys.stderr.write(_encoded(report).decode() + "\n")
            return error.exit_code
        where = f" ({error.path})" if error.path else ""
        self.note(f"sessile: {error.message}{where}", "failed")
        for candidate in candidates:
            names = (candidate[name] or "" for name in ("id", "title", "project") if name in candidate)
            self.note("  " + "  ".join(cut(visible_line(name), _CANDIDATE_WIDTH) for name in names), "plain")
        if hint:
            self.note(f"hint: {hint}")
        return error.exit_code

    @contextmanager
    def progress(self, doing: str) -> Iterator[Callable[[Any], None]]:
        """Show progress while the block runs; yields the function to call with each step."""
        if sys.stderr.isatty() and not self.plain and os.environ.get("TERM") != "dumb":
            bar: Bar | Lines = Bar(doing, colours=self.colours)
        else:
            bar = Lines(doing, self.note)
        try:
            yield bar.show
        finally:
            bar.close()


def _screen() -> os.terminal_size:
    """Return the size of the terminal."""
    import shutil

    return shutil.get_terminal_size()


def ago(then: int, now: int) -> str:
    """Return how long ago a time was, in the largest unit that fits."""
    seconds = (now - then) // 1000
    if seconds < 0:
        return "in the future"
    for unit, size in (("y", 31_557_600), ("mo", 2_629_800), ("w", 604_800), ("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def size_of(count: int | None) -> str:
    """Return a number of bytes with a unit."""
    if count is None:
        return "?"
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def money(dollars: float | None) -> str:
    """Return a cost in dollars; an unknown one is "n/a", not zero."""
    if dollars is None:
        return "n/a"
    return f"${dollars:.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.4f}"


def _encoded(value: Any) -> bytes:
    """Return JSON on one line, with lone surrogates and control characters escaped."""
    try:
        encoded = msgspec.json.encode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, RecursionError):
        import json

        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str).encode()
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    text = encoded.decode()
    return encoded if text.isprintable() else visible_json(text).encode()


def _kind(error: errors.SessileError) -> str:
    name = type(error).__name__
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


# -- tables

_BETWEEN = 2  # spaces between two columns
_WIDE_MINIMUM = 28  # width that a wide column keeps as long as others can shrink
_MINIMUM = 12  # width of the narrowest column that is cut
_BELOW = "    "


class Column(NamedTuple):
    """A column of a table. A wide column takes the remaining room; a soft one may be cut too."""

    name: str
    right: bool = False
    wide: bool = False
    soft: bool = False


class Cell(NamedTuple):
    """A cell: its text for people, and its value for programs where that differs."""

    text: str
    style: Style = "plain"
    value: str | None = None


def in_words(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    """Return a row as a sentence, for screen readers."""
    return "; ".join(f"{column.name}: {visible_line(cell.text)}" for column, cell in zip(columns, row, strict=True))


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int) -> Iterator[Line]:
    """Yield the lines of a table, header first; nothing if there are no rows.

    Wide columns shrink first, then soft ones. If that is not enough, the texts of a row go below its numbers, and if those
    do not fit either, each row becomes a sentence. Numbers are never cut.
    """
    if not rows:
        return
    heads = [Cell(column.name, "dim") for column in columns]
    shown = [heads, *([cell._replace(text=visible_line(cell.text)) for cell in row] for row in rows)]
    widths = [max(width(row[number].text) for row in shown) for number in range(len(columns))]
    _shrink(columns, widths, room)
    texts = [number for number, column in enumerate(columns) if column.wide or column.soft]
    if _total_width(widths) <= room:
        yield from (_line(columns, row, widths) for row in shown)
        return
    others = [number for number in range(len(columns)) if number not in texts]
    if not texts or _total_width([widths[number] for number in others]) > room:
        for row in rows:
            yield from wrapped_line((Span(in_words(columns, row)),), room)
        return
    for row in shown:
        yield _line([columns[n] for n in others], [row[n] for n in others], [widths[n] for n in others])
        if row is not heads:
            for number in sorted(texts, key=lambda number: not columns[number].wide):
                if row[number].text:
                    yield (Span(_BELOW + cut(row[number].text, room - len(_BELOW)), row[number].style),)


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1)


def _shrink(columns: Sequence[Column], widths: list[int], room: int) -> None:
    """Shrink columns until they fit or reach their minimum."""
    wide = [number for number, column in enumerate(columns) if column.wide]
    soft = [number for number, column in enumerate(columns) if column.soft]
    for numbers, least in ((wide, _WIDE_MINIMUM), (soft, _MINIMUM), (wide, _MINIMUM)):
        while (over := _total_width(widths) - room) > 0 and numbers:
            widest = max(numbers, key=lambda number: widths[number])
            if widths[widest] <= least:
                break
            rest = max((widths[number] for number in numbers if number != widest), default=least)
            # The widest shrinks to the width of the next one; then both do.
            widths[widest] = max(widths[widest] - over, min(rest, widths[widest] - 1), least)


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int]) -> Line:
    spans = []
    for number, (column, cell, room) in enumerate(zip(columns, row, widths, strict=True)):
        text = cut(cell.text, room)
        blank = " " * (room - width(text))
        if column.right:
            spans.append(Span(blank))
        spans.append(Span(text, cell.style))
        if number < len(columns) - 1:
            spans.append(Span(" " * _BETWEEN if column.right else blank + " " * _BETWEEN))
    return tuple(spans)


# -- progress

_SHOW_AFTER = 0.4  # seconds before a bar appears
_SHOW_EVERY = 0.05  # seconds between two updates
_SAY_EVERY = 5.0  # seconds between two lines without a terminal


class Step(NamedTuple):
    """How much of some work is done."""

    done: int
    total: int


class Bar:
    """A progress bar at a terminal, shown once the work takes a moment."""

    def __init__(self, doing: str, *, colours: bool) -> None:
        self._doing = doing
        self._colours = colours
        self._next = time.monotonic() + _SHOW_AFTER
        self._bar: Any = None
        self._task: Any = None

    def show(self, step: Any) -> None:
        """Update the bar; may be called at any rate."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SHOW_EVERY
        if self._bar is None:
            from rich.console import Console  # slow to import, and rarely needed
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True, no_color=not self._colours), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._doing, total=None)
        self._bar.update(self._task, completed=min(step.done, step.total), total=step.total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


class Lines:
    """A line every few seconds, without a terminal."""

    def __init__(self, doing: str, say: Callable[[str], None]) -> None:
        self._doing = doing
        self._say = say
        self._last = time.monotonic()

    def show(self, step: Any) -> None:
        """Print the progress if the last line was a while ago."""
        if time.monotonic() - self._last >= _SAY_EVERY:
            self._last = time.monotonic()
            share = min(100, 100 * step.done // max(1, step.total))
            self._say(f"{self._doing} … {share} %")

    def close(self) -> None:
        """Do nothing: the lines stay."""


# -- files

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


def write_file(path: str, pieces: Iterable[bytes], *, force: bool, doing: str = "write the export") -> int:
    """Write a file atomically, readable by this user only, and return its size."""
    refuse_existing(path, force=force)
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces:
            size += len(piece)
            yield piece

    place = os.path.abspath(path)
    fs = PosixFilesystem()
    # An export is made again, so what a killed process left of this one is removed, whatever it holds.
    folder, name = os.path.split(place)
    with storage_failures(path, doing):
        left = [each for each in fs.names(folder) if atomic.target_of(each) == name]
        atomic.sweep(fs, folder, left, cache=True)
        atomic.put_in_place(fs, place, counted(), durable=False, sweeps=False)
    return size


def refuse_existing(path: str, *, force: bool) -> None:
    """Raise if the path is a folder, or an existing file without `force`."""
    if os.path.isdir(path):
        raise Refused("the output is a folder", path=path, hint="pass the name of a file")
    if os.path.lexists(path) and not force:
        raise Refused("the file already exists", path=path, hint="choose another name, or pass --force")


class Pictures:
    """The folder beside an export that holds its images; created with the first one."""

    def __init__(self, export: str) -> None:
        self.folder = f"{os.path.splitext(export)[0]}-images"
        self.count = 0
        self._written: list[str] = []
        self._made_folder = False

    def keep(self, name: str, data: bytes) -> str:
        """Write an image and return its path relative to the export. Names are content hashes, so one copy is enough."""
        path = f"{self.folder}/{name}"
        with storage_failures(path, "write an image"):
            if not os.path.isdir(self.folder):
                os.mkdir(self.folder, _FOLDER_MODE)
                self._made_folder = True
            if not os.path.isfile(path):
                self._written.append(path)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb") as file:
                    file.write(data)
        self.count += 1
        from urllib.parse import quote  # only exports with pictures need it

        return quote(f"{os.path.basename(self.folder)}/{name}")

    def forget(self) -> None:
        """Delete the images, because the export failed."""
        for path in self._written:
            if os.path.lexists(path):
                os.unlink(path)
        if self._made_folder:
            os.rmdir(self.folder)
