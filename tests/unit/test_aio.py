"""The async facade."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import anyio
import pytest

from sessile import Session, Store
from sessile.aio import AsyncSession, AsyncStore
from sessile.errors import SessionBusy

pytestmark = pytest.mark.anyio

# Properties are read on `sync`; these two hand out iterators or belong to the constructor of a store.
NOT_AWAITED = {
    "iter_lines",
    "walk_up",
    "read_row",
    "iter_rows",
    "read_rows",
    "get_state",
    "in_memory",
    "iter_entries",
    "iter_branch",
    "iter_outline",
    "now",
    "begin",
    "original_path",
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def public_methods(cls: type) -> set[str]:
    return {name for name, value in inspect.getmembers(cls, callable) if not name.startswith("_")}


async def test_a_conversation_works_without_blocking_the_loop(tmp_path: Path) -> None:
    """Create, append, branch, fork and list through the facade."""
    store = AsyncStore(Store(tmp_path))
    async with await store.create("/work/app") as session:
        receipt = await session.append_message({"role": "user", "content": "hello"})
        await session.append_message({"role": "assistant", "content": []})
        assert [entry.id async for entry in session.iter_entries()][:1] == [receipt.id]
        fork = await session.fork()
        await fork.branch(receipt.id)
        assert len((await fork.context()).messages) == 1
        await fork.close()
    assert len(await store.list_all()) == 2


async def test_appends_are_written_in_the_order_of_their_calls() -> None:
    """Concurrent appends are written one after the other, in the order of the calls."""
    session = AsyncSession(Session.in_memory())

    async def say(number: int) -> None:
        await session.append_message({"role": "user", "content": str(number)})

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(say, number)
    chain = await session.get_branch()
    assert len(chain) == 20
    assert len({entry.id for entry in chain}) == 20


async def test_cancelling_does_not_tear_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that has started finishes before the cancellation is raised."""
    store = Store(tmp_path)
    session = AsyncSession(store.create("/work/app", publish=True))
    begun = threading.Event()
    original = session.sync.append_many

    def slow(*args: object, **kwargs: object) -> object:
        begun.set()
        threading.Event().wait(0.05)
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(session.sync, "append_many", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(session.append_message, {"role": "user", "content": "kept"})
        while not begun.is_set():
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    assert [entry["message"]["content"] for entry in session.sync.get_entries()] == ["kept"]
    session.sync.close()


@pytest.mark.mission("X15")
async def test_a_draft_is_listed_read_and_recovered(tmp_path: Path) -> None:
    """As with the engine: reading works while it is written, and writing once its writer is gone."""
    writer = Store(tmp_path).create("/work/app")
    writer.append_message({"role": "user", "content": "question"})
    store = AsyncStore(Store(tmp_path))
    assert [(info.id, info.draft) for info in await store.list_all()] == [(writer.id, True)]
    async with await store.open(writer.id, readonly=True) as reader:
        assert [entry["message"]["content"] for entry in await reader.get_entries()] == ["question"]
    with pytest.raises(SessionBusy):
        await store.open(writer.id)
    writer.close()
    async with await store.open(writer.id) as session:
        assert session.sync.path.endswith(".jsonl")
    assert [(info.id, info.draft) for info in await store.list("/work/app")] == [(writer.id, False)]


async def test_the_facade_has_every_method_of_the_engine() -> None:
    """The facade has every public method of the engine under the same name."""
    assert public_methods(Session) - NOT_AWAITED == public_methods(AsyncSession) - {"iter_entries"}
    assert public_methods(Store) - NOT_AWAITED == public_methods(AsyncStore)
