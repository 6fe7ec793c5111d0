"""Derived data is never believed over the journal, and no append is acknowledged onto a damaged file."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from figures import measured
from sessile import Receipt, Session, Store
from sessile.errors import LeafMoved, SessileError, SessionNotFound
from sessile.storage import index as index_module
from sessile.storage.reader import JournalReader

N = 100


def made(root: Path, count: int = N) -> str:
    """Make a session with an index, close it, and return its path."""
    with Store(root).create("/w") as session:
        for number in range(count):
            session.append_message({"role": "user", "content": f"question {number}"})
            session.append_message(
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": f"answer {number}"}],
                    "provider": "anthropic",
                    "model": "model-aaaa",
                }
            )
        session.context()
        path = session.path
    with Store(root).open(path, readonly=True) as session:
        session.context()
    return path


def told(session: Session) -> object:
    """Return everything that comes from the index."""
    context = session.context()
    return (
        context.messages,
        context.models,
        [(entry.id, entry.parent_id) for entry in session.get_entries()],
        session.get_state(session.get_entries()[20].id),
        session.get_labels(),
        session.title,
        session.leaf_id,
        session.count_entries(),
        [finding.code for finding in session.findings],
    )


def truth(path: str, folder: Path) -> object:
    """Return what a store without any cache says about a copy of the file."""
    copy = folder / "bare" / "sessions" / "--w--"
    copy.mkdir(parents=True, exist_ok=True)
    name = shutil.copy(path, copy)
    with Store(folder / "bare", cache=None).open(str(name), readonly=True) as session:
        return told(session)


def edit_in_place(path: str, old: bytes, new: bytes, *, restore_time: bool) -> None:
    """Change bytes of a file without changing its size."""
    assert len(old) == len(new)
    status = os.stat(path)
    with open(path, "r+b") as file:
        data = file.read()
        assert old in data
        file.seek(0)
        file.write(data.replace(old, new))
    if restore_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def parents(path: str) -> list[bytes]:
    """Return the ids of the file, in order."""
    lines = Path(path).read_bytes().splitlines()[1:]
    return [line.split(b'"id":"')[1][:8] for line in lines]


def other_model(path: str) -> tuple[bytes, bytes]:
    """Change the model of the first answers only: the last bytes of the file stay."""
    start = Path(path).read_bytes()[:10_000]
    return start, start.replace(b"model-aaaa", b"model-bbbb")


def other_parent(path: str) -> tuple[bytes, bytes]:
    ids = parents(path)
    return b'"parentId":"%b"' % ids[149], b'"parentId":"%b"' % ids[20]


def missing_parent(path: str) -> tuple[bytes, bytes]:
    return b'"parentId":"%b"' % parents(path)[149], b'"parentId":"zzzzzzzz"'


@pytest.mark.promise("P45")
@pytest.mark.parametrize("restore_time", [False, True], ids=["new time", "old time"])
@pytest.mark.parametrize("change", [other_model, other_parent, missing_parent])
@pytest.mark.parametrize("append", [False, True], ids=["read", "appended first"])
def test_an_edit_of_the_same_size_shows(
    tmp_path: Path, change: Callable[[str], tuple[bytes, bytes]], restore_time: bool, append: bool
) -> None:
    """A closed session that was edited in place is read as it is now, with its findings."""
    path = made(tmp_path / "root")
    edit_in_place(path, *change(path), restore_time=restore_time)
    if append:
        with Store(tmp_path / "root").open(path) as session:
            session.append_message({"role": "user", "content": "one more"})
    with Store(tmp_path / "root").open(path, readonly=True) as session:
        answer = told(session)
    assert answer == truth(path, tmp_path)
    if change is missing_parent:
        assert "missing_parent" in answer[-1]  # type: ignore[index]


@pytest.mark.promise("P45")
def test_a_file_that_gets_its_old_inode_back_is_read_again(tmp_path: Path) -> None:
    """`sed -i` writes a new file and renames it; the second time, the old inode number is often used again."""
    path = made(tmp_path / "root")
    for number in range(10):
        data = Path(path).read_bytes()
        Path(path + ".new").write_bytes(data.replace(b"model-aaaa", b"model-%04d" % number))
        os.replace(path + ".new", path)
        with Store(tmp_path / "root").open(path, readonly=True) as session:
            assert told(session) == truth(path, tmp_path)
        Path(path + ".new").write_bytes(data)
        os.replace(path + ".new", path)
        with Store(tmp_path / "root").open(path, readonly=True) as session:
            assert told(session) == truth(path, tmp_path)


@pytest.mark.promise("P45")
def test_an_open_view_notices_an_edit(tmp_path: Path) -> None:
    """A handle that stays open compares the file with what it has read."""
    path = made(tmp_path / "root")
    with Store(tmp_path / "root").open(path, readonly=True) as session:
        session.context()
        edit_in_place(path, *other_parent(path), restore_time=True)
        rows = [(entry.id, entry.parent_id) for entry in session.get_entries()]
    with Store(tmp_path / "root", cache=None).open(path, readonly=True) as session:
        assert rows == [(entry.id, entry.parent_id) for entry in session.get_entries()]


@pytest.mark.promise("P45")
def test_a_coarse_clock_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two changes can have the same time, a stamp taken right after a change does not count."""
    path = made(tmp_path / "root")
    (index,) = (tmp_path / "root" / "cache" / "index").glob("*/*")
    stamp = index.read_bytes()[16:64]
    assert stamp[40] == 1  # settled
    fields = bytearray(stamp[:44])
    fields[40] = 0
    with open(index, "r+b") as file:
        file.seek(16)
        file.write(fields + zlib.crc32(fields).to_bytes(4, "little"))
    reads: list[int] = []

    def compare(self: JournalReader, size: int, checksum: int) -> bool:
        reads.append(size)
        return True

    monkeypatch.setattr(JournalReader, "_starts_with", compare)
    with Store(tmp_path / "root").open(path, readonly=True) as session:
        session.context()
    assert reads


