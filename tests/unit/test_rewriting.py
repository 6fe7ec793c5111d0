"""Rewriting entries on request of the caller, with the original kept."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from builders import Json, said, user
from faults.failing import FaultyFilesystem
from sessile import Session, errors
from sessile.storage.filesystem import PosixFilesystem
from sessions import append_raw, begun, header, lines_of, other_store_at, records_of, say, store_at, told, write_file

pytestmark = pytest.mark.mission("X17")


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": "write", "arguments": arguments}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks), "provider": "p", "model": "m"}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = begun(store_at(tmp_path))
    say(session, "one")
    session.append_message(assistant(call("c1", path="a"), {"type": "text", "text": "t"}, call("c2", path="b")))
    say(session, "three")
    return session


def test_edited_entries_change_and_all_others_stay_byte_for_byte(session: Session) -> None:
    """Lines in another style and garbage are not changed."""
    append_raw(
        session.path, '{ "type" : "message", "id":"x", "parentId": null, "message": {"role":"user"} }', "garbage"
    )
    before = lines_of(session.path)
    target = session.get_entries()[0].id
    session.rewrite_entries(lambda e: {**e, "message": user("uno")} if e.id == target else None)
    after = lines_of(session.path)
    assert after[:1] + after[2:] == before[:1] + before[2:]
    assert records_of_line(after[1])["message"]["content"] == "uno"
    assert told(session) == ["uno", "|t|", "three"]


def records_of_line(line: bytes) -> dict[str, Any]:
    import json

    record: dict[str, Any] = json.loads(line)
    return record


def test_the_original_is_kept_byte_for_byte_and_its_path_returned(session: Session, tmp_path: Path) -> None:
    """The original is in the store's folder, under a name that no listing shows."""
    before = Path(session.path).read_bytes()
    kept = session.rewrite_entries(lambda e: {**e, "x": 1})
    assert kept is not None
    assert Path(kept).read_bytes() == before
    assert Path(kept).parent == tmp_path / "originals"
    assert not kept.endswith(".jsonl")
    assert Path(session.path).read_bytes() != before


def test_the_original_of_a_foreign_file_is_kept_in_our_data_folder(tmp_path: Path) -> None:
    """Nothing is left next to a file of another program."""
    path = write_file(tmp_path / "there" / "s.jsonl", header(), said("a", None))
    with store_at(tmp_path / "root").open(path) as session:
        kept = session.rewrite_entries(lambda e: {**e, "x": 1})
    assert kept is not None
    assert kept.startswith(f"{tmp_path}/root/originals/")
    assert [p.name for p in Path(path).parent.iterdir()] == ["s.jsonl"]


@pytest.mark.parametrize("member", ["id", "parentId", "type"])
def test_identity_and_place_of_an_entry_cannot_be_edited(session: Session, member: str) -> None:
    """The file is not changed, and the session stays usable."""
    before = Path(session.path).read_bytes()
    with pytest.raises(errors.InvalidEntry):
        session.rewrite_entries(lambda e: {**e, member: "other"})
    assert Path(session.path).read_bytes() == before
    assert list(Path(session.path).parent.glob("*.tmp")) == []
    say(session, "on")


def test_an_edit_that_raises_changes_nothing(session: Session) -> None:
    """The error of the edit is raised."""
    before = Path(session.path).read_bytes()

    def fail(entry: object) -> None:
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        session.rewrite_entries(fail)
    assert Path(session.path).read_bytes() == before
    say(session, "on")


def test_entries_that_another_handle_appended_survive_a_rewrite(session: Session, tmp_path: Path) -> None:
    """A rewrite uses the file, not the entries known to one process."""
    with other_store_at(tmp_path).open(session.path) as other:
        theirs = say(other, "theirs")
        session.rewrite_entries(lambda e: {**e, "x": 1})
        assert theirs in [e.id for e in session.get_entries()]
        say(other, "after the rewrite")
    assert [r["message"]["content"] for r in records_of(session.path)[-2:]] == ["theirs", "after the rewrite"]


