"""A store: creating, opening, copying, and leaving other files unchanged."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from builders import answered, entry, said, user
from faults.failing import Fail, FaultyFilesystem
from sessile import Session, Store, errors
from sessile.storage.memory import MemoryFilesystem
from sessions import (
    CWD,
    answer,
    append_raw,
    begun,
    header,
    other_store_at,
    records_of,
    say,
    snapshot,
    store_at,
    told,
    write_file,
)

pytestmark = pytest.mark.mission("X14")


def test_a_session_is_opened_by_id_by_path_and_by_path_object(tmp_path: Path) -> None:
    """All three open the same file."""
    store = store_at(tmp_path)
    with begun(store) as session:
        leaf = say(session, "one")
    for ref in (session.id, session.path, Path(session.path)):
        with store.open(ref) as again:
            assert (again.path, again.id, again.leaf_id) == (session.path, session.id, leaf)


def test_a_relative_path_is_one_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts at the current folder; a bare name must end in .jsonl."""
    write_file(tmp_path / "s.jsonl", header(), said("a", None))
    monkeypatch.chdir(tmp_path)
    for ref in ("s.jsonl", "./s.jsonl"):
        with Store(tmp_path / "root").open(ref, readonly=True) as session:
            assert session.path == f"{tmp_path}/s.jsonl"


def test_a_chosen_id_is_used_once(tmp_path: Path) -> None:
    """An id is unique in all projects of the store."""
    store = store_at(tmp_path)
    with begun(store, session_id="mine") as session:
        assert session.id == "mine"
    with pytest.raises(errors.SessionExists) as refusal:
        store.create("/other", session_id="mine")
    assert refusal.value.path == session.path


def test_two_handles_of_two_stores_share_one_session(tmp_path: Path) -> None:
    """Entries appended by one handle are seen by the other."""
    with begun(store_at(tmp_path)) as one, other_store_at(tmp_path).open(one.path) as two:
        first = say(one, "one")
        assert [e.id for e in two.get_entries()] == [first]


def test_the_cache_can_be_elsewhere_and_is_worth_nothing(tmp_path: Path) -> None:
    """Deleting the cache loses nothing, and reading a foreign store writes nothing to its root."""
    path = tmp_path / "pi" / "sessions" / "--x--" / "t_s1.jsonl"
    write_file(path, header(), *(said(str(n), str(n - 1) if n else None) for n in range(3000)))
    before = snapshot(tmp_path / "pi")
    for _ in range(2):
        with Store(tmp_path / "pi", cache=tmp_path / "cache").open(path, readonly=True) as session:
            assert len(session.get_branch()) == 3000
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert snapshot(tmp_path / "pi") == before
    assert os.listdir(tmp_path / "pi") == ["sessions"]


def test_reading_changes_no_file_of_any_kind(tmp_path: Path) -> None:
    """No read changes the content, time or inode of any file."""
    store = store_at(tmp_path)
    with begun(store) as session:
        first = say(session, "one")
        image = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}
        session.append_message({"role": "user", "content": [image]})
        answer(session, "x" * 600_000)
        session.append_label_change(first, "here")
    append_raw(session.path, "garbage", '{"type":"message","id":"torn')
    before = snapshot(tmp_path)
    with store.open(session.id, readonly=True) as reader:
        reader.context()
        reader.context(bridge=True)
        reader.get_tree()
        reader.get_heads()
        reader.get_full_entry(first)
        assert (reader.findings, reader.title, reader.get_label(first)) != ([], None, None)
        reader.branch(first)
        reader.flush()
    store.list(CWD)
    store.list_all(full=True)
    store.find(session.id)
    store.deletions()
    assert snapshot(tmp_path) == before


@pytest.mark.mission("X1")
def test_a_file_of_pi_opens_and_keeps_its_lines(tmp_path: Path) -> None:
    """Member order, model shape and unknown members stay as pi writes them."""
    lines = [
        '{"type":"session","version":3,"id":"0199-pi","timestamp":"2026-02-16T10:20:30.000Z","cwd":"/p"}',
        '{"type":"model_change","id":"aa","parentId":null,"timestamp":"2026-02-16T10:20:30.000Z","provider":"p","modelId":"m"}',
        '{"type":"thinking_level_change","id":"ab","parentId":"aa","timestamp":"x","thinkingLevel":"low"}',
        '{"type":"custom_message","customType":"c","content":"hi","display":false,"id":"ac","parentId":"ab","timestamp":"x"}',
        '{"type":"custom","customType":"c","data":{"k":1.0},"id":"ad","parentId":"ac","timestamp":"x"}',
        '{"type":"session_info","id":"ae","parentId":"ad","timestamp":"x","name":"Named"}',
    ]
    path = write_file(tmp_path / "s.jsonl", *lines)
    with store_at(tmp_path / "root").open(path) as session:
        context = session.context()
        assert (context.models, context.thinking_level, session.title) == ({"default": "p/m"}, "low", "Named")
        assert told(session) == ["hi"]
        session.append_message(user("on"))
    assert Path(path).read_text().split("\n")[:6] == lines
    assert records_of(path)[-1]["parentId"] == "ae"


