"""The way out: data on stdout, everything else on stderr; for a person at a terminal, a program at a pipe, or a screen reader.

    terminal   colours, relative times, lines cut to the width, a pager for what is longer than the screen
    pipe       no colours, nothing cut, tabs between columns, ISO times, whole ids
    --json     one document with a schema and its version, or lines of documents for streams
    --plain    words instead of glyphs and columns

Environment variables choose, too (`core/variables` lists them). Meaning is never in a colour alone. Stored text has been made
visible before it comes here, because that changes its width; all that leaves is made so again.

Tables at a terminal: columns that fit, whatever is in them and however narrow it is.

What gives way first is the wide column, then those that may be cut, down to a least width each. Where that is not enough,
the texts of a row stand below its numbers; where these do not fit either, a row is told in words. Numbers are never cut.

Progress of work that takes long, on stderr: a bar at a terminal, now and then a line elsewhere.

Files that a verb writes for somebody: whole or not at all, and for nobody else to read.

It does not know what is in them.
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
from typing import Any, NamedTuple

import msgspec

from sessile import errors
from sessile.core.visible import cut, visible, visible_json, visible_line, width
from sessile.errors import Refused, storage_failures
from sessile.render.styled import Line, Span, Style, wrapped_line

# --- table

_BETWEEN = 2  # columns of the terminal between two of the table
_ENOUGH = 28  # columns that a wide one keeps as long as others can give way
_LEAST = 12  # columns that one must have that is cut
_BELOW = "    "


class Column(NamedTuple):
    """A column of a table; a wide one takes the room that the others leave, a soft one may be cut too."""

    name: str
    right: bool = False
    wide: bool = False
    soft: bool = False


class Cell(NamedTuple):
    """What stands in a table: for a person, and for a program where that differs."""

    text: str
    style: Style = "plain"
    value: str | None = None


def in_words(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    """A row as a sentence, for who cannot see columns."""
    return "; ".join(f"{column.name}: {visible_line(cell.text)}" for column, cell in zip(columns, row, strict=True))


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int) -> Iterator[Line]:
    """The lines of a table, its heads first; none if it has no rows."""
    if not rows:
        return
    heads = [Cell(column.name, "dim") for column in columns]
    shown = [heads, *([cell._replace(text=visible_line(cell.text)) for cell in row] for row in rows)]
    widths = [max(width(row[number].text) for row in shown) for number in range(len(columns))]
    _narrow(columns, widths, room)
    texts = [number for number, column in enumerate(columns) if column.wide or column.soft]
    if _taken(widths) <= room:
        yield from (_line(columns, row, widths) for row in shown)
        return
    others = [number for number in range(len(columns)) if number not in texts]
    if not texts or _taken([widths[number] for number in others]) > room:
        for row in rows:
            yield from wrapped_line((Span(in_words(columns, row)),), room)
        return
    for row in shown:
        yield _line([columns[n] for n in others], [row[n] for n in others], [widths[n] for n in others])
        if row is not heads:
            for number in sorted(texts, key=lambda number: not columns[number].wide):
                if row[number].text:
                    yield (Span(_BELOW + cut(row[number].text, room - len(_BELOW)), row[number].style),)


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1)


def _narrow(columns: Sequence[Column], widths: list[int], room: int) -> None:
    """Cut columns until they fit, or cannot be cut any more."""
    wide = [number for number, column in enumerate(columns) if column.wide]
    soft = [number for number, column in enumerate(columns) if column.soft]
    for numbers, least in ((wide, _ENOUGH), (soft, _LEAST), (wide, _LEAST)):
        while (over := _taken(widths) - room) > 0 and numbers:
            widest = max(numbers, key=lambda number: widths[number])
            if widths[widest] <= least:
                break
            rest = max((widths[number] for number in numbers if number != widest), default=least)
            # The widest gives way until it is as wide as the next one; then both do.
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


# --- progress

_SHOW_AFTER = 0.4  # seconds: what is faster needs no bar
_SHOW_EVERY = 0.05  # seconds: nobody sees more
_SAY_EVERY = 5.0  # seconds, where there is no terminal


class Step(NamedTuple):
    """How far something is."""

    done: int
    total: int


class Bar:
    """A bar on a terminal, from the moment when somebody may wonder."""

    def __init__(self, doing: str, *, colours: bool) -> None:
        self._doing = doing
        self._colours = colours
        self._next = time.monotonic() + _SHOW_AFTER
        self._bar: Any = None
        self._task: Any = None

    def show(self, step: Any) -> None:
        """Show how far it is; called as often as one likes."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SHOW_EVERY
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True, no_color=not self._colours), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._doing, total=None)
        self._bar.update(self._task, completed=step.done, total=step.total)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


