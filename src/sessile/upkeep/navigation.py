"""Going to another entry of the tree, with a summary of the branch that is left, if wanted.

    Navigator(session, summarizer).navigate_tree(entry_id, summarize=True)

Going to something that a user said means to say it anew: the leaf becomes its parent, and the text is given back for an editor.
Going to anything else means to go on after it. Nothing is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sessile.core.summaries import (
    NO_CONTENT,
    SYSTEM_PROMPT,
    Summarizer,
    SummaryRequest,
    branch_budget,
    branch_prompt,
    branch_text,
    extract,
    navigation,
    prepare_branch,
)
from sessile.core.tokens import Counter, estimate
from sessile.errors import EntryNotFound, HookFailed, SummarizerFailed
from sessile.session import Session
from sessile.upkeep.hooks import Hooks

_MOST = 2048  # tokens of a branch summary


class Navigated(NamedTuple):
    """Where the leaf is now, what to put into the editor, and the summary that was appended."""

    leaf_id: str | None
    editor_text: str | None = None
    summary_id: str | None = None
    cancelled: bool = False


class Navigator:
    """Moves the leaf of one session. `window` is how many tokens the summarizer can read."""

    def __init__(
        self,
        session: Session,
        summarizer: Summarizer = extract,
        *,
        window: int | None = None,
        counter: Counter = estimate,
        hooks: Hooks | None = None,
    ) -> None:
        self._session = session
        self._summarizer = summarizer
        self._window = window
        self._counter = counter
        self._hooks = hooks or Hooks()

    def navigate_tree(
        self,
        target_id: str,
        *,
        summarize: bool = False,
        instructions: str | None = None,
        replace_instructions: bool = False,
        label: str | None = None,
    ) -> Navigated:
        """Go to an entry; `label` names what comes first there: the summary, else the entry itself."""
        session = self._session
        target = session.get_entry(target_id)
        if target is None:
            raise EntryNotFound(path=session.path)
        path = [entry.id for entry in session.iter_branch()] if session.leaf_id is not None else []
        found = navigation(path, target.body, [entry.id for entry in session.iter_branch(target_id)])
        if not found.moves:
            return Navigated(session.leaf_id)
        event: dict[str, Any] = {"sessionId": session.id, "path": session.path, "targetId": target_id}
        event |= {"oldLeafId": session.leaf_id, "commonAncestorId": found.common_ancestor}
        event["abandoned"] = list(found.abandoned)
        supplied: object = None
        for answer in self._hooks.ask("session_before_tree", event):
            if answer.get("cancel") is True:
                return Navigated(session.leaf_id, cancelled=True)
            supplied = answer.get("summary", supplied)
        told = _supplied(supplied) if supplied is not None else None
        if told is None and summarize and found.abandoned:
            told = self._summed_up(found.abandoned, instructions, replace_instructions)
        summary_id = self._move(found.new_leaf, told, from_extension=supplied is not None)
        if label is not None:
            session.append_label_change(summary_id or target_id, label)
        self._hooks.tell("session_tree", {**event, "newLeafId": session.leaf_id, "summaryEntryId": summary_id})
        return Navigated(session.leaf_id, found.editor_text, summary_id)

    def _move(self, leaf: str | None, told: tuple[str, Any] | None, *, from_extension: bool) -> str | None:
        """Move the leaf; the id of the summary that was appended there."""
        if told is not None:
            return self._session.branch_with_summary(leaf, *told, from_extension or None).id
        if leaf is None:
            self._session.reset_leaf()
        else:
            self._session.branch(leaf)
        return None

    def _summed_up(
        self, abandoned: tuple[str, ...], instructions: str | None, replace: bool
    ) -> tuple[str, dict[str, list[str]]]:
        """What is told of the entries that are left, and the files that they touched."""
        entries = (entry.body for entry_id in reversed(abandoned) if (entry := self._session.get_entry(entry_id)))
        branch = prepare_branch(entries, branch_budget(self._window), self._counter)
        if not branch.messages:
            return NO_CONTENT, branch.files.details()
        prompt = branch_prompt(branch.messages, instructions, replace=replace)
        summary = self._summarizer(SummaryRequest("branch", SYSTEM_PROMPT, prompt, branch.messages, None, _MOST))
        if summary.stop != "stop" or not summary.text.strip():
            raise SummarizerFailed(
                f"the branch was not summed up: it ended with {summary.stop!r}", path=self._session.path
            )
        return branch_text(summary.text, branch.files), branch.files.details()


def _supplied(given: object) -> tuple[str, Any]:
    """The summary that a hook supplies."""
    summary = given.get("summary") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(summary, str):
        raise HookFailed("a hook for session_before_tree supplied no summary")
    return summary, given.get("details")
