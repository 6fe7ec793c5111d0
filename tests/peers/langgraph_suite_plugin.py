"""Puts our saver in the place of LangGraph's SQLite savers, for the tests of LangGraph and of those savers.

Theirs may make objects of any type from what they read, and the tests have types of their own: so may ours, here.
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
    """Ours, made as theirs is."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, address: str) -> Iterator[SessileSaver]:
        """A saver in a folder of its own, whatever the address."""
        with _saver(cls) as saver:
            yield saver


class AsyncSqliteSaver(SessileSaver):
    """Ours, made as theirs for async code is."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, address: str) -> AsyncIterator[SessileSaver]:
        """A saver in a folder of its own, whatever the address."""
        with _saver(cls) as saver:
            yield saver


for place, saver in (("sqlite", SqliteSaver), ("sqlite.aio", AsyncSqliteSaver)):
    vars(import_module(f"langgraph.checkpoint.{place}"))[saver.__name__] = saver
