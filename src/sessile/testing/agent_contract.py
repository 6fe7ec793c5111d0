"""The contract of a `Format`, as numbered behaviours for the tests of an agent.

class TestBarn(FormatContract):
    format_ = Barn()
    sample = b'{"barn": 1, ...}\\n{"who": "user", ...}\\n'  # a file of that format, with a few rows
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from sessile.agents.base import Format, Known
from sessile.core.lines import Line

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
