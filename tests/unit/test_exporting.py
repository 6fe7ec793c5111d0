"""Artifacts in an export: their names, their content and redaction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessile import Export, Session, Store
from sessile.core.secret_shapes import fill
from sessile.errors import Refused
from sessile.export import share_redactor
from sessile.storage import atomic
from sessions import begun, store_at


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store on disk and one in memory."""
    return store_at(tmp_path) if request.param == "folder" else Store.in_memory()


def spill(store: Store, session: Session, name: str, content: bytes) -> None:
    """Add a file to the artifacts of a session."""
    path = f"{session.artifacts}/{name}"
    atomic.make_folders(store.fs, os.path.dirname(path))
    atomic.replace(store.fs, path, [content])


def test_artifacts_come_from_the_store_of_the_session(store: Store) -> None:
    """Artifacts have their names below the folder and their exact bytes; a session without artifacts has none."""
    with begun(store) as session:
        export = Export(session)
        assert list(export.artifacts(store.fs)) == []
        spill(store, session, "a.bin", b"\xff\x00")
        spill(store, session, "deep/er/b.md", b"text")
        assert dict(export.artifacts(store.fs)) == {"a.bin": b"\xff\x00", "deep/er/b.md": b"text"}


def test_artifacts_are_redacted_and_what_is_no_text_is_named_without_content(store: Store) -> None:
    """Binary files cannot be redacted, so only their names are exported."""
    with begun(store) as session:
        spill(store, session, "a.bin", b"\xff\x00")
        spill(store, session, "b.md", f"token {fill('ghp_<w36>')}".encode())
        found = dict(Export(session, redactor=share_redactor()).artifacts(store.fs))
    assert found == {"a.bin": None, "b.md": b"token [REDACTED:github-token#1]"}


def test_a_file_where_the_artifacts_would_be_is_none(store: Store) -> None:
    """A file in place of the artifacts folder is ignored."""
    with begun(store) as session:
        atomic.replace(store.fs, session.artifacts, [b"not a folder"])
        assert list(Export(session).artifacts(store.fs)) == []


def test_links_among_artifacts_are_not_followed(tmp_path: Path) -> None:
    """Links to files or folders are skipped, also if the artifacts folder itself is a link."""
    store = store_at(tmp_path / "store")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    with begun(store) as session:
        spill(store, session, "a.md", b"text")
        os.symlink(outside, f"{session.artifacts}/folder")
        os.symlink(outside / "secret", f"{session.artifacts}/file")
        assert dict(Export(session).artifacts(store.fs)) == {"a.md": b"text"}
    with begun(store) as other:
        os.symlink(outside, other.artifacts)
        assert list(Export(other).artifacts(store.fs)) == []


@pytest.mark.parametrize("forged", ["{outside}", "../{session}", "deep/../../{session}"])
def test_a_name_that_leads_out_of_the_artifacts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    """A name from a database could point outside the folder and would be read or written there."""
    store = store_at(tmp_path / "store")
    outside = tmp_path / "secret"
    outside.write_text("mine")
    with begun(store) as session:
        spill(store, session, "deep/a.md", b"text")
        name = forged.format(outside=outside, session=os.path.basename(session.path))
        names = store.fs.names
        monkeypatch.setattr(store.fs, "names", lambda path: [name] if path == session.artifacts else names(path))
        with pytest.raises(Refused, match="leads out of its folder"):
            list(Export(session).artifacts(store.fs))
