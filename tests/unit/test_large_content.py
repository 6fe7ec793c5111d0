"""Large texts and images of a session are stored outside the file and restored."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest

from builders import user
from sessile import Session, Store, build_session_context, errors
from sessile.session import TreeNode
from sessile.storage.blobs import BlobStore
from sessile.transfer import sync
from sessions import begun, lines_of, records_of, say, store_at, told, write_file
from sessions import header as header_of

NOTICE = "\n\n[Session persistence truncated large content]"
PNG = base64.b64encode(bytes(range(256)) * 4).decode()
URL = f"data:image/png;base64,{PNG[:40]}"


def image(data: str = PNG) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": data}


def ref(data: bytes) -> str:
    return f"blob:sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return begun(store_at(tmp_path))


@pytest.mark.mission("X19")
@pytest.mark.parametrize("text", ["x" * 500_001, "日" * 500_001, "😀" * 250_001, "a" + "😀" * 250_000], ids=len)
def test_a_text_over_the_limit_is_cut_in_the_file_and_kept_in_full(session: Session, text: str) -> None:
    """The length is counted in UTF-16 units, a notice follows the cut, and the blob has the full text."""
    entry_id = say(session, text)
    stored = records_of(session.path)[1]
    cut = stored["message"]["content"]
    assert cut.endswith(NOTICE)
    assert text.startswith(cut.removesuffix(NOTICE))
    assert len(cut.encode("utf-16-le")) // 2 in (500_000, 499_999)
    assert stored["sessile.full"] == {"/message/content": ref(text.encode())}
    full = session.get_full_entry(entry_id)
    assert full["message"] == {"role": "user", "content": text}
    assert "sessile.full" not in full


@pytest.mark.mission("X19")
def test_a_text_at_the_limit_stays_whole(session: Session) -> None:
    """Exactly 500,000 units are not cut."""
    say(session, "x" * 500_000)
    assert records_of(session.path)[1]["message"]["content"] == "x" * 500_000


@pytest.mark.mission("X19")
def test_texts_are_cut_at_any_depth_and_working_members_are_removed(session: Session) -> None:
    """Line counts match the stored text, and the full text after restoring."""
    long = "line\n" * 110_000
    data = {"files": [{"content": long, "lineCount": 110_001}], "partialJson": "{", "deep": {"jsonlEvents": []}}
    entry_id = session.append_custom_entry("x", data).id
    stored = records_of(session.path)[1]["data"]
    assert stored["files"][0]["lineCount"] == stored["files"][0]["content"].count("\n") + 1 < 110_001
    assert (set(stored), stored["deep"]) == ({"files", "deep"}, {})
    assert session.get_full_entry(entry_id)["data"]["files"][0] == {"content": long, "lineCount": 110_001}


@pytest.mark.mission("X19")
def test_a_session_shows_what_reopening_it_would_show(session: Session, tmp_path: Path) -> None:
    """The model gets the whole text, at once and after reopening."""
    session.context()
    for text in ("x" * 600_000, "y" * 600_000):
        session.append_message(user(text))
    shown = told(session)
    assert shown == ["x" * 600_000, "y" * 600_000]
    assert len(session.get_entries()[-1].raw) < 510_000
    session.close()
    with store_at(tmp_path).open(session.path, readonly=True) as again:
        assert told(again) == shown


@pytest.mark.mission("X19")
def test_a_full_text_whose_blob_is_gone_stays_cut_and_is_reported(session: Session, tmp_path: Path) -> None:
    """The rest of the entry is still restored."""
    entry_id = say(session, "x" * 600_000)
    for blob in (tmp_path / "blobs").iterdir():
        blob.unlink()
    assert session.get_full_entry(entry_id)["message"]["content"].endswith(NOTICE)
    assert [finding.code for finding in session.findings] == ["missing_blob"]


@pytest.mark.mission("X19")
def test_an_entry_that_is_too_large_even_then_is_refused(session: Session) -> None:
    """Nothing is written, and the next append works."""
    with pytest.raises(errors.TooLarge):
        session.append_custom_entry("x", ["y" * 499_999] * 20)
    assert len(lines_of(session.path)) == 1
    say(session, "on")


@pytest.mark.mission("X20")
def test_images_become_blobs_at_every_place_and_come_back_at_every_place(session: Session) -> None:
    """Images are restored in messages, custom messages, details, data and nested calls, some of which xcsh never
    resolves.
    """
    session.append_message({"role": "user", "content": [image()]})
    session.append_custom_message_entry("c", [image()], details={"content": [image()]})
    nested = {"role": "toolResult", "content": [], "details": {"content": [image()], "image_url": URL}}
    session.append_message(nested)
    url = {"role": "user", "content": [{"type": "input_image", "image_url": URL}]}
    session.append_many([{"type": "message", "message": url}])
    custom = session.append_custom_entry("x", {"content": [image()], "image_url": URL}).id
    text = Path(session.path).read_text()
    assert PNG not in text
    assert "data:image/" not in text
    assert ref(base64.b64decode(PNG)) in text
    messages = session.context().messages
    assert messages[0]["content"] == [image()]
    assert (messages[1]["content"], messages[1]["details"]) == ([image()], {"content": [image()]})
    assert messages[2] == nested
    assert messages[3] == url
    assert session.get_full_entry(custom)["data"] == {"content": [image()], "image_url": URL}
    session.branch(session.get_entries()[0].id)
    assert session.context().messages[0]["content"] == [image()]


@pytest.mark.mission("X20")
@pytest.mark.parametrize(("length", "stays"), [(1020, True), (1024, False)])
def test_small_images_stay_in_the_line(session: Session, length: int, stays: bool) -> None:
    """An image of 1024 characters or more becomes a blob."""
    data = PNG[:length]
    session.append_message({"role": "user", "content": [image(data)]})
    assert (records_of(session.path)[1]["message"]["content"][0]["data"] == data) == stays
    assert session.context().messages[0]["content"][0]["data"] == data


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "spelling", [PNG[:100] + "\n" + PNG[100:], PNG.replace("+", "-").replace("/", "_"), PNG.rstrip("=")]
)
def test_another_spelling_of_base64_is_restored_as_it_was(session: Session, spelling: str) -> None:
    """The context and the full entry have the original text."""
    entry_id = session.append_message({"role": "user", "content": [image(spelling)]}).id
    assert session.context().messages[0]["content"][0]["data"] == spelling
    assert session.get_full_entry(entry_id)["message"]["content"][0]["data"] == spelling


@pytest.mark.mission("X20")
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_blob_that_is_missing_or_damaged_is_reported_and_its_ref_stays(
    session: Session, tmp_path: Path, damage: str
) -> None:
    """Damage is detected by the hash, and storing the image again repairs it."""
    session.append_message({"role": "user", "content": [image()]})
    session.close()
    blob = tmp_path / "blobs" / hashlib.sha256(base64.b64decode(PNG)).hexdigest()
    blob.unlink() if damage == "missing" else blob.write_bytes(b"other")
    with store_at(tmp_path).open(session.path) as again:
        assert again.context().messages[0]["content"][0]["data"] == ref(base64.b64decode(PNG))
        finding = again.findings[-1]
        assert (finding.code, blob.name in finding.detail) == ("missing_blob", True)
        again.append_message({"role": "user", "content": [image()]})
        assert again.context().messages[1]["content"] == [image()]
    with store_at(tmp_path).open(session.path, readonly=True) as again:
        assert again.context().messages[0]["content"] == [image()]


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "text", ["blob:sha256:../../etc/passwd", "blob:sha256:" + "g" * 64, "blob:sha256:" + "A" * 64, "blob:sha256:"]
)
def test_a_ref_that_is_not_64_hex_digits_is_plain_text(session: Session, text: str) -> None:
    """No file is searched, and nothing is reported."""
    session.append_message({"role": "user", "content": [image(text)]})
    assert session.context().messages[0]["content"][0]["data"] == text
    assert session.findings == []


@pytest.mark.mission("X20")
def test_a_literal_ref_in_a_text_is_only_text(session: Session, tmp_path: Path) -> None:
    """The text is not changed even if the blob exists."""
    secret = store_at(tmp_path).blobs.put(b"secret")
    session.append_message(user(secret.ref))
    session.append_message({"role": "user", "content": [{"type": "text", "text": secret.ref}]})
    assert told(session) == [secret.ref, secret.ref]
    assert session.get_full_entry(session.get_entries()[0].id)["message"]["content"] == secret.ref


@pytest.mark.mission("X20")
def test_a_file_of_xcsh_with_refs_is_resolved_from_its_own_root(tmp_path: Path) -> None:
    """A file of another program is read in place with the blobs of its root."""
    root = tmp_path / ".xcsh" / "agent"
    data = base64.b64decode(PNG)
    (root / "blobs").mkdir(parents=True)
    (root / "blobs" / hashlib.sha256(data).hexdigest()).write_bytes(data)
    message = {"role": "user", "content": [image(ref(data))]}
    entry = {
        "type": "message",
        "id": "a",
        "parentId": None,
        "timestamp": "2026-02-16T10:20:30.000Z",
        "message": message,
    }
    path = write_file(root / "sessions" / "-x" / "t_s1.jsonl", header_of(), entry)
    with store_at(tmp_path / "ours").open(path, readonly=True) as session:
        assert session.context().messages[0]["content"] == [image()]
        assert session.findings == []


@pytest.mark.mission("X20")
def test_a_blob_is_durable_before_the_line_that_names_it(tmp_path: Path) -> None:
    """Otherwise a crash could leave a line without its image."""
    from faults.failing import FaultyFilesystem
    from sessile.storage.filesystem import PosixFilesystem

    path = begun(store_at(tmp_path)).path
    filesystem = FaultyFilesystem(PosixFilesystem())
    with store_at(tmp_path, fs=filesystem).open(path) as session:
        filesystem.calls.clear()
        session.append_message({"role": "user", "content": [image()]})
        methods = [call.method for call in filesystem.calls]
        last_write = len(methods) - 1 - methods[::-1].index("write")
        assert (
            methods.index("sync") < methods.index("rename") < methods.index("sync_directory", methods.index("rename"))
        )
        assert methods.index("sync_directory", methods.index("rename")) < last_write


@pytest.mark.mission("X19")
def test_lone_surrogates_in_a_cut_text_come_back(session: Session) -> None:
    """JavaScript programs write lone surrogates."""
    text = "\ud83d" + "x" * 600_000
    entry_id = say(session, text)
    assert session.get_full_entry(entry_id)["message"]["content"] == text
    assert json.loads(lines_of(session.path)[1])["message"]["content"].startswith("\ud83dx")


LONG = "words " * 100_000
SPOKEN = {"role": "user", "content": [{"type": "text", "text": LONG}, image()]}


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the hashes of the blobs that were fetched so far."""
    found: list[str] = []
    get = BlobStore.get

    def noted(blobs: BlobStore, digest: str) -> bytes | None:
        found.append(digest)
        return get(blobs, digest)

    monkeypatch.setattr(BlobStore, "get", noted)
    return found


