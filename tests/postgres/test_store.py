"""A store in a database keeps the numbered behaviours of `StoreContract`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from postgres_rig import Server
from sessile import Library, Store
from sessile.errors import SessionBusy
from sessile.testing.store_contract import OpenStore, StoreContract, told

pytestmark = pytest.mark.mission("B8")


class TestDatabase(StoreContract):
    """A store in a database; every opener has its own connections and leases."""

    @pytest.fixture
    def open_store(self, postgres_url: str) -> Iterator[OpenStore]:
        with ExitStack() as stack:
            yield lambda: stack.enter_context(Store(postgres_url, patience=2.0))

    @pytest.fixture
    def outside(self, tmp_path: Path) -> str:
        return str(tmp_path)


DYING = """
import os, sys, signal
from sessile import Library, Store
from sessile.errors import SessionBusy
session = Store(sys.argv[1]).create("/work/app")
session.append_message({"role": "user", "content": "pending"})
print(session.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_draft_whose_process_was_killed_is_recovered_when_its_lease_has_ended(
    postgres_server: Server, postgres_url: str
) -> None:
    """Until the lease has expired, the owner may be alive: the draft is listed, searched and read, but not recovered."""
    dead = subprocess.run([sys.executable, "-c", DYING, postgres_url], capture_output=True, text=True, timeout=30)
    assert dead.returncode == -signal.SIGKILL
    session_id = dead.stdout.strip()
    with Store(postgres_url, patience=0.2) as store:
        with store.continue_recent("/work/app") as other:
            assert other.id != session_id
        assert [(info.id, info.draft) for info in store.list_all()] == [(session_id, True)]
        with Library(store) as library:
            assert [(row.id, row.draft) for row in library.list().rows] == [(session_id, True)]
            assert [hit.session_id for hit in library.search("pending").hits] == [session_id]
            assert library.find(session_id[:-2]) == store.find(session_id)
        with store.open(session_id, readonly=True) as reader:
            assert (told(reader), reader.is_draft) == (["pending"], True)
        with pytest.raises(SessionBusy):
            store.open(session_id)
        with postgres_server.connect() as connection:
            schema = postgres_url.rpartition("schema=")[2]
            ended = connection.execute(f"UPDATE {schema}.lease SET until = until - interval '1 hour'")
            assert ended.rowcount > 0
        with store.continue_recent("/work/app") as found:
            assert (found.id, told(found), found.is_draft) == (session_id, ["pending"], False)
