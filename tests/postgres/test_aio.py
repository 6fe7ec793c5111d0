"""The async facade of a store in a database has the same methods, under asyncio and trio."""

from __future__ import annotations

import anyio
import pytest

from builders import user
from sessile import Store
from sessile.aio import AsyncStore

pytestmark = [pytest.mark.mission("B8"), pytest.mark.anyio]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_many_tasks_append_to_one_session_of_a_database(postgres_url: str) -> None:
    """Tasks that append at once make one chain with every entry once, and another process reads the same."""
    store = AsyncStore(Store(postgres_url))
    session = await store.create("/work/app", publish=True)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(session.append_message, user(str(number)))
    chain = await session.get_branch()
    assert sorted(int(entry["message"]["content"]) for entry in chain) == list(range(20))
    with Store(postgres_url) as other, other.open(session.sync.id, readonly=True) as seen:
        assert [entry.id for entry in seen.get_branch()] == [entry.id for entry in chain]
    await session.close()
    await store.close()
