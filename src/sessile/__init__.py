"""Sessile: a session engine for AI agents.

    from sessile import Store

    with Store("~/.my-agent").create("/work/app") as session:
        session.append_message({"role": "user", "content": "hello"})
        messages = session.context().messages

`Store` creates and opens sessions, `Session` reads and appends entries, and `Library` finds the sessions of all agents on a
machine. Every name is imported from its module on first use, so a program loads only what it needs.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessile import errors
    from sessile.core.compaction import CompactionSettings
    from sessile.core.context import SessionContext, build_session_context
    from sessile.core.entries import Entry
    from sessile.core.lines import Finding
    from sessile.core.messages.anthropic import to_anthropic
    from sessile.core.messages.family import convert_to_llm
    from sessile.core.messages.gemini import to_google
    from sessile.core.messages.openai_chat import to_openai
    from sessile.core.messages.openai_responses import to_responses
    from sessile.core.redact import Redactor, find_secrets
    from sessile.core.summaries import Summary
    from sessile.discovery import SessionInfo
    from sessile.export import Export
    from sessile.library import Library
    from sessile.session import Receipt, Session, TreeNode
    from sessile.storage.blobs import BlobStore
    from sessile.storage.catalog_rows import Listing, SessionRow
    from sessile.storage.filters import Filter
    from sessile.storage.history import HistoryStorage
    from sessile.storage.search import Hit, Results
    from sessile.store import Store
    from sessile.transfer import converted, import_session, sync
    from sessile.upkeep.check import check, repair
    from sessile.upkeep.compactor import Compactor
    from sessile.upkeep.hooks import Hooks
    from sessile.upkeep.navigation import Navigator
    from sessile.vendors.models import Models
    from sessile.vendors.summarizers import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer

__version__ = "0.2.0"

_MODULES = {
    # Sessions
    "Store": "sessile.store",
    "Session": "sessile.session",
    "Entry": "sessile.core.entries",
    "Receipt": "sessile.session",
    "TreeNode": "sessile.session",
    "Finding": "sessile.core.lines",
    "SessionInfo": "sessile.discovery",
    "BlobStore": "sessile.storage.blobs",
    # Context and providers
    "SessionContext": "sessile.core.context",
    "build_session_context": "sessile.core.context",
    "convert_to_llm": "sessile.core.messages.family",
    "to_anthropic": "sessile.core.messages.anthropic",
    "to_openai": "sessile.core.messages.openai_chat",
    "to_responses": "sessile.core.messages.openai_responses",
    "to_google": "sessile.core.messages.gemini",
    "Models": "sessile.vendors.models",
    # Sessions of all agents
    "Library": "sessile.library",
    "Filter": "sessile.storage.filters",
    "Listing": "sessile.storage.catalog_rows",
    "SessionRow": "sessile.storage.catalog_rows",
    "Results": "sessile.storage.search",
    "Hit": "sessile.storage.search",
    # Compaction
    "Compactor": "sessile.upkeep.compactor",
    "CompactionSettings": "sessile.core.compaction",
    "Hooks": "sessile.upkeep.hooks",
    "Navigator": "sessile.upkeep.navigation",
    "Summary": "sessile.core.summaries",
    "AnthropicSummarizer": "sessile.vendors.summarizers",
    "OpenAISummarizer": "sessile.vendors.summarizers",
    "CommandSummarizer": "sessile.vendors.summarizers",
    # Import, export, sync
    "import_session": "sessile.transfer",
    "converted": "sessile.transfer",
    "Export": "sessile.export",
    "Redactor": "sessile.core.redact",
    "find_secrets": "sessile.core.redact",
    "sync": "sessile.transfer",
    # Upkeep
    "check": "sessile.upkeep.check",
    "repair": "sessile.upkeep.check",
    # Prompt history
    "HistoryStorage": "sessile.storage.history",
    # Errors
    "errors": "sessile.errors",
}

__all__ = [
    "AnthropicSummarizer",
    "BlobStore",
    "CommandSummarizer",
    "CompactionSettings",
    "Compactor",
    "Entry",
    "Export",
    "Filter",
    "Finding",
    "HistoryStorage",
    "Hit",
    "Hooks",
    "Library",
    "Listing",
    "Models",
    "Navigator",
    "OpenAISummarizer",
    "Receipt",
    "Redactor",
    "Results",
    "Session",
    "SessionContext",
    "SessionInfo",
    "SessionRow",
    "Store",
    "Summary",
    "TreeNode",
    "build_session_context",
    "check",
    "convert_to_llm",
    "converted",
    "errors",
    "find_secrets",
    "import_session",
    "repair",
    "sync",
    "to_anthropic",
    "to_google",
    "to_openai",
    "to_responses",
]


def __getattr__(name: str) -> object:
    from importlib import import_module  # on first use, like the module itself

    if name not in _MODULES:
        raise AttributeError(f"module 'sessile' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    value: object = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
