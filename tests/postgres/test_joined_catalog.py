"""A library on a database, with other agents' local folders, gives the same answers as one on a folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessile import Filter, Library, SessionRow, Store, import_session, sync
from sessile.upkeep.keep import Keeper
from view_rig import CLAUDE, Household, furnished

pytestmark = pytest.mark.mission("B8")

ROOT = "/sessile:postgresql"


class Pair:
    """The same sessions in a folder and in a database, with the same folders of pi and Claude Code for both."""

    def __init__(self, home: Household, url: str) -> None:
        self.home = home
        self.stores = (home.own, Store(url))
        caches = [str(home.root / name) for name in ("cache-folder", "cache-database")]
        self.libraries = [
            Library(store, home.sources, cache=cache) for store, cache in zip(self.stores, caches, strict=True)
        ]

    def catch_up(self) -> None:
        """Sync the folder's sessions to the database, and let both libraries catch up."""
        time.sleep(0.1)  # files that have just changed are read again the next time
        list(sync(*self.stores))
        done = [library.catch_up("index") for library in self.libraries]
        assert (done[0].files, *done[0][3:]) == (done[1].files, *done[1][3:])

    def same(self, wanted: Filter) -> list[str]:
        """Check that both list the same, in pages and at once, and return the ids."""
        folder, database = ([_told(library, row) for row in library.list(wanted).rows] for library in self.libraries)
        assert database == folder
        assert self.libraries[0].list(wanted)[1:] == self.libraries[1].list(wanted)[1:]
        pages = [
            self.libraries[1].list(wanted._replace(limit=2, offset=offset)) for offset in range(0, len(folder) + 2, 2)
        ]
        assert [_told(self.libraries[1], row) for page in pages for row in page.rows] == folder
        return [row["id"] for row in database]

    def close(self) -> None:
        for library in self.libraries:
            library.close()
        self.stores[1].close()


def _told(library: Library, row: SessionRow) -> dict[str, Any]:
    """Return a row without the values that differ between catalogs."""
    told = row._asdict() | {"agent": library.agent_of(row.path), "path": _placed(library, row.path)}
    del told["number"]
    return told


def _placed(library: Library, path: str) -> str:
    return path.replace(library.store.layout.root, "ROOT")


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[Pair]:
    pair = Pair(furnished(tmp_path), postgres_url)
    yield pair
    pair.close()


def test_listings_are_merged_in_every_order(pair: Pair) -> None:
    """Lists are merged in every order, at once and in pages, with hidden and unjudged counts."""
    with pair.home.begin(pair.home.own, "Empty", cwd="/work/web"):
        pass
    pair.catch_up()
    assert len(pair.same(Filter())) == 3
    assert len(pair.same(Filter(hide=()))) == 4
    for sort in ("recent", "started", "cost", "tokens", "messages", "size"):
        pair.same(Filter(sort=sort, hide=()))
    for wanted in (
        Filter(project="/work/app"),
        Filter(has=("branch",)),
        Filter(words=("tidy",)),
        Filter(named=True),
        Filter(id_prefix=CLAUDE[:8]),
        Filter(below=[pair.home.sources[1].sessions]),
    ):
        assert pair.same(wanted), wanted
    folder, database = (
        [(_placed(library, path), size, at) for path, size, at in library.marks()] for library in pair.libraries
    )
    assert database == folder != []


def test_facets_and_usage_are_those_of_all(pair: Pair) -> None:
    """Facets and usage cover both halves, even if a project's sessions are in both."""
    pair.catch_up()
    folder, database = pair.libraries
    assert database.facets() == folder.facets()
    assert database.facets().below == {"claude": 1, "pi": 1, "sessile": 1}
    assert database.facets().project["/work/app"] == 2
    assert database.usage() == folder.usage() and len(database.usage().sessions) == 3


