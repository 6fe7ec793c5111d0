"""Claude Code: its projects folder, transcripts and sub-agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sessile.agents.base import Agent, Expiry, Format, Place
from sessile.core.lines import Finding
from sessile.core.providers import Dialect, Words
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.agents.reader import ForeignReader
    from sessile.agents.writer import RowsJournal
    from sessile.core.messages.request import Request
    from sessile.storage.base import Filesystem

_API = "anthropic"


class ClaudeCode(Agent):
    """Claude Code: `~/.claude`. Its modules are imported when one of its files is opened."""

    name = "claude"
    title = "Claude Code"
    capabilities = frozenset({"append", "branch", "compact", "title", "tag", "archive", "delete"})
    command = ("claude", "--resume")
    resumes_by_id = True
    # At its start it removes every transcript that has not changed for this long.
    expiry = Expiry(("settings.json", "settings.local.json"), "cleanupPeriodDays", 30)
    variables = (("CLAUDE_CONFIG_DIR", "~/.claude"),)
    sub_agents = "subagents"
    placing = "sessile.agents.claude.placing"
    surroundings = (
        "claude.environment",
        "claude.model",
        "claude.deferred_tools_delta",
        "claude.agent_listing_delta",
        "claude.skill_listing",
        "claude.auto_mode",
        "claude.date",
        "claude.remote_session_change",
        "claude.session_context",
        "claude.total_tokens_reminder",
    )
    dialect = Dialect(
        "claude",
        gaps=(
            "system prompt: not stored in this transcript",
            "tools: not stored in this transcript",
            "system block 1 (billing header): not stored by Claude Code",
        ),
        merge_users=True,
        compaction=Words("", ""),  # a summary has its own introduction
        stopped=False,
    )

    @cached_property
    def format(self) -> Format:
        """How transcripts are read."""
        from sessile.agents.claude.translation import Claude

        return Claude()

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the projects folder."""
        root = environ.get("CLAUDE_CONFIG_DIR") or f"{home}/.claude"
        return [Source(self.name, root, f"{root}/projects")]

    def open_for_writing(self, place: Place, path: str) -> RowsJournal:
        """Open a transcript for appending."""
        from sessile.agents.claude.journal import TranscriptJournal

        index_path = place.index_path(path)
        return TranscriptJournal(
            place.fs, path, index_path=index_path, power=place.power, patience=place.patience, agent=self
        )

    def check(self, fs: Filesystem, path: str) -> tuple[Sequence[Finding], Mapping[str, int]]:
        """Explain a transcript as Claude Code loads it."""
        from sessile.agents.claude.checking import check_transcript

        report = check_transcript(fs, path)
        rows = {
            "read": report.rows_read,
            "loaded": report.rows_loaded,
            "in_conversation": report.rows_in_chain,
            "progress": report.rows_of_progress,
            "boundaries": report.boundaries,
            **report.rows_beside,
        }
        return report.findings, rows

    def request(self, reader: ForeignReader, entry_id: str, api: str | None) -> tuple[str, Request] | None:
        """Return the request that a transcript records, or that its rows give."""
        if api not in (None, _API):
            return None
        from sessile.agents.claude.requests import request_at

        request = request_at(reader, entry_id)
        return None if request is None else (_API, request)

    def is_sub_agent(self, name: str) -> bool:
        """Return whether a file is the transcript of a sub-agent."""
        return name.startswith("agent-")

    def describe_sub_agent(self, fs: Filesystem, path: str) -> Mapping[str, Any]:
        """Return the sidecar of a sub-agent's transcript."""
        from sessile.agents.claude.paths import read_sidecar

        return read_sidecar(fs, path)
