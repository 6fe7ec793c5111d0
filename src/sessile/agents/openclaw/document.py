"""The text of `sessions.json`: read strictly, changed entry by entry.

Reading stops at the first thing that is wrong and says in which line and column: a store that loads as empty because of a
comma is written back empty. Wrong is: no JSON, not UTF-8, nothing at all, a member twice in one object, anything but objects
below the keys. Comments and trailing commas are no JSON either.

Writing replaces the text of the entries that changed and keeps that of all others, byte for byte: their numbers, unknown
members and spelling. Entries are written as their owner writes them: two spaces, no newline at the end of the file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from sessile.agents.openclaw.entries import Misfit, SessionEntry, misfits
from sessile.core.codec import plain
from sessile.errors import Damaged, InvalidEntry

_SPACES = re.compile(r"[ \t\r\n]*")
_HINT = "mend it there; comments, trailing commas and single quotes are no JSON"
_TOO_EARLY = "the file ends too early"
_FIRST, _COLON, _NEXT, _LAST = "{\n  ", ": ", ",\n  ", "\n}"  # what stands between the members of a store


class Place(NamedTuple):
    """A line and a column of a text, both from 1."""

    line: int
    column: int


class BrokenStore(Damaged):
    """The store file is broken."""

    def __init__(self, detail: str, place: Place, *, path: str | None = None, hint: str = _HINT) -> None:
        super().__init__(
            f"the store is broken at line {place.line}, column {place.column}: {detail}", path=path, hint=hint
        )
        self.detail = detail
        self.place = place


class Oddity(NamedTuple):
    """A documented member with an undocumented value: whose, where, and what is odd."""

    key: str
    place: Place
    misfit: Misfit


class _Member(NamedTuple):
    """Where a member of an object lies."""

    name: int
    name_end: int
    value: int
    end: int


class _Object(NamedTuple):
    values: dict[str, Any]
    members: dict[str, _Member]
    end: int


class StoreDocument:
    """The whole of a store file: `entries` by key, in the order of the file."""

    def __init__(self, text: str, entries: dict[str, SessionEntry], members: dict[str, _Member]) -> None:
        self.text = text
        self.entries = entries
        self._members = members

    @classmethod
    def empty(cls) -> StoreDocument:
        """A store without entries."""
        return parse_store(b"{}")

    @classmethod
    def of(cls, values: Mapping[str, bytes], path: str | None = None) -> StoreDocument:
        """A store with these texts of entries, byte for byte; raises `BrokenStore` if one of them is no entry."""
        members = [f"{_name(key)}{_COLON}".encode() + value for key, value in values.items()]
        return parse_store(_FIRST.encode() + _NEXT.encode().join(members) + _LAST.encode() if members else b"{}", path)

    def oddities(self) -> list[Oddity]:
        """Documented members with undocumented values. They stay as they are."""
        reader = _Reader(self.text, None)
        return [
            Oddity(key, reader.place(reader.object(self._members[key].value).members[misfit.name].value), misfit)
            for key, entry in self.entries.items()
            for misfit in misfits(entry)
        ]

    def with_changes(self, changes: Mapping[str, SessionEntry | None]) -> bytes:
        """The file with some entries changed, added, or with `None` removed; all others keep their text."""
        return self.changed(changes).text.encode()

    def changed(self, changes: Mapping[str, SessionEntry | None]) -> StoreDocument:
        """The same as a document: what reading the changed file would give, without reading the rest of it again."""
        pieces: list[str] = []
        entries: dict[str, SessionEntry] = {}
        members: dict[str, _Member] = {}
        at = len(_FIRST)
        new = {key: entry for key, entry in changes.items() if key not in self._members}
        for key, member in (*self._members.items(), *((key, None) for key in new)):
            if key not in changes and member is not None:
                name, value = self.text[member.name : member.name_end], self.text[member.value : member.end]
                entries[key] = self.entries[key]
            elif (entry := changes[key]) is not None:
                name, value = _written(key, entry)
                entries[key] = SessionEntry(json.loads(value))  # as it will be read
            else:
                continue
            start = at + len(name) + len(_COLON)
            members[key] = _Member(at, at + len(name), start, start + len(value))
            pieces.append(f"{name}{_COLON}{value}")
            at = start + len(value) + len(_NEXT)
        text = _FIRST + _NEXT.join(pieces) + _LAST if pieces else "{}"
        if self.text.endswith("\n"):
            text += "\n"
        return StoreDocument(text, entries, members)


def parse_members(values: Mapping[str, bytes], path: str | None = None) -> dict[str, SessionEntry]:
    """The entries in texts by key, each read as strictly as a whole store."""
    return StoreDocument.of(values, path).entries


def written_value(key: str, entry: SessionEntry) -> bytes:
    """The text of one entry, as its owner writes it."""
    return _written(key, entry)[1].encode()


def parse_store(data: bytes, path: str | None = None) -> StoreDocument:
    """The content of a store file; raises `BrokenStore`, which names line and column, if anything is wrong with it."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        raise BrokenStore("bytes that are not UTF-8", _place(before, len(before)), path=path) from error
    reader = _Reader(text, path)
    start = reader.skip(0)
    if start == len(text):
        reader.fail("the file is empty", 0)
    try:
        store = reader.object(start)
    except RecursionError:
        reader.fail("nested too deeply", start)
    end = reader.skip(store.end)
    if end < len(text):
        reader.fail("something follows the end of the store", end)
    for key, value in store.values.items():
        if not isinstance(value, dict):
            reader.fail(f"the entry of {key[:80]!r} is no object", store.members[key].value)
    return StoreDocument(text, {key: SessionEntry(value) for key, value in store.values.items()}, store.members)


