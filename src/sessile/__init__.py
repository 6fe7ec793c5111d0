"""Sessile: the session engine for AI agents.

A name is imported from its module when it is first used, so that a program pays only for what it needs.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessile import errors
    from sessile.batch import Receipt
    from sessile.core.context import LAST_ENTRY, SessionContext, build_session_context
    from sessile.core.entries import Entry
    from sessile.core.lines import Finding
    from sessile.core.llm import convert_to_llm, to_anthropic, to_openai
    from sessile.core.migrate import migrate_session_entries
    from sessile.discovery import (
        RecentSession,
        SessionInfo,
        find_most_recent_session,
        get_recent_sessions,
        load_entries_from_file,
    )
    from sessile.session import Session
    from sessile.storage.blobs import Blob, BlobStore
    from sessile.storage.history import HistoryEntry, HistoryStorage
    from sessile.storage.layout import family_homes, terminal_id
    from sessile.storage.session_storage import FileSessionStorage, MemorySessionStorage
    from sessile.storage.trash import Deletion
    from sessile.store import Store
    from sessile.view import TreeNode

__version__ = "0.1.0"

_HOMES = {
    "Blob": "sessile.storage.blobs",
    "BlobStore": "sessile.storage.blobs",
    "Deletion": "sessile.storage.trash",
    "Entry": "sessile.core.entries",
    "FileSessionStorage": "sessile.storage.session_storage",
    "Finding": "sessile.core.lines",
    "HistoryEntry": "sessile.storage.history",
    "HistoryStorage": "sessile.storage.history",
    "LAST_ENTRY": "sessile.core.context",
    "MemorySessionStorage": "sessile.storage.session_storage",
    "Receipt": "sessile.batch",
    "RecentSession": "sessile.discovery",
    "Session": "sessile.session",
    "SessionContext": "sessile.core.context",
    "SessionInfo": "sessile.discovery",
    "Store": "sessile.store",
    "TreeNode": "sessile.view",
    "build_session_context": "sessile.core.context",
    "convert_to_llm": "sessile.core.llm",
    "errors": "sessile.errors",
    "family_homes": "sessile.storage.layout",
    "find_most_recent_session": "sessile.discovery",
    "get_recent_sessions": "sessile.discovery",
    "load_entries_from_file": "sessile.discovery",
    "migrate_session_entries": "sessile.core.migrate",
    "terminal_id": "sessile.storage.layout",
    "to_anthropic": "sessile.core.llm",
    "to_openai": "sessile.core.llm",
}

__all__ = [
    "Blob",
    "BlobStore",
    "Deletion",
    "Entry",
    "FileSessionStorage",
    "Finding",
    "HistoryEntry",
    "HistoryStorage",
    "LAST_ENTRY",
    "MemorySessionStorage",
    "Receipt",
    "RecentSession",
    "Session",
    "SessionContext",
    "SessionInfo",
    "Store",
    "TreeNode",
    "build_session_context",
    "convert_to_llm",
    "errors",
    "family_homes",
    "find_most_recent_session",
    "get_recent_sessions",
    "load_entries_from_file",
    "migrate_session_entries",
    "terminal_id",
    "to_anthropic",
    "to_openai",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'sessile' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    value: object = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