class Lines:
    """A line now and then, where there is no terminal."""

    def __init__(self, doing: str, say: Callable[[str], None]) -> None:
        self._doing = doing
        self._say = say
        self._last = time.monotonic()

    def show(self, step: Any) -> None:
        """Say how far it is, if it has been quiet for long."""
        if time.monotonic() - self._last >= _SAY_EVERY:
            self._last = time.monotonic()
            share = 100 * step.done // max(1, step.total)
            self._say(f"{self._doing} … {share} %")

    def close(self) -> None:
        """There is nothing to take away."""


# --- output

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
_HINTS = {  # by exit code, for errors that know none better
    2: "sessile help VERB shows how it is used",
    3: "sessile ls shows what there is",
    5: "sessile check says what is wrong with a file",
    6: "another program is at work; try again in a moment",
    8: "check the folder, its permissions and the room on the disk",
}
_NARROWEST = 40
_TOLD = 100  # columns of a title in a list of candidates


class Output:
    """Where a verb puts what it has to say."""

    def __init__(self, *, json: bool, plain: bool, color: str, pager: bool, zone: str | None) -> None:
        self.json = json
        self.plain = plain or os.environ.get("SESSILE_PLAIN") == "1"
        self._color = color
        self._pager = pager
        self._zone = zone

    # -- what is at the other end

    @cached_property
    def is_terminal(self) -> bool:
        """Whether a person looks at stdout."""
        return sys.stdout.isatty()

    @cached_property
    def colours(self) -> bool:
        """Whether to use colours."""
        if self._color != "auto":
            return self._color == "always"
        if os.environ.get("FORCE_COLOR"):
            return True
        dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or self.plain
        return self.is_terminal and not dull

    @cached_property
    def columns(self) -> int | None:
        """The width of the terminal; `None` at a pipe, where nothing is cut or wrapped."""
        return max(_screen().columns, _NARROWEST) if self.is_terminal else None

    @cached_property
    def zone(self) -> tzinfo:
        """The time zone in which times are told."""
        if self._zone is None:
            return datetime.now().astimezone().tzinfo or UTC
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(self._zone)
        except (KeyError, ValueError, OSError) as error:
            raise errors.Invalid(
                f"there is no time zone {self._zone!r}", hint="such as Europe/Berlin or UTC"
            ) from error

    # -- text

    def line(self, text: str = "", style: Style = "plain") -> None:
        """One line of data."""
        self.lines([(Span(text, style),)])

    def lines(self, lines: Iterable[Line]) -> None:
        """Lines of data."""
        for line in lines:
            sys.stdout.write(self._styled(line) + "\n")

    def page(self, lines: Iterable[Line]) -> None:
        """Lines of data, in a pager if there are more than the screen holds."""
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
        import shlex
        import shutil

        wanted = next(
            (value for name in ("SESSILE_PAGER", "PAGER") if (value := os.environ.get(name)) is not None), None
        )
        command = shlex.split(wanted if wanted is not None else "less -FRX")
        return command if command and command != ["cat"] and shutil.which(command[0]) else None

    def _feed(self, command: Sequence[str], lines: Iterable[Line]) -> None:
        """Give the lines to the pager until it has enough."""
        import subprocess

        with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "LESSCHARSET": "utf-8"}) as pager:
            assert pager.stdin is not None
            try:
                for line in lines:
                    pager.stdin.write((self._styled(line) + "\n").encode("utf-8", "replace"))
                pager.stdin.close()
            except BrokenPipeError:
                pass  # somebody pressed q
            except KeyboardInterrupt:
                pass  # the pager got it too, and decides

    def _styled(self, line: Line) -> str:
        """A line as it is written. Whoever made it has made it visible; this is the last door, and looks again."""
        if not self.colours:
            return visible("".join(span.text for span in line))
        pieces = []
        for span in line:
            code, text = _STYLES.get(span.style), visible(span.text)
            pieces.append(f"\x1b[{code}m{text}\x1b[0m" if code and text else text)
        return "".join(pieces)

    # -- tables

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, header: bool = False) -> None:
        """Rows of a table: aligned at a terminal, with tabs at a pipe, in words for a screen reader."""
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
        """One JSON document; its items are written one by one, so that there may be any number of them."""
        sys.stdout.flush()
        write = sys.stdout.buffer.write
        write(b'{"schema":' + _encoded(f"sessile.{schema}"))
        if items is not None:
            write(b',"items":[')
            for number, item in enumerate(items):
                write((b",\n" if number else b"\n") + _encoded(item))
            write(b"]")
        # What is known only when all items are written, such as what was hidden, comes behind them.
        for name, value in members.items():
            # A list is encoded item by item: one that needs escapes does not slow down the others.
            encoded = b"[" + b",".join(map(_encoded, value)) + b"]" if isinstance(value, list) else _encoded(value)
            write(b"," + _encoded(name) + b":" + encoded)
        write(b"}\n")
        sys.stdout.buffer.flush()

    def record(self, schema: str, record: Mapping[str, Any]) -> None:
        """One JSON document on a line of its own, at once."""
        sys.stdout.flush()
        sys.stdout.buffer.write(_encoded({"schema": f"sessile.{schema}", **record}) + b"\n")
        sys.stdout.buffer.flush()

    # -- times

    def moment(self, milliseconds: int | None) -> Cell:
        """A time: how long ago for a person, with its zone for a program."""
        if milliseconds is None:
            return Cell("?", "dim", "")
        return Cell(ago(milliseconds, int(time.time() * 1000)), "dim", self.iso(milliseconds))

    def iso(self, milliseconds: int | None) -> str | None:
        """A time as programs read it, in the chosen zone."""
        if milliseconds is None:
            return None
        try:
            moment = datetime.fromtimestamp(milliseconds / 1000, self.zone)
        except (OverflowError, ValueError, OSError):
            return None  # no calendar has that year
        return moment.isoformat(timespec="milliseconds")

    # -- everything else

    def note(self, text: str, style: Style = "dim") -> None:
        """Something that a person should know, on stderr."""
        text = visible(text)
        code = _STYLES.get(style) if self.colours and sys.stderr.isatty() else None
        sys.stdout.flush()
        sys.stderr.write(f"\x1b[{code}m{text}\x1b[0m\n" if code else f"{text}\n")

    def hidden(self, hidden: Mapping[str, int], show: str) -> None:
        """Say what a filter hides, and how to see it."""
        if hidden and not self.json:
            reasons = ", ".join(f"{count} {reason.replace('_', '-')}" for reason, count in hidden.items())
            self.note(f"… {sum(hidden.values())} hidden ({reasons}). Show: {show}")

    def fail(self, error: errors.SessileError, *, command: str = "sessile") -> int:
        """Say what went wrong, and what can be done; the exit code. Hints name verbs, which are said as `command` has them."""
        candidates = error.candidates if isinstance(error, errors.Ambiguous) else ()
        hint = _VERB.sub(f"{command} ", error.hint or _HINTS.get(error.exit_code) or "") or None
        if self.json:
            told = {"kind": _kind(error), "message": error.message, "path": error.path, "hint": hint}
            report = {"schema": "sessile.error/1", "error": {**told, "candidates": list(candidates)}}
            sys.stderr.write(_encoded(report).decode() + "\n")
            return error.exit_code
        where = f" ({error.path})" if error.path else ""
        self.note(f"sessile: {error.message}{where}", "failed")
        for candidate in candidates:
            names = (candidate[name] or "" for name in ("id", "title", "project") if name in candidate)
            self.note("  " + "  ".join(cut(visible_line(name), _TOLD) for name in names), "plain")
        if hint:
            self.note(f"hint: {hint}")
        return error.exit_code

    @contextmanager
    def progress(self, doing: str) -> Iterator[Callable[[Any], None]]:
        """A bar for work that takes long; gives what to call with each `Progress`."""
        dull = self.plain or os.environ.get("TERM") == "dumb"
        if sys.stderr.isatty() and not dull:
            bar: Bar | Lines = Bar(doing, colours=self.colours)
        else:
            bar = Lines(doing, self.note)
        try:
            yield bar.show
        finally:
            bar.close()