@pytest.mark.mission("X1")
def test_a_file_of_oh_my_pi_opens_and_keeps_its_lines(tmp_path: Path) -> None:
    """The title slot, the header, model roles and newer kinds of entries stay as they are."""
    slot = '{"type":"title","v":1,"title":"T","updatedAt":"x","pad":"' + " " * 100 + '"}'
    records: list[Any] = [
        slot,
        header(additionalDirectories=["/d"], providerPromptCacheKey="k"),
        entry("model_change", "a", None, model="p/m", role="smol", resolvedModelIsFallback=True),
        entry("service_tier_change", "b", "a", serviceTier={"openai": "flex"}),
        said("c", "b"),
        answered("d", "c"),
        entry("title_change", "e", "d", title="T2", source="user"),
        entry("reset_boundary", "f", "e"),
        said("g", "f"),
    ]
    path = write_file(tmp_path / "s.jsonl", *records)
    before = Path(path).read_bytes()
    with store_at(tmp_path / "root").open(path) as session:
        context = session.context()
        assert (context.models, context.service_tier) == ({"smol": "p/m", "default": "p/m"}, {"openai": "flex"})
        assert (told(session), session.title) == (["g"], "T2")
        session.append_message(user("on"))
    assert Path(path).read_bytes().startswith(before)


def test_a_store_in_memory_has_the_same_verbs() -> None:
    """Create, list, continue, delete and undo work in memory."""
    store = Store.in_memory()
    with store.create(CWD) as session:
        say(session, "one")
        answer(session, "two")
    assert [info.id for info in store.list(CWD)] == [session.id]
    with store.continue_recent(CWD) as again:
        assert told(again) == ["one", "two"]
    deletion = store.delete(session.id)
    assert store.list_all() == []
    store.undo(deletion.token)
    with store.open(session.id, readonly=True) as again, again.fork() as fork:
        assert told(fork) == ["one", "two"]


def test_two_sessions_in_memory_know_nothing_of_each_other() -> None:
    """Each has its own store."""
    one, two = Session.in_memory(), Session.in_memory()
    say(one, "one")
    assert (two.get_entries(), len(one.get_entries())) == ([], 1)


def test_a_durability_that_is_none_is_refused(tmp_path: Path) -> None:
    """An invalid durability raises."""
    with pytest.raises(errors.Invalid):
        Store(tmp_path, durability="hope")  # type: ignore[arg-type]
    with begun(Store(tmp_path)) as session:
        assert session.append_message(user("x")).durability == "power"


def test_a_failed_open_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """A service that retries forever must not run out of descriptors."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no\n")
    future = write_file(tmp_path / "future.jsonl", {**header(), "version": 9})
    store = store_at(tmp_path / "root")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for path in (bad, future, tmp_path / "missing" / "x"):
        for readonly in (True, False):
            if path != tmp_path / "missing" / "x" or readonly:
                try:
                    store.open(path, readonly=readonly).close()
                except errors.SessileError:
                    pass
    assert before == (len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)


def test_a_handle_goes_on_in_the_file_that_another_handle_has_rewritten(tmp_path: Path) -> None:
    """Readers, writers and forks see entries appended after a rewrite, even if they were opened before it."""
    store = Store(tmp_path)
    with store.create("/work/app", publish=True) as ours:
        ours.append_message({"role": "user", "content": "one"})
        with store.open(ours.path) as theirs, store.open(ours.path, readonly=True) as reader:
            ours.set_session_name("a name")
            ours.append_message({"role": "user", "content": "two"})
            expected = [entry.id for entry in ours.get_entries()]
            assert [entry.id for entry in theirs.get_entries()] == expected
            assert [entry.id for entry in reader.get_entries()] == expected
            with theirs.fork() as fork:
                assert [entry.id for entry in fork.get_entries()] == expected


def test_a_handle_keeps_what_it_has_when_its_file_becomes_something_else(tmp_path: Path) -> None:
    """A file that is not a session, or is another session, is not used."""
    store = Store(tmp_path)
    with store.create("/work/app", publish=True) as session:
        session.append_message({"role": "user", "content": "kept"})
        with store.open(session.path, readonly=True) as reader:
            for content in (b"something else\n", b'{"type":"session","version":3,"id":"other"}\n'):
                beside = tmp_path / "beside"
                beside.write_bytes(content)
                beside.replace(session.path)
                assert [entry["message"]["content"] for entry in reader.get_entries()] == ["kept"]


def test_a_failing_disk_never_becomes_a_new_session() -> None:
    """If the newest session cannot be read, `continue_recent` raises, and a listing omits it."""
    fs = FaultyFilesystem(MemoryFilesystem())
    store = Store("/root", fs=fs)
    store.create("/work/app", publish=True).close()
    failing = FaultyFilesystem(fs.inner, plan=[Fail(errno.EIO, on={"read"}, forever=True)])
    with pytest.raises(errors.StorageFailure):
        Store("/root", fs=failing).continue_recent("/work/app")
    assert Store("/root", fs=failing).list("/work/app") == []
    assert len(store.list("/work/app")) == 1


def test_a_repr_names_the_root_and_the_durability(tmp_path: Path) -> None:
    """The text is one line without secrets; a notebook shows the newest sessions in an escaped table."""
    hostile = "<script>alert(1)</script>"
    store = store_at(tmp_path)
    assert repr(store) == f"<Store {str(tmp_path)!r} durability='process'>"
    store.create(f"/work/{hostile}", title=hostile, publish=True).close()
    html = store._repr_html_()
    assert set(re.findall(r"</?(\w+)", html)) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert "1 sessions" in html and "/work/&lt;script&gt;" in html
