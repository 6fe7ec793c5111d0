"""Sessile: the session engine for AI agents."""

from sessile import errors
from sessile.batch import Receipt
from sessile.core.context import LAST_ENTRY, SessionContext, build_session_context
from sessile.core.entries import Entry
from sessile.core.lines import Finding
from sessile.core.llm import convert_to_llm, to_anthropic, to_openai
from sessile.core.migrate import migrate_session_entries
from sessile.discovery import RecentSession, SessionInfo, find_most_recent_session, get_recent_sessions
from sessile.session import Session
from sessile.storage.blobs import Blob, BlobStore
from sessile.storage.history import HistoryEntry, HistoryStorage
from sessile.storage.layout import family_homes, terminal_id
from sessile.storage.trash import Deletion
from sessile.store import Store, load_entries_from_file
from sessile.view import TreeNode

__version__ = "0.1.0"

__all__ = [
    "LAST_ENTRY",
    "Blob",
    "BlobStore",
    "Deletion",
    "Entry",
    "Finding",
    "HistoryEntry",
    "HistoryStorage",
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