@pytest.mark.mission("X19")
@pytest.mark.mission("X20")
def test_entries_are_handed_out_whole(session: Session, tmp_path: Path) -> None:
    """Every way to an entry returns what was appended, in the same process and in the next."""
    session.append_message(SPOKEN)
    entry_id = session.append_custom_entry("x", {"notes": LONG, "content": [image()]}).id
    session.close()
    for store in (store_at(tmp_path), store_at(tmp_path)):
        with store.open(session.path) as again:
            entries = again.get_entries()
            assert entries == again.get_branch() == list(again.iter_entries()) == list(again.iter_branch())
            assert entries == [node.entry for node in flat(again.get_tree())]
            assert entries[0]["message"] == SPOKEN
            entry = again.get_entry(entry_id)
            assert entry is not None
            assert entry["data"] == {"notes": LONG, "content": [image()]}
            assert again.get_heads() == again.get_children(entries[0].id) == [entry] == [again.get_full_entry(entry_id)]
            assert "sessile.full" not in entry
            assert build_session_context(entries) == again.context()
            assert again.context().messages == [SPOKEN]
            assert again.findings == []


@pytest.mark.mission("X20")
def test_blobs_are_fetched_when_content_is_first_used(session: Session, fetched: list[str]) -> None:
    """Ids, kinds, times, stored forms and the outline need none; texts are fetched without images."""
    session.append_message(SPOKEN)
    session.append_message(SPOKEN)
    fetched.clear()
    entry = session.get_entries()[0]
    assert (entry.type, entry["type"], entry.get("parentId"), entry["id"]) == ("message", "message", None, entry.id)
    assert entry.timestamp is not None
    assert str(entry)
    assert session.get_outline(full=True)
    assert session.get_tree()
    assert session.title is session.tag is None
    assert entry.stored == json.loads(entry.raw)
    assert fetched == []
    content = entry.readable["message"]["content"]
    assert (content[0]["text"], content[1]["data"]) == (LONG, ref(base64.b64decode(PNG)))
    assert len(fetched) == 1
    assert entry["message"] == entry.body["message"] == SPOKEN
    assert len(fetched) == 3