def test_a_rewrite_is_temp_sync_rename_and_sync_of_the_folder(tmp_path: Path) -> None:
    """With this order the file is the old or the new one after any crash."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
    filesystem = FaultyFilesystem(PosixFilesystem())
    with store_at(tmp_path, fs=filesystem).open(session.path) as session:
        filesystem.calls.clear()
        session.rewrite_entries(lambda e: {**e, "x": 1})
        methods = [c.method for c in filesystem.calls]
        rename = methods.index("rename")
        assert methods.index("write") < methods.index("sync") < rename
        assert "sync_directory" in methods[rename:]
        assert "truncate" not in methods


def test_unknown_members_survive_a_rewrite(tmp_path: Path) -> None:
    """The edit gets unknown members and returns them."""
    path = write_file(tmp_path / "s.jsonl", header(), {**said("a", None), "future": [1, {"x": None}]})
    with store_at(tmp_path / "root").open(path) as session:
        session.rewrite_entries(lambda e: {**e, "new": True})
    assert records_of(path)[1] == {**said("a", None), "future": [1, {"x": None}], "new": True}


@pytest.mark.mission("X19")
def test_a_rewritten_text_is_not_restored_from_the_blob_of_the_old_one(session: Session) -> None:
    """The blob reference of a replaced string is removed; those of other strings stay."""
    long = {"a": "x" * 600_000, "b": "y" * 600_000}
    entry_id = session.append_custom_entry("x", long).id
    session.rewrite_entries(lambda e: {**e, "data": {**e["data"], "a": "short"}} if e.id == entry_id else None)
    assert session.get_full_entry(entry_id)["data"] == {"a": "short", "b": long["b"]}
    assert list(stored(session, entry_id)["sessile.full"]) == ["/data/b"]
    session.rewrite_entries(lambda e: {**e, "data": {"b": "short"}} if e.id == entry_id else None)
    assert "sessile.full" not in stored(session, entry_id)


@pytest.mark.mission("X19")
@pytest.mark.parametrize("form", ["body", "stored"])
def test_an_edit_may_return_either_form_of_an_entry(session: Session, form: str) -> None:
    """The other texts and images are still whole, and in blobs."""
    long, data = "x" * 600_000, base64.b64encode(bytes(3000)).decode()
    image = {"type": "image", "data": data, "mimeType": "image/png"}
    entry_id = session.append_custom_message_entry("x", [image, {"type": "text", "text": long}]).id
    session.rewrite_entries(lambda e: {**getattr(e, form), "display": False} if e.id == entry_id else None)
    assert session.get_full_entry(entry_id)["content"] == [image, {"type": "text", "text": long}]
    assert len(lines_of(session.path)[-1]) < 501_000


@pytest.mark.mission("X19")
def test_an_edit_of_an_entry_whose_blob_is_gone_keeps_the_reference(session: Session, tmp_path: Path) -> None:
    """The text is whole again once the blob is back."""
    entry_id = session.append_custom_entry("x", {"a": "x" * 600_000, "b": 1}).id
    (blob,) = (tmp_path / "blobs").iterdir()
    blob.rename(tmp_path / "aside")
    session.rewrite_entries(lambda e: {**e, "data": {**e["data"], "b": 2}} if e.id == entry_id else None)
    (tmp_path / "aside").rename(blob)
    assert session.get_full_entry(entry_id)["data"] == {"a": "x" * 600_000, "b": 2}


def stored(session: Session, entry_id: str) -> Json:
    entry = session.get_entry(entry_id)
    assert entry is not None
    return entry.stored


@pytest.mark.mission("X19")
def test_a_rewrite_cuts_and_externalises_like_an_append(session: Session) -> None:
    """Large content of an edited entry is stored as in an append."""
    target = session.get_entries()[0].id
    session.rewrite_entries(lambda e: {**e, "message": user("z" * 600_000)} if e.id == target else None)
    assert max(map(len, lines_of(session.path))) < 510_000
    assert session.get_full_entry(target)["message"]["content"] == "z" * 600_000


@pytest.mark.mission("X14")
def test_the_arguments_of_a_tool_call_are_rewritten_by_its_id(session: Session) -> None:
    """Only this call of this message changes, the context has the new arguments, and the original is kept."""
    session.context()
    before = lines_of(session.path)
    kept = session.rewrite_tool_call("c2", {"path": "c", "deep": {"n": [1]}})
    assert kept is not None
    assert lines_of(kept) == before
    blocks = session.context().messages[1]["content"]
    assert blocks == [call("c1", path="a"), {"type": "text", "text": "t"}, call("c2", path="c", deep={"n": [1]})]
    after = lines_of(session.path)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, True]


@pytest.mark.mission("X14")
def test_a_cut_argument_of_a_rewritten_call_does_not_come_back(session: Session) -> None:
    """Restoring returns the new arguments."""
    entry_id = session.append_message(assistant(call("big", text="x" * 600_000))).id
    session.rewrite_tool_call("big", {"text": "short"})
    assert session.get_full_entry(entry_id)["message"]["content"][0]["arguments"] == {"text": "short"}


@pytest.mark.mission("X14")
def test_an_unknown_tool_call_is_refused_and_the_file_stays(session: Session) -> None:
    """A text that contains the id is not a call."""
    say(session, 'look: "id":"nope"')
    before = Path(session.path).read_bytes()
    with pytest.raises(errors.EntryNotFound):
        session.rewrite_tool_call("nope", {})
    assert Path(session.path).read_bytes() == before


def test_an_index_that_was_saved_before_does_not_outlive_a_rewrite(session: Session, tmp_path: Path) -> None:
    """The next reader gets the new content."""
    target = session.get_entries()[0].id
    session.close()
    with store_at(tmp_path).open(session.path) as again:
        again.rewrite_entries(lambda e: {**e, "message": user("a longer text than before")} if e.id == target else None)
    with store_at(tmp_path).open(session.path, readonly=True) as reader:
        assert told(reader)[0] == "a longer text than before"
        assert len(reader.get_entries()) == 3
