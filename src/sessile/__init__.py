"""Sessile: the session engine for AI agents.

A name is imported from its module when it is first used, so that a program pays only for what it needs.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessile import errors
    from sessile.agents import SubAgent, agent_files, sub_agents
    from sessile.batch import Receipt
    from sessile.binding_maintenance import MaintenancePlan, apply_maintenance, plan_maintenance, undo_maintenance
    from sessile.binding_sync import sync_bindings
    from sessile.blob_sweep import SweepPlan, Swept, apply_blob_sweep, plan_blob_sweep
    from sessile.bound_sessions import Bound
    from sessile.checking import Repaired, RepairPlan, Report, check, plan_repair, repair
    from sessile.compactor import Compactor
    from sessile.configured import agent_workspace, routing_of
    from sessile.conversation_list import Conversation, ConversationFilter, ConversationList
    from sessile.conversations import Conversations
    from sessile.converting import CONVERSIONS, Imported, converted, import_session
    from sessile.core.compaction import CompactionSettings
    from sessile.core.context import LAST_ENTRY, SessionContext, build_session_context
    from sessile.core.digest import Counts
    from sessile.core.entries import Entry
    from sessile.core.lines import Finding
    from sessile.core.llm import convert_to_llm, to_anthropic, to_openai
    from sessile.core.llm_google import to_google
    from sessile.core.migrate import migrate_session_entries
    from sessile.core.redact import Redaction, Redactor, find_secrets
    from sessile.core.summaries import Summary, SummaryRequest, extract
    from sessile.core.troubles import Problem
    from sessile.deleted_bindings import DeletedBinding
    from sessile.demo import bind_demo, make_demo
    from sessile.discovery import (
        RecentSession,
        SessionInfo,
        find_most_recent_session,
        get_recent_sessions,
        load_entries_from_file,
    )
    from sessile.doctoring import Patient, examine_conversations
    from sessile.doctoring_talk import Advice
    from sessile.exporting import FORMS, Export
    from sessile.finding import find_in_session
    from sessile.formats.capabilities import CAPABILITIES, capabilities_of, format_of_agent
    from sessile.hooks import Hooks
    from sessile.inbound import Inbound, Routing
    from sessile.keeping import Expiring, Keeper, Kept, Outlook, expiring
    from sessile.library import Found, Library, added_sources, find_entry, find_leaf
    from sessile.maintenance import (
        Trashed,
        TrashPlan,
        disk_usage,
        empty_trash,
        plan_empty_trash,
        trash_contents,
        undo_last,
    )
    from sessile.memory_notes import append_notes
    from sessile.models import Models
    from sessile.named_sessions import Named, NamedSessions
    from sessile.navigating import Navigator
    from sessile.presence import Presence, Whereabouts
    from sessile.prune import Pruned, PrunePlan, PruneRule, apply_prune, plan_prune
    from sessile.resizing import can_resize, resize
    from sessile.reviewing import Review, Reviewed, review_export, share_redactor, share_report
    from sessile.session import Session
    from sessile.shared_turns import shared_turns
    from sessile.storage.backing import is_database
    from sessile.storage.base import Blob, Row
    from sessile.storage.blobs import BlobStore
    from sessile.storage.catalog_rows import HIDE, Filter, Listing, SessionRow
    from sessile.storage.history import HistoryEntry, HistoryStorage
    from sessile.storage.layout import Source, family_homes, terminal_id
    from sessile.storage.scan import Needle, WordNeedle
    from sessile.storage.searcher import Hit, Results
    from sessile.storage.secret_file import keep_secret
    from sessile.storage.session_storage import FileSessionStorage, MemorySessionStorage
    from sessile.storage.trash import Deletion
    from sessile.storage.turn_log import TurnLog
    from sessile.store import Store
    from sessile.stores.yoyoclaw.accounts import ImportReport
    from sessile.stores.yoyoclaw.glance import conversation_keys
    from sessile.stores.yoyoclaw.importing import import_state
    from sessile.stores.yoyoclaw.paths import StateFolder
    from sessile.summarizers import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer, RemoteSummarizer
    from sessile.syncing import Synced, sync
    from sessile.view import TreeNode
    from sessile.zones import local_zone

__version__ = "0.1.0"

_HOMES = {
    "Advice": "sessile.doctoring_talk",
    "AnthropicSummarizer": "sessile.summarizers",
    "Blob": "sessile.storage.base",
    "BlobStore": "sessile.storage.blobs",
    "Bound": "sessile.bound_sessions",
    "CAPABILITIES": "sessile.formats.capabilities",
    "CONVERSIONS": "sessile.converting",
    "CommandSummarizer": "sessile.summarizers",
    "CompactionSettings": "sessile.core.compaction",
    "Compactor": "sessile.compactor",
    "Conversation": "sessile.conversation_list",
    "ConversationFilter": "sessile.conversation_list",
    "ConversationList": "sessile.conversation_list",
    "Conversations": "sessile.conversations",
    "Counts": "sessile.core.digest",
    "DeletedBinding": "sessile.deleted_bindings",
    "Deletion": "sessile.storage.trash",
    "Entry": "sessile.core.entries",
    "Expiring": "sessile.keeping",
    "Export": "sessile.exporting",
    "FORMS": "sessile.exporting",
    "FileSessionStorage": "sessile.storage.session_storage",
    "Filter": "sessile.storage.catalog_rows",
    "Finding": "sessile.core.lines",
    "Found": "sessile.library",
    "HIDE": "sessile.storage.catalog_rows",
    "HistoryEntry": "sessile.storage.history",
    "HistoryStorage": "sessile.storage.history",
    "Hit": "sessile.storage.searcher",
    "Hooks": "sessile.hooks",
    "ImportReport": "sessile.stores.yoyoclaw.accounts",
    "Imported": "sessile.converting",
    "Inbound": "sessile.inbound",
    "Keeper": "sessile.keeping",
    "Kept": "sessile.keeping",
    "LAST_ENTRY": "sessile.core.context",
    "Library": "sessile.library",
    "Listing": "sessile.storage.catalog_rows",
    "MaintenancePlan": "sessile.binding_maintenance",
    "MemorySessionStorage": "sessile.storage.session_storage",
    "Models": "sessile.models",
    "Named": "sessile.named_sessions",
    "NamedSessions": "sessile.named_sessions",
    "Navigator": "sessile.navigating",
    "Needle": "sessile.storage.scan",
    "OpenAISummarizer": "sessile.summarizers",
    "Outlook": "sessile.keeping",
    "Patient": "sessile.doctoring",
    "Presence": "sessile.presence",
    "Problem": "sessile.core.troubles",
    "PrunePlan": "sessile.prune",
    "PruneRule": "sessile.prune",
    "Pruned": "sessile.prune",
    "Receipt": "sessile.batch",
    "RecentSession": "sessile.discovery",
    "Redaction": "sessile.core.redact",
    "Redactor": "sessile.core.redact",
    "RemoteSummarizer": "sessile.summarizers",
    "RepairPlan": "sessile.checking",
    "Repaired": "sessile.checking",
    "Report": "sessile.checking",
    "Results": "sessile.storage.searcher",
    "Review": "sessile.reviewing",
    "Reviewed": "sessile.reviewing",
    "Routing": "sessile.inbound",
    "Row": "sessile.storage.base",
    "Session": "sessile.session",
    "SessionContext": "sessile.core.context",
    "SessionInfo": "sessile.discovery",
    "SessionRow": "sessile.storage.catalog_rows",
    "Source": "sessile.storage.layout",
    "StateFolder": "sessile.stores.yoyoclaw.paths",
    "Store": "sessile.store",
    "SubAgent": "sessile.agents",
    "Summary": "sessile.core.summaries",
    "SummaryRequest": "sessile.core.summaries",
    "SweepPlan": "sessile.blob_sweep",
    "Swept": "sessile.blob_sweep",
    "Synced": "sessile.syncing",
    "TrashPlan": "sessile.maintenance",
    "Trashed": "sessile.maintenance",
    "TreeNode": "sessile.view",
    "TurnLog": "sessile.storage.turn_log",
    "Whereabouts": "sessile.presence",
    "WordNeedle": "sessile.storage.scan",
    "added_sources": "sessile.library",
    "agent_files": "sessile.agents",
    "agent_workspace": "sessile.configured",
    "append_notes": "sessile.memory_notes",
    "apply_blob_sweep": "sessile.blob_sweep",
    "apply_maintenance": "sessile.binding_maintenance",
    "apply_prune": "sessile.prune",
    "bind_demo": "sessile.demo",
    "build_session_context": "sessile.core.context",
    "can_resize": "sessile.resizing",
    "capabilities_of": "sessile.formats.capabilities",
    "check": "sessile.checking",
    "conversation_keys": "sessile.stores.yoyoclaw.glance",
    "convert_to_llm": "sessile.core.llm",
    "converted": "sessile.converting",
    "disk_usage": "sessile.maintenance",
    "empty_trash": "sessile.maintenance",
    "errors": "sessile.errors",
    "examine_conversations": "sessile.doctoring",
    "expiring": "sessile.keeping",
    "extract": "sessile.core.summaries",
    "family_homes": "sessile.storage.layout",
    "find_entry": "sessile.library",
    "find_in_session": "sessile.finding",
    "find_leaf": "sessile.library",
    "find_most_recent_session": "sessile.discovery",
    "find_secrets": "sessile.core.redact",
    "format_of_agent": "sessile.formats.capabilities",
    "get_recent_sessions": "sessile.discovery",
    "import_session": "sessile.converting",
    "import_state": "sessile.stores.yoyoclaw.importing",
    "is_database": "sessile.storage.backing",
    "keep_secret": "sessile.storage.secret_file",
    "load_entries_from_file": "sessile.discovery",
    "local_zone": "sessile.zones",
    "make_demo": "sessile.demo",
    "migrate_session_entries": "sessile.core.migrate",
    "plan_blob_sweep": "sessile.blob_sweep",
    "plan_empty_trash": "sessile.maintenance",
    "plan_maintenance": "sessile.binding_maintenance",
    "plan_prune": "sessile.prune",
    "plan_repair": "sessile.checking",
    "repair": "sessile.checking",
    "resize": "sessile.resizing",
    "review_export": "sessile.reviewing",
    "routing_of": "sessile.configured",
    "share_redactor": "sessile.reviewing",
    "share_report": "sessile.reviewing",
    "shared_turns": "sessile.shared_turns",
    "sub_agents": "sessile.agents",
    "sync": "sessile.syncing",
    "sync_bindings": "sessile.binding_sync",
    "terminal_id": "sessile.storage.layout",
    "to_anthropic": "sessile.core.llm",
    "to_google": "sessile.core.llm_google",
    "to_openai": "sessile.core.llm",
    "trash_contents": "sessile.maintenance",
    "undo_last": "sessile.maintenance",
    "undo_maintenance": "sessile.binding_maintenance",
}

__all__ = [
    "Advice",
    "AnthropicSummarizer",
    "Blob",
    "BlobStore",
    "Bound",
    "CAPABILITIES",
    "CONVERSIONS",
    "CommandSummarizer",
    "CompactionSettings",
    "Compactor",
    "Conversation",
    "ConversationFilter",
    "ConversationList",
    "Conversations",
    "Counts",
    "DeletedBinding",
    "Deletion",
    "Entry",
    "Expiring",
    "Export",
    "FORMS",
    "FileSessionStorage",
    "Filter",
    "Finding",
    "Found",
    "HIDE",
    "HistoryEntry",
    "HistoryStorage",
    "Hit",
    "Hooks",
    "ImportReport",
    "Imported",
    "Inbound",
    "Keeper",
    "Kept",
    "LAST_ENTRY",
    "Library",
    "Listing",
    "MaintenancePlan",
    "MemorySessionStorage",
    "Models",
    "Named",
    "NamedSessions",
    "Navigator",
    "Needle",
    "OpenAISummarizer",
    "Outlook",
    "Patient",
    "Presence",
    "Problem",
    "PrunePlan",
    "PruneRule",
    "Pruned",
    "Receipt",
    "RecentSession",
    "Redaction",
    "Redactor",
    "RemoteSummarizer",
    "RepairPlan",
    "Repaired",
    "Report",
    "Results",
    "Review",
    "Reviewed",
    "Routing",
    "Row",
    "Session",
    "SessionContext",
    "SessionInfo",
    "SessionRow",
    "Source",
    "StateFolder",
    "Store",
    "SubAgent",
    "Summary",
    "SummaryRequest",
    "SweepPlan",
    "Swept",
    "Synced",
    "TrashPlan",
    "Trashed",
    "TreeNode",
    "TurnLog",
    "Whereabouts",
    "WordNeedle",
    "added_sources",
    "agent_files",
    "agent_workspace",
    "append_notes",
    "apply_blob_sweep",
    "apply_maintenance",
    "apply_prune",
    "bind_demo",
    "build_session_context",
    "can_resize",
    "capabilities_of",
    "check",
    "conversation_keys",
    "convert_to_llm",
    "converted",
    "disk_usage",
    "empty_trash",
    "errors",
    "examine_conversations",
    "expiring",
    "extract",
    "family_homes",
    "find_entry",
    "find_in_session",
    "find_leaf",
    "find_most_recent_session",
    "find_secrets",
    "format_of_agent",
    "get_recent_sessions",
    "import_session",
    "import_state",
    "is_database",
    "keep_secret",
    "load_entries_from_file",
    "local_zone",
    "make_demo",
    "migrate_session_entries",
    "plan_blob_sweep",
    "plan_empty_trash",
    "plan_maintenance",
    "plan_prune",
    "plan_repair",
    "repair",
    "resize",
    "review_export",
    "routing_of",
    "share_redactor",
    "share_report",
    "shared_turns",
    "sub_agents",
    "sync",
    "sync_bindings",
    "terminal_id",
    "to_anthropic",
    "to_google",
    "to_openai",
    "trash_contents",
    "undo_last",
    "undo_maintenance",
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