def test_a_search_goes_to_both_halves(pair: Pair) -> None:
    """Hits of both halves alternate, counts are added up, and a filter selects sessions of either half."""
    pair.catch_up()
    folder, database = (library.search("aardvark") for library in pair.libraries)
    assert {hit.entry_id for hit in database.hits} == {hit.entry_id for hit in folder.hits}
    assert len(database.hits) == len(folder.hits) == 2
    assert (database.matches, database.pending) == (folder.matches, 0)
    assert len(pair.libraries[1].search("aardvark", limit=1).hits) == 1
    for agent in ("sessile", "claude"):
        places = [source.sessions for source in pair.libraries[1].sources if source.agent == agent]
        hits = pair.libraries[1].search("aardvark", Filter(below=places)).hits
        assert [pair.libraries[1].agent_of(hit.path) for hit in hits] == [agent]


def test_a_session_that_was_imported_is_shown_once(pair: Pair) -> None:
    """The imported copy is listed; the original is hidden and counted as such. The same applies to sub-agents."""
    path = pair.home.write_claude("Why?", "So.")
    agent = path.with_suffix("") / "subagents" / "agent-a1.jsonl"
    agent.parent.mkdir(parents=True)
    agent.write_bytes(path.read_bytes())
    for store in pair.stores:
        import_session(store, str(path))
    pair.catch_up()
    assert sorted(pair.same(Filter())).count(CLAUDE) == 1
    assert pair.libraries[1].list(Filter(hide=("imported",))).hidden == {"imported": 2}
    assert pair.libraries[1].agent_of(pair.libraries[1].find(CLAUDE)) == "sessile"
    for library in pair.libraries:
        agents = [row.path for row in library.list(Filter(hide=("imported",))).rows if row.sub_agent]
        assert [library.agent_of(path) for path in agents] == ["sessile"]


def test_a_copy_that_was_kept_stands_for_its_original_when_that_is_gone(pair: Pair) -> None:
    """A kept copy in the database is listed only when its original is gone."""
    path = pair.home.projects / "-work-web" / f"{CLAUDE}.jsonl"
    content = path.read_bytes()
    pair.catch_up()
    for library in pair.libraries:
        Keeper(library).keep(str(path))
    pair.catch_up()
    assert list(pair.libraries[1].copies) == [str(path)]
    assert len(pair.same(Filter())) == 3
    path.unlink()
    pair.catch_up()
    assert CLAUDE in pair.same(Filter())
    kept = pair.libraries[1].find(CLAUDE)
    assert kept.startswith(f"{ROOT}/kept/claude/")
    with pair.stores[1].open(kept, readonly=True) as session:
        assert b"".join(session._file_pieces() or ()) == content


def test_a_copy_of_what_was_imported_is_hidden(pair: Pair) -> None:
    """When the original is gone, the imported session in the other half replaces the kept copy."""
    path = pair.home.write_claude("Why?", "So.")
    for store in pair.stores:
        import_session(store, str(path))
    pair.catch_up()
    for library in pair.libraries:
        Keeper(library).keep(str(path))
    path.unlink()
    pair.catch_up()
    assert pair.same(Filter()).count(CLAUDE) == 1
    for library in pair.libraries:
        assert library.list(Filter()).hidden == {"imported": 1}
        assert library.agent_of(library.find(CLAUDE)) == "sessile"


def test_who_looks_at_no_other_folder_has_no_second_half(tmp_path: Path, postgres_url: str) -> None:
    """Without other agents' folders, nothing is written on the machine."""
    with Store(postgres_url) as store, store.create("/work/app", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
        with Library(store, cache=str(tmp_path / "cache")) as library:
            library.catch_up("index")
            (row,) = library.list().rows
            assert [hit.path for hit in library.search("hello", Filter()).hits] == [row.path]
    assert list(tmp_path.iterdir()) == []


def test_a_library_without_a_cache_folder_writes_nothing_to_this_machine(tmp_path: Path, postgres_url: str) -> None:
    """The cache folder of a database is inside the database, not a folder of the same name on this machine."""
    home = furnished(tmp_path)
    with Store(postgres_url) as store, Library(store, home.sources, cache=store.layout.cache) as library:
        library.catch_up("index")
        assert library.list().rows
    assert not Path(ROOT).exists()
