"""Transcripts of any size are listed by their ends, and read and written in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_rows import STAMP, user
from claude_trees import SESSION, lines, row
from sessile.agents.claude.paths import Current, slug
from sessile.agents.claude.sdk import ClaudeSessions
from sessile.agents.claude.transcript import Transcript
from sessile.agents.claude.transcript_file import MAX_TOMBSTONE_REWRITE_BYTES
from sessile.storage.filesystem import PosixFilesystem

pytestmark = pytest.mark.mission("C12")

MB = 1 << 20
GB = 1 << 30
FIRST = [row("user", "first", cwd="/w"), row("assistant", "second", "first")]
LAST = [row("user", "third", "second"), row("assistant", "fourth", "third")]


class CountingFilesystem(PosixFilesystem):
    """Counts the bytes that are read."""

    count = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        self.count += len(data)
        return data


def path_in(home: Path) -> Path:
    path = home / "projects" / slug("/w") / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def with_hole(home: Path, size: int) -> Path:
    """Return a conversation with a hole in the middle, as a crash leaves it; the hole takes no disk space."""
    path = path_in(home)
    with path.open("wb") as file:
        file.write(lines(FIRST))
        file.truncate(size)
        file.seek(size)
        file.write(b"\n" + lines(LAST))
    return path


def with_many_rows(home: Path, size: int) -> Path:
    """Return a long conversation, each row with some text."""
    path = path_in(home)
    parent = None
    with path.open("wb") as file:
        number = 0
        while file.tell() < size:
            rows = []
            for _ in range(500):
                name = f"{number:08x}-0000-4000-8000-000000000000"
                kind = "assistant" if number % 2 else "user"
                said = {"role": kind, "content": [{"type": "text", "text": "x" * 4000}]}
                rows.append(row(kind, name, parent, message=said))
                parent = name
                number += 1
            file.write(lines(rows))
    return path


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of a call, and its peak memory."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_two_gigabytes_are_listed_by_reading_two_windows(tmp_path: Path) -> None:
    """A listing reads 64 KB at each end, whatever the size of the file."""
    with_hole(tmp_path, 2 * GB)
    fs = CountingFilesystem()
    (info,) = ClaudeSessions(fs, str(tmp_path)).list_sessions()
    assert (info.first_prompt, info.cwd, info.file_size > 2 * GB) == ("first", "/w", True)
    assert fs.count == 2 * 65_536
    assert ClaudeSessions(fs, str(tmp_path)).get_session_info(SESSION) == info


@pytest.mark.long
def test_two_gigabytes_with_a_hole_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """The hole is skipped chunk by chunk, and the messages before and after it are one conversation."""
    with_hole(tmp_path, 2 * GB)
    sessions = ClaudeSessions(PosixFilesystem(), str(tmp_path))
    messages, peak = peak_of(lambda: sessions.get_session_messages(SESSION))
    assert [message.uuid for message in messages] == ["first", "second", "third", "fourth"]
    assert peak < 16 * MB


def test_a_hole_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    """A hole of 200 MB takes no more memory than one chunk."""
    with_hole(tmp_path, 200 * MB)
    sessions = ClaudeSessions(PosixFilesystem(), str(tmp_path))
    messages, peak = peak_of(lambda: sessions.get_session_messages(SESSION))
    assert [message.uuid for message in messages] == ["first", "second", "third", "fourth"]
    assert peak < 16 * MB


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a config home with a transcript that is larger than others accept."""
    home = tmp_path_factory.mktemp("large")
    path = with_many_rows(home, MAX_TOMBSTONE_REWRITE_BYTES + 10 * MB)
    yield home
    path.unlink()


def test_a_page_of_a_file_over_fifty_megabytes_is_read_in_bounded_memory(large: Path) -> None:
    """No size is refused; a page decodes only its own rows, and the heads of all rows are small."""
    sessions = ClaudeSessions(PosixFilesystem(), str(large))
    page, peak = peak_of(lambda: sessions.get_session_messages(SESSION, limit=3, offset=5))
    assert [int(message.uuid[:8], 16) for message in page] == [5, 6, 7]
    assert peak < 16 * MB


def test_the_first_record_of_a_large_file_scans_it_once_in_bounded_memory(large: Path) -> None:
    """Appending needs the uuids in the file: they are read once, then only what is new."""
    fs = CountingFilesystem()
    size = path_in(large).stat().st_size
    writer = Transcript(fs, str(large), str(large / "ours"), Current(SESSION, "/w"), stamp=STAMP, power=False)
    last = f"{0:08x}-0000-4000-8000-000000000000"
    parent, peak = peak_of(lambda: writer.record_transcript([{**user("x"), "uuid": last}, user("new-1")]))
    assert parent == user("new-1")["uuid"]
    assert size <= fs.count < size + 2 * MB
    assert peak < 16 * MB
    fs.count = 0
    writer.record_transcript([user("new-1"), user("new-2")])
    assert fs.count < 4096
    with path_in(large).open("rb") as file:
        file.seek(-4096, 2)
        rows = [json.loads(line) for line in file.read().split(b"\n")[1:-1]]
    assert [each["parentUuid"] for each in rows[-2:]] == [last, user("new-1")["uuid"]]


def test_a_note_on_a_large_file_reads_next_to_nothing(large: Path) -> None:
    """A title or a queue operation is appended without reading the file."""
    fs = CountingFilesystem()
    writer = Transcript(fs, str(large), str(large / "ours"), Current(SESSION, "/w"), stamp=STAMP, power=False)
    writer.set_title("Named")
    writer.insert_queue_operation("enqueue", "later")
    writer.close()
    assert fs.count < 4096