@pytest.mark.mission("X20")
def test_an_entry_without_references_is_its_line(session: Session) -> None:
    """It is decoded once."""
    say(session, "short")
    entry = session.get_entries()[0]
    assert entry.body is entry.stored is entry.readable


@pytest.mark.mission("X20")
def test_an_entry_outlives_its_session_and_can_be_copied(tmp_path: Path) -> None:
    """It does not keep the session, which would keep its file open, and a copy needs no store."""
    session = begun(store_at(tmp_path))
    session.append_message(SPOKEN)
    kept, pickled = session.get_entries()[0], pickle.dumps(session.get_entries()[0])
    known = weakref.ref(session)
    session.close()
    del session
    assert known() is None
    assert kept["message"] == pickle.loads(pickled)["message"] == copy.deepcopy(kept)["message"] == SPOKEN


@pytest.mark.mission("X20")
def test_an_entry_whose_blob_is_gone_has_its_reference_and_is_reported(session: Session, tmp_path: Path) -> None:
    """Both forms agree then."""
    session.append_message(SPOKEN)
    for blob in (tmp_path / "blobs").iterdir():
        blob.unlink()
    entry = session.get_entries()[0]
    assert entry.body == entry.stored
    assert [finding.code for finding in session.findings] == ["missing_blob", "missing_blob"]


