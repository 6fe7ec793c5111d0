"""What can be told at a glance of a gateway's folder: which conversations it knows.

Only the store file is read, and nothing is written. A broken one is unknown here: whoever opens it is told what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessile.errors import StorageFailure
from sessile.formats.yoyoclaw.document import BrokenStore, parse_store
from sessile.storage import shared_file
from sessile.stores.yoyoclaw.paths import STORE_FILE

if TYPE_CHECKING:
    from sessile.store import Store


def conversation_keys(store: Store, folder: str) -> list[str] | None:
    """The keys of the gateway whose sessions lie in a folder; `None` if that is no gateway's, or cannot be read."""
    try:
        found = shared_file.read(store.fs, f"{folder}/{STORE_FILE}")
        return None if found is None else list(parse_store(found[0]).entries)
    except (BrokenStore, StorageFailure):
        return None
