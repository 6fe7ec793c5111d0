"""Replace LangGraph's SQLite savers with ours in the tests of LangGraph and of those savers.

The SQLite savers may create objects of any type, and the tests use custom types, so ours may do the same here.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sessile import Store
from sessile.adapters.langgraph import SessileSaver


@contextmanager
def _saver(kind: type[SessileSaver]) -> Iterator[SessileSaver]:
    with (
        tempfile.TemporaryDirectory() as folder,
        kind(Store(folder, durability="process"), serde=JsonPlusSerializer()) as saver,
    ):
        yield saver


class SqliteSaver(SessileSaver):
    """Our saver with the constructor of LangGraph's."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, address: str) -> Iterator[SessileSaver]:
        """Yield a saver in its own folder, whatever the connection string."""
        with _saver(cls) as saver:
            yield saver


class AsyncSqliteSaver(SessileSaver):
    """Our saver with the constructor of LangGraph's async saver."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, address: str) -> AsyncIterator[SessileSaver]:
        """Yield a saver in its own folder, whatever the connection string."""
        with _saver(cls) as saver:
            yield saver


for place, saver in (("sqlite", SqliteSaver), ("sqlite.aio", AsyncSqliteSaver)):
    vars(import_module(f"langgraph.checkpoint.{place}"))[saver.__name__] = saver
