"""The text of `sessions.json`: parsed strictly, changed entry by entry.

Parsing stops at the first error and reports its line and column, because a store that loads as empty after a misplaced
comma would be written back empty. Errors are: invalid JSON (also comments and trailing commas), bytes that are not
UTF-8, an empty file, a duplicate member, and anything but objects below the keys.

Writing replaces the text of changed entries and keeps that of all others, byte for byte. Entries are written as the
owner of the format does: indented by two spaces, without a newline at the end of the file.
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
_HINT = "fix it there; comments, trailing commas and single quotes are not JSON"
_TOO_EARLY = "the file ends too early"
_FIRST, _COLON, _NEXT, _LAST = "{\n  ", ": ", ",\n  ", "\n}"  # the text between the members of a store


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
    """A documented member with an undocumented value: its key, its place and the problem."""

    key: str
    place: Place
    misfit: Misfit


class _Member(NamedTuple):
    """The offsets of a member of an object."""

    name: int
    name_end: int
    value: int
    end: int


class _Object(NamedTuple):
    values: dict[str, Any]
    members: dict[str, _Member]
    end: int


class StoreDocument:
    """The content of a store file: `entries` by key, in file order."""

    def __init__(self, text: str, entries: dict[str, SessionEntry], members: dict[str, _Member]) -> None:
        self.text = text
        self.entries = entries
        self._members = members

    @classmethod
    def empty(cls) -> StoreDocument:
        """Return a store without entries."""
        return parse_store(b"{}")

    @classmethod
    def of(cls, values: Mapping[str, bytes], path: str | None = None) -> StoreDocument:
        """Return a store with these entry texts, byte for byte; raise `BrokenStore` if one is not an entry."""
        members = [f"{_name(key)}{_COLON}".encode() + value for key, value in values.items()]
        return parse_store(_FIRST.encode() + _NEXT.encode().join(members) + _LAST.encode() if members else b"{}", path)

    def oddities(self) -> list[Oddity]:
        """Return documented members with undocumented values. They are never changed."""
        reader = _Reader(self.text, None)
        return [
            Oddity(key, reader.place(reader.object(self._members[key].value).members[misfit.name].value), misfit)
            for key, entry in self.entries.items()
            for misfit in misfits(entry)
        ]

    def with_changes(self, changes: Mapping[str, SessionEntry | None]) -> bytes:
        """Return the file with some entries changed, added, or removed (`None`); all others keep their text."""
        return self.changed(changes).text.encode()

    def changed(self, changes: Mapping[str, SessionEntry | None]) -> StoreDocument:
        """Return the changed document, the same as parsing the changed file would, without parsing it again."""
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
    """Parse entry texts by key, as strictly as a whole store."""
    return StoreDocument.of(values, path).entries


def written_value(key: str, entry: SessionEntry) -> bytes:
    """Return the text of one entry, as the owner of the format writes it."""
    return _written(key, entry)[1].encode()


def parse_store(data: bytes, path: str | None = None) -> StoreDocument:
    """Parse a store file; raise `BrokenStore` with line and column if anything is wrong with it."""
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
        reader.fail("unexpected text after the end of the store", end)
    for key, value in store.values.items():
        if not isinstance(value, dict):
            reader.fail(f"the entry of {key[:80]!r} is not an object", store.members[key].value)
    return StoreDocument(text, {key: SessionEntry(value) for key, value in store.values.items()}, store.members)


class _Reader:
    """Parse an object member by member, to know the place of each; their values are parsed at once."""

    def __init__(self, text: str, path: str | None) -> None:
        self._text = text
        self._path = path
        self._json = json.JSONDecoder(object_pairs_hook=_without_doubles, parse_constant=_refuse)

    def skip(self, at: int) -> int:
        """Return the offset of the next character that is not whitespace."""
        match = _SPACES.match(self._text, at)
        return match.end() if match else at

    def place(self, at: int) -> Place:
        return _place(self._text, at)

    def fail(self, detail: str, at: int) -> NoReturn:
        raise BrokenStore(detail, self.place(at), path=self._path)

    def object(self, at: int) -> _Object:
        """Parse the object at an offset."""
        self._expect("{", at, "expected an object")
        values: dict[str, Any] = {}
        members: dict[str, _Member] = {}
        at = self.skip(at + 1)
        if self._text.startswith("}", at):
            return _Object(values, members, at + 1)
        while True:
            self._expect('"', at, "expected a name in double quotes")
            name, name_end = self._value(at)
            if name in values:
                self.fail(f"duplicate member {name[:80]!r}", at)
            colon = self.skip(name_end)
            self._expect(":", colon, "expected a colon")
            start = self.skip(colon + 1)
            values[name], end = self._value(start)
            members[name] = _Member(at, name_end, start, end)
            at = self.skip(end)
            if self._text.startswith("}", at):
                return _Object(values, members, at + 1)
            self._expect(",", at, "expected a comma or the end of the object")
            at = self.skip(at + 1)

    def _expect(self, char: str, at: int, complaint: str) -> None:
        if not self._text.startswith(char, at):
            self.fail(complaint if at < len(self._text) else _TOO_EARLY, at)

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return self._json.raw_decode(self._text, at)
        except ValueError as error:
            if self._text.startswith("{", at):
                self.object(at)  # reports the same place in every Python release
            if isinstance(error, json.JSONDecodeError):
                self.fail(error.msg if error.pos < len(self._text) else _TOO_EARLY, error.pos)
            self.fail(str(error), at)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate member in an object")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _place(text: str, at: int) -> Place:
    return Place(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _written(key: str, entry: SessionEntry) -> tuple[str, str]:
    """Return the name and value of one member of the store, as the owner of the format writes them."""
    try:
        text = json.dumps(plain(entry.members).value, ensure_ascii=False, allow_nan=False, indent=2)
    except (TypeError, ValueError) as error:
        raise InvalidEntry(f"cannot write the entry of {key[:80]!r} as JSON: {error}") from error
    # The only raw newlines are those between members: indent them as part of the outer object.
    return _name(key), _encodable(text.replace("\n", "\n  "))


def _name(key: str) -> str:
    return _encodable(json.dumps(key, ensure_ascii=False))


def _encodable(text: str) -> str:
    """Write lone surrogates, which cannot be encoded, as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace").decode()
