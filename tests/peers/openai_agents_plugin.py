"""A pytest plugin that replaces the SDK's own sessions with ours in its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory as extensions
import agents.extensions.memory.advanced_sqlite_session as advanced
import agents.extensions.memory.encrypt_session  # keeps the SDK's class, because it uses its internals
import agents.memory
import agents.memory.sqlite_session as plain

from sessile import Store
from sessile.adapters.openai_agents import SessileSession
from sessile.adapters.openai_agents_branches import SessileBranchingSession


def _store(db_path: str | Path) -> Store:
    return Store.in_memory() if str(db_path) == ":memory:" else Store(f"{db_path}.sessile", durability="process")


class SQLiteSession(SessileSession):
    """Our session with the SDK's constructor: a database becomes a folder, tables become a scope."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        scope = f"{sessions_table} {messages_table}"
        super().__init__(session_id, _store(db_path), scope=scope, session_settings=session_settings)
        self.db_path = db_path


class AdvancedSQLiteSession(SessileBranchingSession):
    """Our session with the SDK's constructor; there are no tables to create and nothing to log."""

    def __init__(
        self,
        *,
        session_id: str,
        db_path: str | Path = ":memory:",
        create_tables: bool = False,
        logger: Any = None,
        session_settings: Any = None,
    ) -> None:
        super().__init__(session_id, _store(db_path), session_settings=session_settings)
        self.db_path = db_path

    @property
    def _current_branch_id(self) -> str:
        return self.branch_id


for module in (extensions, advanced):
    module.AdvancedSQLiteSession = AdvancedSQLiteSession  # type: ignore[attr-defined]
for module in (agents, agents.memory, plain):
    module.SQLiteSession = SQLiteSession  # type: ignore[attr-defined]
