"""The contract of an agent, as numbered behaviours for its tests: of a `Format`, or of an agent that renders its sessions.

class TestBarn(FormatContract):
    format_ = Barn()
    sample = b'{"barn": 1, ...}\\n{"who": "user", ...}\\n'  # a file of that format, with a few rows
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import ClassVar

from sessile.agents.base import Agent, Entry, Format, Known
from sessile.agents.registry import Registry
from sessile.core.ids import sha256
from sessile.core.lines import Finding, Line
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.formats import Stored
from sessile.storage.layout import Source
from sessile.storage.packed import renderer_of

FS = PosixFilesystem()
STEM = "11111111-1111-4111-8111-111111111111"
OURS = b'{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}\n'
JUNK = (b"", b"\n", b"{", b"[]\n", b'"text"\n', b"{}\n", b"\xff\xfe\n", b"\x00" * 64, b'{"type":7}\n')


class FormatContract:
    """The behaviours F01 to F09. Subclasses provide `format_` and `sample`."""

    format_: ClassVar[Format]
    sample: ClassVar[bytes]

    def test_f01_a_file_is_recognised_by_its_first_row(self) -> None:
        """It does not matter how much of the rest is read with it."""
        first, _, rest = self.sample.partition(b"\n")
        assert rest, "the sample needs several rows"
        assert self.format_.recognises(first + b"\n")
        assert self.format_.recognises(self.sample)

    def test_f02_other_files_are_not_recognised(self) -> None:
        """Neither native sessions nor anything else; no content raises."""
        assert not [other for other in (OURS, *JUNK) if self.format_.recognises(other)]

    def test_f03_the_header_is_a_native_one(self) -> None:
        """It has version 3 and a string as id."""
        header = self.format_.header(STEM, self.sample)
        assert (header["type"], header["version"]) == ("session", 3)
        assert isinstance(header["id"], str) and header["id"]
        json.dumps(header)

    def test_f04_a_row_is_one_entry_or_several_and_each_has_an_id(self) -> None:
        """The ids of the entries in a file are unique."""
        ids = [known.head.id for _, known in self._known()]
        assert all(ids) and len(set(ids)) == len(ids)

    def test_f05_ids_do_not_depend_on_earlier_rows(self) -> None:
        """So an entry can be found again by its offset."""
        for line, taken in self._taken():
            assert list(self.format_.ids_of(line.raw, line.offset)) == [known.head.id for known in taken]

    def test_f06_parents_come_before_children_and_the_leaf_is_an_entry(self) -> None:
        """A parent or leaf may also be None."""
        seen: set[str | None] = {None}
        for _, known in self._known():
            assert known.head.parentId in seen
            seen.add(known.head.id)
        translator = self.format_.translator()
        for line in self._lines():
            translator.take(line)
        assert translator.leaf in seen

    def test_f07_a_translation_can_continue_after_any_row(self) -> None:
        """It continues from its saved state, which is JSON."""
        whole = [taken for _, taken in self._taken()]
        for stop in range(len(whole)):
            translator = self.format_.translator()
            lines = list(self._lines())
            begun = [list(translator.take(line)) for line in lines[:stop]]
            later = self.format_.translator(json.loads(json.dumps(translator.saved())))
            assert begun + [list(later.take(line)) for line in lines[stop:]] == whole

    def test_f08_an_entry_agrees_with_its_head(self) -> None:
        """Kind, id, parent and the role of a message are the same, and the entry is JSON."""
        for line, known in self._known():
            head = known.head
            entry = self.format_.entry(line.raw, str(head.id), head.parentId, lambda other: None)
            assert (entry["type"], entry["id"], entry["parentId"]) == (head.type, head.id, head.parentId)
            if head.message is not None:
                assert entry["message"]["role"] == head.message.role
            json.dumps(entry)

    def test_f09_a_glimpse_accepts_any_bytes(self) -> None:
        """The ends of a file may be torn, or not contain any rows."""
        for cut in range(0, len(self.sample), 7):
            self.format_.glimpse(STEM, self.sample[:cut], self.sample[cut:])

    # -- the rows of the sample

    def _lines(self) -> Iterator[Line]:
        scanner = self.format_.scanner(0)
        items = [*scanner.feed(self.sample), *scanner.finish()]
        assert all(isinstance(item, Line) for item in items), "the sample has rows that cannot be read"
        return (item for item in items if isinstance(item, Line))

    def _taken(self) -> Iterator[tuple[Line, list[Known]]]:
        translator = self.format_.translator()
        for line in self._lines():
            taken = list(translator.take(line))
            assert taken, "a row is at least one entry"
            yield line, taken

    def _known(self) -> Iterator[tuple[Line, Known]]:
        return ((line, known) for line, taken in self._taken() for known in taken)


class RenderedContract:
    """The behaviours R01 to R10 of an agent that renders its sessions. Subclasses provide `agent` and `home`.

    class TestMill(RenderedContract):
        agent = Mill()
        home = "fixtures/home"  # a home folder with a few sessions of the agent
    """

    agent: ClassVar[Agent]
    home: ClassVar[str]

    def test_r01_sessions_are_listed_below_their_source(self) -> None:
        """Each has a path of its own."""
        paths = [stored.path for stored in self._stored()]
        assert paths and len(set(paths)) == len(paths)
        assert all(any(path.startswith(f"{source.sessions}/") for source in self._sources()) for path in paths)

    def test_r02_a_listing_that_changes_nothing_is_the_same_again(self) -> None:
        """So only sessions that changed are read again."""
        assert [(stored.path, stored.mark) for stored in self._stored()] == [
            (stored.path, stored.mark) for stored in self._stored()
        ]

    def test_r03_a_session_is_recognised_by_its_path_or_its_first_bytes(self) -> None:
        """Nothing else is; no content raises."""
        for stored in self._stored():
            assert renderer_of(FS, stored.path, Registry([self.agent])) == self.agent.name
        assert not [other for other in (OURS, *JUNK) if self.agent.renders("/x.jsonl", other)]

    def test_r04_a_session_starts_with_a_native_header(self) -> None:
        """It has version 3, an id, and the name of the agent."""
        for records in self._rendered():
            header = records[0]
            assert (header["type"], header["version"], header["format"]) == ("session", 3, self.agent.name)
            assert isinstance(header["id"], str) and header["id"]
            assert isinstance(header.get("cwd", ""), str) and isinstance(header.get("title", ""), str)

    def test_r05_each_entry_has_an_id_of_its_own(self) -> None:
        """What the source replaces is rendered once."""
        for _, *entries in self._rendered():
            ids = [entry["id"] for entry in entries]
            assert all(isinstance(each, str) and each for each in ids) and len(set(ids)) == len(ids)

    def test_r06_parents_come_before_children_and_the_leaf_is_an_entry(self) -> None:
        """A parent may also be None, and the header may name no leaf."""
        for header, *entries in self._rendered():
            seen: set[object] = {None}
            for entry in entries:
                assert entry["parentId"] in seen
                seen.add(entry["id"])
            assert header.get("leaf") in seen

    def test_r07_entries_are_json_and_messages_have_roles(self) -> None:
        """Each entry has a type, and a message a role."""
        for _, *entries in self._rendered():
            for entry in entries:
                assert isinstance(entry["type"], str)
                assert entry["type"] != "message" or isinstance(entry["message"]["role"], str)
                json.dumps(entry)

    def test_r08_rendering_again_gives_the_same(self) -> None:
        """Ids are those of the source, or made from its content."""
        assert self._rendered() == self._rendered()

    def test_r09_what_a_listing_shows_is_what_the_session_says(self) -> None:
        """A look gives the id, project and title of the header."""
        for stored, records in zip(self._stored(), self._rendered(), strict=True):
            seen = None if stored.look is None else stored.look()
            if seen is not None:
                header = records[0]
                assert (seen.id, seen.cwd, seen.title) == (header["id"], header.get("cwd", ""), header.get("title", ""))

    def test_r10_reading_changes_no_file(self) -> None:
        """Not a byte, not a time, and nothing is created."""
        before = _state(self.home)
        self._rendered()
        assert _state(self.home) == before

    # -- the sessions of the home

    def _sources(self) -> list[Source]:
        def names(folder: str) -> list[str]:
            try:
                return FS.names(folder)
            except OSError:
                return []

        found = self.agent.sources(os.path.abspath(self.home), {}, names)
        return [source for source in found if os.path.exists(source.sessions)]

    def _stored(self) -> list[Stored]:
        return [stored for source in self._sources() for stored in self.agent.stored(FS, source.sessions) or ()]

    def _rendered(self) -> list[list[Entry]]:
        return [
            [record for record in self.agent.render(FS, stored.path) if not isinstance(record, Finding)]
            for stored in self._stored()
        ]


def _state(folder: str) -> dict[str, tuple[int, str]]:
    """Return time and content of every file below a folder."""
    found: dict[str, tuple[int, str]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = f"{place}/{name}"
            with open(path, "rb") as file:
                found[path] = os.stat(path).st_mtime_ns, sha256(file.read()).hexdigest()
    return found
