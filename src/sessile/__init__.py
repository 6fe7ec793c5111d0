"""Sessile: the session engine for AI agents.

A name is imported from its module when it is first used, so that a program pays only for what it needs.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessile import errors
    from sessile.agents import SubAgent, agent_files, sub_agents
    from sessile.batch import Receipt
    from sessile.care.compactor import Compactor
    from sessile.care.hooks import Hooks
    from sessile.care.models import Models
    from sessile.care.navigating import Navigator
    from sessile.care.resizing import can_resize, resize
    from sessile.care.summarizers import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer, RemoteSummarizer
    from sessile.config.zones import local_zone
    from sessile.conversations.bound_sessions import Bound
    from sessile.conversations.configured import agent_workspace, routing_of
    from sessile.conversations.conversations import Conversations
    from sessile.conversations.deleted_bindings import DeletedBinding
    from sessile.conversations.doctoring import Patient, examine_conversations
    from sessile.conversations.doctoring_talk import Advice
    from sessile.conversations.inbound import Inbound, Routing
    from sessile.conversations.listing import Conversation, ConversationFilter, ConversationList
    from sessile.conversations.maintenance import MaintenancePlan, apply_maintenance, plan_maintenance, undo_maintenance
    from sessile.conversations.memory_notes import append_notes
    from sessile.conversations.presence import Presence, Whereabouts
    from sessile.conversations.shared_turns import shared_turns
    from sessile.conversations.syncing import sync_bindings
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
    from sessile.demo import bind_demo, make_demo
    from sessile.discovery import (
        RecentSession,
        SessionInfo,
        find_most_recent_session,
        get_recent_sessions,
        load_entries_from_file,
    )
    from sessile.exporting import FORMS, Export
    from sessile.finding import find_in_session
    from sessile.formats.capabilities import CAPABILITIES, capabilities_of, format_of_agent
    from sessile.formats.yoyoclaw.patching import patchable
    from sessile.library import Found, Library, added_sources, find_entry, find_leaf
    from sessile.named_sessions import Named, NamedSessions
    from sessile.reviewing import Review, Reviewed, review_export, share_redactor, share_report
    from sessile.session import Session
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
    from sessile.syncing import Synced, sync
    from sessile.upkeep.blob_sweep import SweepPlan, Swept, apply_blob_sweep, plan_blob_sweep
    from sessile.upkeep.checking import Repaired, RepairPlan, Report, check, plan_repair, repair
    from sessile.upkeep.keeping import Expiring, Keeper, Kept, Outlook, expiring
    from sessile.upkeep.pruning import Pruned, PrunePlan, PruneRule, apply_prune, plan_prune
    from sessile.upkeep.trash import (
        Trashed,
        TrashPlan,
        disk_usage,
        empty_trash,
        plan_empty_trash,
        trash_contents,
        undo_last,
    )
    from sessile.view import TreeNode

__version__ = "0.1.0"

_NAMES = {  # by module
    "sessile.agents": "SubAgent agent_files sub_agents",
    "sessile.batch": "Receipt",
    "sessile.care.compactor": "Compactor",
    "sessile.care.hooks": "Hooks",
    "sessile.care.models": "Models",
    "sessile.care.navigating": "Navigator",
    "sessile.care.resizing": "can_resize resize",
    "sessile.care.summarizers": "AnthropicSummarizer CommandSummarizer OpenAISummarizer RemoteSummarizer",
    "sessile.config.zones": "local_zone",
    "sessile.conversations.bound_sessions": "Bound",
    "sessile.conversations.configured": "agent_workspace routing_of",
    "sessile.conversations.conversations": "Conversations",
    "sessile.conversations.deleted_bindings": "DeletedBinding",
    "sessile.conversations.doctoring": "Patient examine_conversations",
    "sessile.conversations.doctoring_talk": "Advice",
    "sessile.conversations.inbound": "Inbound Routing",
    "sessile.conversations.listing": "Conversation ConversationFilter ConversationList",
    "sessile.conversations.maintenance": "MaintenancePlan apply_maintenance plan_maintenance undo_maintenance",
    "sessile.conversations.memory_notes": "append_notes",
    "sessile.conversations.presence": "Presence Whereabouts",
    "sessile.conversations.shared_turns": "shared_turns",
    "sessile.conversations.syncing": "sync_bindings",
    "sessile.converting": "CONVERSIONS Imported converted import_session",
    "sessile.core.compaction": "CompactionSettings",
    "sessile.core.context": "LAST_ENTRY SessionContext build_session_context",
    "sessile.core.digest": "Counts",
    "sessile.core.entries": "Entry",
    "sessile.core.lines": "Finding",
    "sessile.core.llm": "convert_to_llm to_anthropic to_openai",
    "sessile.core.llm_google": "to_google",
    "sessile.core.migrate": "migrate_session_entries",
    "sessile.core.redact": "Redaction Redactor find_secrets",
    "sessile.core.summaries": "Summary SummaryRequest extract",
    "sessile.core.troubles": "Problem",
    "sessile.demo": "bind_demo make_demo",
    "sessile.discovery": "RecentSession SessionInfo find_most_recent_session get_recent_sessions load_entries_from_file",
    "sessile.errors": "errors",
    "sessile.exporting": "Export FORMS",
    "sessile.finding": "find_in_session",
    "sessile.formats.capabilities": "CAPABILITIES capabilities_of format_of_agent",
    "sessile.formats.yoyoclaw.patching": "patchable",
    "sessile.library": "Found Library added_sources find_entry find_leaf",
    "sessile.named_sessions": "Named NamedSessions",
    "sessile.reviewing": "Review Reviewed review_export share_redactor share_report",
    "sessile.session": "Session",
    "sessile.storage.backing": "is_database",
    "sessile.storage.base": "Blob Row",
    "sessile.storage.blobs": "BlobStore",
    "sessile.storage.catalog_rows": "Filter HIDE Listing SessionRow",
    "sessile.storage.history": "HistoryEntry HistoryStorage",
    "sessile.storage.layout": "Source family_homes terminal_id",
    "sessile.storage.scan": "Needle WordNeedle",
    "sessile.storage.searcher": "Hit Results",
    "sessile.storage.secret_file": "keep_secret",
    "sessile.storage.session_storage": "FileSessionStorage MemorySessionStorage",
    "sessile.storage.trash": "Deletion",
    "sessile.storage.turn_log": "TurnLog",
    "sessile.store": "Store",
    "sessile.stores.yoyoclaw.accounts": "ImportReport",
    "sessile.stores.yoyoclaw.glance": "conversation_keys",
    "sessile.stores.yoyoclaw.importing": "import_state",
    "sessile.stores.yoyoclaw.paths": "StateFolder",
    "sessile.syncing": "Synced sync",
    "sessile.upkeep.blob_sweep": "SweepPlan Swept apply_blob_sweep plan_blob_sweep",
    "sessile.upkeep.checking": "RepairPlan Repaired Report check plan_repair repair",
    "sessile.upkeep.keeping": "Expiring Keeper Kept Outlook expiring",
    "sessile.upkeep.pruning": "PrunePlan PruneRule Pruned apply_prune plan_prune",
    "sessile.upkeep.trash": "TrashPlan Trashed disk_usage empty_trash plan_empty_trash trash_contents undo_last",
    "sessile.view": "TreeNode",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
    "patchable",
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