@pytest.mark.mission("X19")
@pytest.mark.mission("X20")
def test_a_session_in_memory_cuts_nothing(fetched: list[str]) -> None:
    """It has everything in its lines, and no blobs; a line may be as long as can be read."""
    session = Session.in_memory()
    session.context()
    session.append_message(SPOKEN)
    session.append_message({"role": "user", "content": "z" * 9_000_000})
    entries = session.get_entries()
    assert [entry.stored["message"] for entry in entries] == session.context().messages
    assert [entry.stored for entry in entries] == [entry.body for entry in entries]
    assert entries[0]["message"] == SPOKEN
    assert fetched == []
    assert session.fork().context().messages == session.context().messages
    with pytest.raises(errors.TooLarge, match="50331648"):
        session.append_message(user("z" * 50_331_648))


@pytest.mark.mission("X19")
@pytest.mark.mission("X20")
def test_a_session_in_memory_gets_blobs_when_it_is_synced_to_files(tmp_path: Path) -> None:
    """On disk it is like any other session; syncing again finds nothing to do."""
    source, target = Store.in_memory(), store_at(tmp_path)
    with source.create("/work/app", publish=True) as session:
        session.append_message(SPOKEN)
        assert [done.state for done in sync(source, target)] == ["new"]
        assert [done.state for done in sync(source, target)] == ["same"]
        session.append_message(SPOKEN)
        assert [done.state for done in sync(source, target)] == ["grown"]
        expected = session.context().messages
    (path,) = [info.path for info in target.list_all()]
    assert max(map(len, lines_of(path))) < 510_000
    with target.open(path, readonly=True) as copied:
        assert copied.context().messages == expected
        assert all("sessile.full" in entry.stored for entry in copied.get_entries())


@pytest.mark.mission("X20")
def test_a_reference_that_was_given_is_shown_as_reopening_shows_it(session: Session, tmp_path: Path) -> None:
    """The context after an append is that of the next process, also for an image by reference."""
    held = store_at(tmp_path).blobs.put(base64.b64decode(PNG))
    session.context()
    session.append_message({"role": "user", "content": [image(held.ref)]})
    assert session.context().messages[0]["content"] == [image()]
    session.close()
    with store_at(tmp_path).open(session.path, readonly=True) as again:
        assert again.context().messages[0]["content"] == [image()]


def flat(nodes: list[TreeNode]) -> list[TreeNode]:
    return [each for node in nodes for each in (node, *flat(node.children))]
