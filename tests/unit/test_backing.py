"""The root decides how a store is kept, and a missing package is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sessile import Store, errors
from sessile.storage.backing import is_database

pytestmark = pytest.mark.mission("B8")

# A Python in which some packages cannot be imported.
_WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("psycopg", "obstore"):
            raise ModuleNotFoundError(name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("psycopg", "obstore") else found(name, package)
sys.meta_path.insert(0, Missing())
import sessile
try:
    sessile.Store(%r, blobs=%r)
except sessile.errors.Unsupported as error:
    print(error.message, "|", error.hint)
"""


def test_only_the_address_of_a_database_is_one() -> None:
    """Every root that is not a database URL is a folder."""
    assert is_database("postgresql://me@db/x") and is_database("postgres://db/x")
    assert not any(map(is_database, ("/postgresql://", "~/x", "", "postgresql", "c:/x")))


def test_an_address_of_anything_else_is_no_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of a bucket or another database raises instead of creating a folder of that name."""
    monkeypatch.chdir(tmp_path)
    for address in ("s3://bucket/x", "mysql://db/x", "https://host"):
        with pytest.raises(errors.Unsupported, match="a store cannot have this root"):
            Store(address)
    assert not list(tmp_path.iterdir())
    with pytest.raises(errors.Unsupported) as raised:
        Store("postgresql+psycopg://me:hunter2@host/db")
    assert "hunter2" not in str(raised.value)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    """A file as the root is not an empty store."""
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(errors.NotFound, match="the root is a file"):
        Store(tmp_path / "notes.txt")


def test_a_store_is_called_by_its_root(tmp_path: Path) -> None:
    """A store is a context manager, and closing a folder does nothing."""
    with Store(tmp_path) as store:
        assert store.name == str(tmp_path) and store.database is None
    store.create("/w", publish=True)


@pytest.mark.parametrize(
    ("root", "blobs", "told"),
    [
        ("postgresql://x/y", None, "a store in a database needs the package psycopg | pip install 'sessile[postgres]'"),
        ("root", "s3://x/y", "an object store needs the package obstore | pip install 'sessile[s3]'"),
    ],
)
def test_a_missing_package_is_told_with_how_to_get_it(root: str, blobs: str | None, told: str, tmp_path: Path) -> None:
    """The error says how to install the package."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT % (root, blobs)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == told, done.stderr