def _screen() -> os.terminal_size:
    """The size of the terminal; only a terminal is asked for it."""
    import shutil

    return shutil.get_terminal_size()


def ago(then: int, now: int) -> str:
    """How long ago something was, in the largest unit that fits."""
    seconds = (now - then) // 1000
    if seconds < 0:
        return "in the future"
    for unit, size in (("y", 31_557_600), ("mo", 2_629_800), ("w", 604_800), ("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def size_of(count: int | None) -> str:
    """A number of bytes as people say it."""
    if count is None:
        return "?"
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def money(dollars: float | None) -> str:
    """A cost; an unknown one is not nothing."""
    if dollars is None:
        return "n/a"
    return f"${dollars:.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.4f}"


def _encoded(value: Any) -> bytes:
    """JSON on one line. Lone surrogates, which UTF-8 does not have, and what drives terminals become escapes."""
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


# --- files

_FOLDER, _FILE = 0o700, 0o600


def write_file(path: str, pieces: Iterable[bytes], *, force: bool, doing: str = "write the export") -> int:
    """Write beside the target and rename, so that nobody sees half of it; the number of bytes."""
    refuse_existing(path, force=force)
    temporary = f"{path}.{os.getpid()}.tmp"
    size = 0
    with storage_failures(path, doing):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE)
        try:
            with open(fd, "wb") as file:
                for piece in pieces:
                    size += file.write(piece)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return size


def refuse_existing(path: str, *, force: bool) -> None:
    """Do not write over a file, unless somebody wants that; never over a folder."""
    if os.path.isdir(path):
        raise Refused("there is a folder of that name", path=path, hint="say the name of a file")
    if os.path.lexists(path) and not force:
        raise Refused("there is a file of that name already", path=path, hint="choose another name, or say --force")


class Pictures:
    """The folder beside an export that its pictures go to; it is made with the first of them."""

    def __init__(self, export: str) -> None:
        self.folder = f"{os.path.splitext(export)[0]}-images"
        self.count = 0
        self._made: list[str] = []
        self._made_folder = False

    def keep(self, name: str, data: bytes) -> str:
        """Write a picture; where it lies, as the export names it. Its name is that of its content: one is enough."""
        path = f"{self.folder}/{name}"
        with storage_failures(path, "write a picture"):
            if not os.path.isdir(self.folder):
                os.mkdir(self.folder, _FOLDER)
                self._made_folder = True
            if not os.path.isfile(path):
                self._made.append(path)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE), "wb") as file:
                    file.write(data)
        self.count += 1
        from urllib.parse import quote  # only exports with pictures need it

        return quote(f"{os.path.basename(self.folder)}/{name}")

    def forget(self) -> None:
        """Take back what was written, because the export was not."""
        for path in self._made:
            if os.path.lexists(path):
                os.unlink(path)
        if self._made_folder:
            os.rmdir(self.folder)
