"""`sessile export` and `secrets`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessile import Store, find_secrets
from sessile.cli.command import App
from sessile.cli.output import Pictures
from sessile.core.secret_shapes import fill
from sessile.discovery import load_entries_from_file
from sessile.storage import atomic

from .conftest import Command, at_a_terminal

WEBHOOK = "6513270e"
SECRETIVE = "Deploy script prints too much"


@pytest.mark.mission("B7")
@pytest.mark.promise("P29")
@pytest.mark.parametrize("form", ["html", "md", "txt", "jsonl"])
def test_no_secret_leaves_in_an_export(sessile: Command, demo: Path, tmp_path: Path, form: str) -> None:
    """Every format has placeholders, no secret is in the output, and the file is private."""
    target = tmp_path / f"out.{form}"
    done = sessile("export", SECRETIVE, "-o", str(target), "--depth", "all")
    assert done.code == 0
    text = target.read_text()
    secrets = _secrets_of(demo)
    assert len(secrets) >= 5
    assert not [secret for secret in secrets if secret in text or secret in done.err or secret in done.out]
    assert "[REDACTED:github-token#1]" in text
    assert "redacted [REDACTED:github-token#1]" in done.err
    assert target.stat().st_mode & 0o777 == 0o600


def _secrets_of(demo: Path) -> set[str]:
    path = next(path for path in demo.rglob("*.jsonl") if SECRETIVE in path.read_text())
    found = set()
    for entry in load_entries_from_file(path):
        text = json.dumps(entry, ensure_ascii=False)
        found |= {text[secret.start : secret.end] for secret in find_secrets(text)}
    return found


@pytest.mark.promise("P30")
def test_the_name_of_an_export_is_never_a_path_that_a_session_made_up(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --output the file is created in the current folder, whatever the id of the session."""
    here = tmp_path / "outer" / "here"
    here.mkdir(parents=True)
    source = tmp_path / "rollout.jsonl"
    rows = (
        {"type": "session_meta", "payload": {"id": "/../../x", "cwd": "/"}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
    )
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(here)
    before = {*tmp_path.rglob("*.html")}
    at_a_terminal(["export", str(source)], {"NO_COLOR": "1"})
    (made,) = {*tmp_path.rglob("*.html")} - before
    assert made == here / "session-unnamed.html"


def test_without_redaction_a_session_file_is_copied_byte_for_byte(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A note says that secrets were not redacted."""
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    target = tmp_path / "copy.jsonl"
    done = sessile("export", WEBHOOK, "-o", str(target), "--redact", "off")
    assert target.read_bytes() == path.read_bytes()
    assert "secrets were not redacted" in done.err


def test_an_exported_session_file_opens_with_the_same_context(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """Lines without secrets are unchanged."""
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    target = tmp_path / "copy.jsonl"
    sessile("export", WEBHOOK, "-o", str(target))
    store = Store(tmp_path / "store")
    with store.open(target, readonly=True) as copy, store.open(path, readonly=True) as source:
        assert copy.context().messages == source.context().messages
        assert [entry.raw for entry in copy.iter_entries()] == [entry.raw for entry in source.iter_entries()]


def test_one_branch(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """Only the path to the label is exported."""
    target = tmp_path / "branch.jsonl"
    sessile("export", f"{WEBHOOK}@tests-green", "-o", str(target))
    ids = [entry["id"] for entry in load_entries_from_file(target)[1:]]
    assert ids[-1] == "9f31c2a0" and "deadbee1" not in ids and "0b1d22ef" not in ids


@pytest.mark.mission("X24")
def test_artifacts_go_along_with_a_session_file(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """Texts are redacted; binary artifacts are only exported without redaction, and a note says so."""
    (folder,) = {path.parent for path in demo.rglob("scout-1.jsonl")}
    (folder / "note.md").write_text(f"token {fill('ghp_<w36>')}")
    (folder / "picture.bin").write_bytes(b"\xff\x00")
    session = folder.name.rpartition("_")[2]
    done = sessile("export", session, "-o", str(tmp_path / "copy.jsonl"))
    assert "1 binary artifact was not exported" in done.err
    copied = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert {"scout-1.jsonl", "note.md"} <= set(copied) and "picture.bin" not in copied
    assert b"ghp_" not in copied["note.md"] and b"REDACTED" in copied["note.md"]
    sessile("export", session, "-o", str(tmp_path / "whole.jsonl"), "--redact", "off")
    assert (tmp_path / "whole" / "picture.bin").read_bytes() == b"\xff\x00"


def test_artifacts_of_a_store_that_is_no_folder_go_along_too(
    sessile: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Artifacts are read from the session's storage, which need not be a disk."""
    store = Store.in_memory()
    monkeypatch.setattr(App, "store", store)
    with store.create("/work", publish=True) as session:
        atomic.make_folders(store.fs, f"{session.artifacts}/deep")
        atomic.replace(store.fs, f"{session.artifacts}/deep/note.md", [b"token ", fill("ghp_<w36>").encode()])
    assert sessile("export", session.id, "-o", str(tmp_path / "copy.jsonl")).code == 0
    copied = (tmp_path / "copy" / "deep" / "note.md").read_bytes()
    assert copied.startswith(b"token [REDACTED:github-token") and b"ghp_" not in copied


def test_images_can_be_left_out(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The file says that images were left out."""
    whole, without = tmp_path / "a.html", tmp_path / "b.html"
    sessile("export", WEBHOOK, "-o", str(whole))
    sessile("export", WEBHOOK, "-o", str(without), "--no-images")
    assert "data:image/png" in whole.read_text()
    assert "data:image/" not in without.read_text() and "images were left out" in without.read_text()


def test_images_of_a_markdown_file_lie_in_a_folder_beside_it(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The folder and the images are private; on stdout, images become text."""
    target = tmp_path / "my notes.md"
    done = sessile("export", WEBHOOK, "-o", str(target))
    folder = tmp_path / "my notes-images"
    assert done.code == 0 and f"1 image written to {folder}" in done.err
    (image,) = folder.iterdir()
    assert image.read_bytes().startswith(b"\x89PNG") and f"](my%20notes-images/{image.name})" in target.read_text()
    assert (folder.stat().st_mode & 0o777, image.stat().st_mode & 0o777) == (0o700, 0o600)
    assert sessile("export", WEBHOOK, "-o", str(target), "--force", "--json").json["images"] == str(folder)
    words = sessile("export", WEBHOOK, "-t", "md", "-o", "-")
    assert "](" not in words.out and "image png" in words.out
    assert sessile("export", WEBHOOK, "-o", str(tmp_path / "plain.md"), "--no-images").code == 0
    assert not (tmp_path / "plain-images").exists()


def test_an_export_that_cannot_be_finished_takes_its_images_back(
    sessile: Command, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file or folder is left behind."""
    original = Pictures.keep

    def keep(self: Pictures, name: str, data: bytes) -> str:
        original(self, name, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(Pictures, "keep", keep)
    before = sorted(tmp_path.iterdir())
    assert sessile("export", WEBHOOK, "-o", str(tmp_path / "notes.md")).code == 130
    assert sorted(tmp_path.iterdir()) in (before, sorted([*before, tmp_path / "cache"]))


def test_a_file_that_is_there_is_not_replaced_unless_told(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The command exits with code 7 and changes nothing without --force; a folder is never replaced."""
    target = tmp_path / "out.md"
    target.write_text("mine")
    assert sessile("export", WEBHOOK, "-o", str(target)).code == 7
    assert sessile("export", WEBHOOK, "-o", str(tmp_path), "--force").code == 7
    assert target.read_text() == "mine"
    assert sessile("export", WEBHOOK, "-o", str(target), "--force").code == 0
    assert target.read_text() != "mine"


def test_a_reviewed_export_keeps_what_a_person_keeps(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """Without a terminal a review is refused; --keep decides in advance."""
    done = sessile("export", SECRETIVE, "-o", str(tmp_path / "x.txt"), "--redact", "review")
    assert done.code == 7 and "--keep" in done.err and not (tmp_path / "x.txt").exists()
    report = tmp_path / "report.json"
    options = ("--keep", "[REDACTED:github-token#1]", "--report", str(report))
    done = sessile("export", SECRETIVE, "-o", str(tmp_path / "y.txt"), *options)
    text = (tmp_path / "y.txt").read_text()
    assert done.code == 0 and "[REDACTED:github-token#1]" not in text and "[REDACTED:anthropic-key#1]" in text
    told = json.loads(report.read_text())
    assert {item["rule"]: item["kept"] for item in told["items"]}["github-token"] is True
    assert not [secret for secret in _secrets_of(demo) if secret in report.read_text()]


def test_an_export_that_fails_leaves_no_file(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A missing folder is reported with its path, and no partial file is left."""
    done = sessile("export", WEBHOOK, "-o", str(tmp_path / "nowhere" / "x.html"))
    assert done.code in (3, 8) and "nowhere" in done.err
    assert not list(tmp_path.glob("nowhere*"))


@pytest.mark.mission("B7")
def test_secrets_are_found_and_never_printed(sessile: Command, demo: Path) -> None:
    """The command exits with 1 if there are secrets and 0 if not, for one session or all."""
    done = sessile("secrets")
    assert done.code == 1 and "github-token" in done.out
    assert not [secret for secret in _secrets_of(demo) if secret in done.out + done.err]
    rules = {item["rule"] for item in sessile("secrets", SECRETIVE, "--json").json["items"]}
    assert {"github-token", "anthropic-key", "aws-access-key"} <= rules
    assert sessile("secrets", WEBHOOK).code == 0


def test_a_file_that_ends_with_an_unknown_form_is_not_written(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """An unknown file extension is refused instead of writing HTML."""
    done = sessile("export", WEBHOOK, "-o", str(tmp_path / "x.pdf"))
    assert done.code == 2 and ".pdf" in done.err and "pass -t html" in done.err
    assert not (tmp_path / "x.pdf").exists()
    assert sessile("export", WEBHOOK, "-t", "md", "-o", str(tmp_path / "x.pdf")).code == 0