class _Reader:
    """Reads an object member by member, so that the place of each is known; what they hold is read at once."""

    def __init__(self, text: str, path: str | None) -> None:
        self._text = text
        self._path = path
        self._json = json.JSONDecoder(object_pairs_hook=_without_doubles, parse_constant=_refuse)

    def skip(self, at: int) -> int:
        """The place of the next character that is no space."""
        match = _SPACES.match(self._text, at)
        return match.end() if match else at

    def place(self, at: int) -> Place:
        return _place(self._text, at)

    def fail(self, detail: str, at: int) -> NoReturn:
        raise BrokenStore(detail, self.place(at), path=self._path)

    def object(self, at: int) -> _Object:
        """The object that begins at a place."""
        self._expect("{", at, "an object is expected")
        values: dict[str, Any] = {}
        members: dict[str, _Member] = {}
        at = self.skip(at + 1)
        if self._text.startswith("}", at):
            return _Object(values, members, at + 1)
        while True:
            self._expect('"', at, "a name in double quotes is expected")
            name, name_end = self._value(at)
            if name in values:
                self.fail(f"{name[:80]!r} stands here for the second time", at)
            colon = self.skip(name_end)
            self._expect(":", colon, "a colon is expected")
            start = self.skip(colon + 1)
            values[name], end = self._value(start)
            members[name] = _Member(at, name_end, start, end)
            at = self.skip(end)
            if self._text.startswith("}", at):
                return _Object(values, members, at + 1)
            self._expect(",", at, "a comma or the end of the object is expected")
            at = self.skip(at + 1)

    def _expect(self, char: str, at: int, complaint: str) -> None:
        if not self._text.startswith(char, at):
            self.fail(complaint if at < len(self._text) else _TOO_EARLY, at)

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return self._json.raw_decode(self._text, at)
        except ValueError as error:
            if self._text.startswith("{", at):
                self.object(at)  # says where, the same in every release of Python
            if isinstance(error, json.JSONDecodeError):
                self.fail(error.msg if error.pos < len(self._text) else _TOO_EARLY, error.pos)
            self.fail(str(error), at)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has two members of one name")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _place(text: str, at: int) -> Place:
    return Place(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _written(key: str, entry: SessionEntry) -> tuple[str, str]:
    """The name and the value of one member of the store, as its owner writes them."""
    try:
        text = json.dumps(plain(entry.members).value, ensure_ascii=False, allow_nan=False, indent=2)
    except (TypeError, ValueError) as error:
        raise InvalidEntry(f"the entry of {key[:80]!r} cannot be written as JSON: {error}") from error
    # The only raw newlines are those between members: they get the indentation of the outer object.
    return _name(key), _encodable(text.replace("\n", "\n  "))


def _name(key: str) -> str:
    return _encodable(json.dumps(key, ensure_ascii=False))


def _encodable(text: str) -> str:
    """A text in which lone surrogates, which alone cannot be encoded, are written as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace").decode()
