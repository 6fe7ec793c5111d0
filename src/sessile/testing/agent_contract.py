"""What every `Format` must do, as numbered behaviours.

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
        """However much of the rest was read with it."""
        first, _, rest = self.sample.partition(b"\n")
        assert rest, "the sample needs several rows"
        assert self.format_.recognises(first + b"\n")
        assert self.format_.recognises(self.sample)

    def test_f02_other_files_are_not(self) -> None:
        """Neither sessions of ours nor anything else; nothing that a file holds is an error."""
        assert not [other for other in (OURS, *JUNK) if self.format_.recognises(other)]

    def test_f03_the_header_is_one_of_ours(self) -> None:
        """Version 3, with an id that is a text."""
        header = self.format_.header(STEM, self.sample)
        assert (header["type"], header["version"]) == ("session", 3)
        assert isinstance(header["id"], str) and header["id"]
        json.dumps(header)

    def test_f04_a_row_is_one_entry_or_several_and_each_has_an_id(self) -> None:
        """No two entries of a file have the same one."""
        ids = [known.head.id for _, known in self._known()]
        assert all(ids) and len(set(ids)) == len(ids)

    def test_f05_the_ids_of_a_row_can_be_had_without_the_rows_before(self) -> None:
        """So an entry is found again by its place."""
        for line, taken in self._taken():
            assert list(self.format_.ids_of(line.raw, line.offset)) == [known.head.id for known in taken]

    def test_f06_a_parent_stands_before_its_children_and_the_leaf_is_an_entry(self) -> None:
        """Or there is none."""
        seen: set[str | None] = {None}
        for _, known in self._known():
            assert known.head.parentId in seen
            seen.add(known.head.id)
        translator = self.format_.translator()
        for line in self._lines():
            translator.take(line)
        assert translator.leaf in seen

    def test_f07_a_translation_can_be_taken_up_behind_any_row(self) -> None:
        """From what was saved there, as JSON."""
        whole = [taken for _, taken in self._taken()]
        for stop in range(len(whole)):
            translator = self.format_.translator()
            lines = list(self._lines())
            begun = [list(translator.take(line)) for line in lines[:stop]]
            later = self.format_.translator(json.loads(json.dumps(translator.saved())))
            assert begun + [list(later.take(line)) for line in lines[stop:]] == whole

    def test_f08_an_entry_says_what_its_head_said(self) -> None:
        """Kind, id and parent, and the role of a message; all of it JSON."""
        for line, known in self._known():
            head = known.head
            entry = self.format_.entry(line.raw, str(head.id), head.parentId, lambda other: None)
            assert (entry["type"], entry["id"], entry["parentId"]) == (head.type, head.id, head.parentId)
            if head.message is not None:
                assert entry["message"]["role"] == head.message.role
            json.dumps(entry)

    def test_f09_a_listing_can_look_at_any_ends(self) -> None:
        """Also where they are torn, or are no rows at all."""
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
