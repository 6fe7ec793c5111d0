"""The turns of a store whose gateways may be many: a database, which they all ask.

A folder has one gateway at a time, which keeps its turns in its memory and, for the next one, in a `TurnLog`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessile.storage.postgres.turns import TurnTable
    from sessile.store import Store


def shared_turns(store: Store) -> TurnTable | None:
    """The turns of all gateways of a store; `None` if it is a folder, which has just one."""
    if store.database is None:
        return None
    from sessile.storage.postgres.turns import TurnTable  # most stores are folders

    return TurnTable(store.database)
