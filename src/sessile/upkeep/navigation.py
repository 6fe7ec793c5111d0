"""Go to another entry of the tree, optionally with a summary of the abandoned branch.

    Navigator(session, summarizer).navigate_tree(entry_id, summarize=True)

Going to a user message means editing it: the leaf becomes its parent, and its text is returned for an editor. Going to any other
entry means continuing after it. Nothing is removed.
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

_MAX_TOKENS = 2048  # of a branch summary


class Navigated(NamedTuple):
    """The result of a move.

    Attributes:
        leaf_id: The new leaf; `None` is before the first entry.
        editor_text: The text of the user message that was the target, for editing.
        summary_id: The id of the appended summary.
        cancelled: Whether a hook prevented the move.
    """

    leaf_id: str | None
    editor_text: str | None = None
    summary_id: str | None = None
    cancelled: bool = False


class Navigator:
    """Moves the leaf of one session, with a summary of the branch that is left.

    Args:
        session: The session.
        summarizer: Returns the summary of a request; by default messages are quoted, without a model.
        window: The context window of the summarizer, in tokens.
        counter: Counts the tokens of a message.
        hooks: Called before and after a move.

    Example:
        ```python
        moved = Navigator(session).navigate_tree(entry_id, summarize=True)
        print(moved.leaf_id, moved.editor_text)
        ```
    """

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
        """Go to an entry. A user message is not the new leaf, but its parent: its text is returned for editing.

        Args:
            target_id: The entry.
            summarize: Append a summary of the branch that is left.
            instructions: What the summary should focus on.
            replace_instructions: Use `instructions` instead of the usual prompt.
            label: A label for the summary, or for the entry if there is no summary.

        Raises:
            EntryNotFound: There is no such entry.
            HookFailed: A hook failed before the move.
            SummarizerFailed: The summary is incomplete. The leaf has not moved.
        """
        session = self._session
        target = session.get_entry(target_id)
        if target is None:
            raise EntryNotFound(f"entry not found: {target_id!r}", path=session.path)
        path = [entry.id for entry in session.iter_branch()] if session.leaf_id is not None else []
        found = navigation(path, target.readable, [entry.id for entry in session.iter_branch(target_id)])
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
        summary = _supplied(supplied) if supplied is not None else None
        if summary is None and summarize and found.abandoned:
            summary = self._summarize(found.abandoned, instructions, replace_instructions)
        summary_id = self._move(found.new_leaf, summary, from_extension=supplied is not None)
        if label is not None:
            session.append_label_change(summary_id or target_id, label)
        self._hooks.tell("session_tree", {**event, "newLeafId": session.leaf_id, "summaryEntryId": summary_id})
        return Navigated(session.leaf_id, found.editor_text, summary_id)

    def _move(self, leaf: str | None, summary: tuple[str, Any] | None, *, from_extension: bool) -> str | None:
        """Move the leaf and return the id of the summary, if one was appended."""
        if summary is not None:
            return self._session.branch_with_summary(leaf, *summary, from_extension or None).id
        if leaf is None:
            self._session.reset_leaf()
        else:
            self._session.branch(leaf)
        return None

    def _summarize(
        self, abandoned: tuple[str, ...], instructions: str | None, replace: bool
    ) -> tuple[str, dict[str, list[str]]]:
        """Return the summary of the abandoned entries, and the files that they touched."""
        entries = (entry.readable for entry_id in reversed(abandoned) if (entry := self._session.get_entry(entry_id)))
        branch = prepare_branch(entries, branch_budget(self._window), self._counter)
        if not branch.messages:
            return NO_CONTENT, branch.files.details()
        prompt = branch_prompt(branch.messages, instructions, replace=replace)
        summary = self._summarizer(SummaryRequest("branch", SYSTEM_PROMPT, prompt, branch.messages, None, _MAX_TOKENS))
        if summary.stop != "stop" or not summary.text.strip():
            raise SummarizerFailed(
                f"the summary of the branch is incomplete: it stopped with {summary.stop!r}", path=self._session.path
            )
        return branch_text(summary.text, branch.files), branch.files.details()


def _supplied(given: object) -> tuple[str, Any]:
    """Return the summary that a hook supplies, and its details."""
    summary = given.get("summary") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(summary, str):
        raise HookFailed("a hook for session_before_tree returned an invalid summary")
    return summary, given.get("details")