def compared(store: Store, path: str) -> list[str]:
    with store.open(path, readonly=True) as session:
        assert isinstance(session._journal, JournalReader)
        return session._journal.compare_index()


@pytest.mark.promise("P45")
def test_check_compares_the_index_with_the_journal(tmp_path: Path) -> None:
    """A saved index with a wrong row, under a valid checksum and a valid stamp, is found."""
    path = made(tmp_path / "root")
    store = Store(tmp_path / "root")
    assert compared(store, path) == []
    (index,) = (tmp_path / "root" / "cache" / "index").glob("*/*")
    file = index_module.IndexFile(store.fs, str(index))
    rows = bytearray(file.read(0, file.header.rows * index_module.ROW.size))
    file.close()
    at = 150 * index_module.ROW.size
    key, packed, length, _, state = index_module.ROW.unpack_from(rows, at)
    index_module.ROW.pack_into(rows, at, key, packed, length, 20, state)
    assert file.stamp is not None
    saved = index_module.RowIndex.load(store.fs, str(index), file.stamp, lambda *_: True)
    assert saved is not None
    index_module.write(store.fs, str(index), file.header, rows, saved._states.encoded())
    saved._bound, saved.stamped = (file.header.checked, file.header.checksum), None
    saved.stamp(store.fs, str(index), file.stamp)
    assert compared(store, path) == ["row 150 is wrong"]


# -- receipts


def is_plain(receipt: Receipt) -> bool:
    return not receipt.diverged


@pytest.mark.promise("P48")
@pytest.mark.parametrize("asked", [False, True], ids=["", "read before"])
@pytest.mark.parametrize(
    "damage", ["half", "half and grown", "header gone", "other content", "emptied", "parent gone", "another session"]
)
def test_no_plain_receipt_onto_a_damaged_file(tmp_path: Path, damage: str, asked: bool) -> None:
    """If the file under an open session no longer has its header or the parent, an append raises and writes nothing."""
    path = made(tmp_path / "root")
    other = made(tmp_path / "root", 50)
    session = Store(tmp_path / "root").open(path)
    first = session.append_message({"role": "user", "content": "before"})
    if asked:
        session.context()
    data = Path(path).read_bytes()
    damaged = {
        "half": data[: len(data) // 2],
        "half and grown": data[: len(data) // 2] + b"x" * len(data) + b"\n",
        "header gone": b"x" * 300 + data[300:],
        "other content": b"x" * len(data),
        "emptied": b"",
        "parent gone": data.replace(first.id.encode(), b"zzzzzzzz"),
        "another session": Path(other).read_bytes(),
    }[damage]
    with open(path, "r+b") as file:
        file.write(damaged)
        file.truncate()
    with pytest.raises((LeafMoved, SessionNotFound)) as raised:
        session.append_message({"role": "user", "content": "after"})
    assert raised.value.hint and raised.value.path == path
    assert Path(path).read_bytes() == damaged
    measured("P48", "appends onto damaged files", appends=1, receipts=0)
    try:
        session.close()
    except SessileError:
        pass


@pytest.mark.promise("P48")
def test_after_a_truncation_the_session_goes_on_from_what_is_there(tmp_path: Path) -> None:
    """`reopen` continues below the last entry that the file still has."""
    path = made(tmp_path / "root")
    session = Store(tmp_path / "root").open(path)
    data = Path(path).read_bytes()
    os.truncate(path, data.rindex(b"\n", 0, len(data) // 2) + 1)
    with pytest.raises(LeafMoved):
        session.append_message({"role": "user", "content": "after"})
    session.reopen()
    receipt = session.append_message({"role": "user", "content": "after"})
    assert receipt.parent_id == parents(path)[-2].decode()
    session.close()


@pytest.mark.promise("P48")
@pytest.mark.parametrize("verb", ["rewrite", "move"])
def test_a_rewrite_or_a_move_does_not_hide_that_the_parent_is_gone(tmp_path: Path, verb: str) -> None:
    """Another program overwrites the parent at the same size; our own change of the file does not make that ours."""
    path = made(tmp_path / "root")
    session = Store(tmp_path / "root").open(path)
    first = session.append_message({"role": "user", "content": "before"})
    edit_in_place(path, first.id.encode(), b"zzzzzzzz", restore_time=True)
    if verb == "rewrite":
        session.rewrite_entries(lambda entry: None)
    else:
        session.move_to("/elsewhere")
    with pytest.raises(LeafMoved):
        session.append_message({"role": "user", "content": "after"})
    session.close()


@pytest.mark.promise("P48")
@pytest.mark.parametrize("change", ["touched", "appended", "text edited"])
def test_harmless_changes_do_not_stop_an_append(tmp_path: Path, change: str) -> None:
    """A file whose header and parent are where they were takes the next entry."""
    path = made(tmp_path / "root")
    session = Store(tmp_path / "root").open(path)
    session.append_message({"role": "user", "content": "before"})
    if change == "touched":
        os.utime(path)
    elif change == "appended":
        with open(path, "ab") as file:
            file.write(b'{"type":"custom","id":"foreign1","parentId":null,"customType":"x"}\n')
    else:
        edit_in_place(path, b"question 7", b"QUESTION 7", restore_time=False)
    receipt = session.append_message({"role": "user", "content": "after"})
    session.close()
    assert is_plain(receipt)
    with Store(tmp_path / "root", cache=None).open(path, readonly=True) as session:
        assert session.get_entry(receipt.id) is not None
