"""The compactor keeps the context of a long session within the model's window.

    compactor = Compactor(session, summarizer, window=200_000)
    compactor.compact("keep the error messages")      on request
    compactor.compact_if_due()                        after a turn and before the next
    compactor.recover(error)                          after a provider refused the context as too long
    compactor.prune()                                 stop sending old tool results

Rules:

- A compaction appends one entry. Nothing is removed: `Session.branch` leads back to everything that was summarized.
- A result must be complete, smaller than what it replaces, and fit the path. Otherwise nothing is appended and the outcome
  gives the reasons. If the summarizer fails, the error is raised and the session is unchanged.
- Entries appended while the summarizer runs are kept: the compaction is appended after them.
- After an overflow the compactor recovers once. If the next answer overflows too, it gives up. Nothing is retried without a
  compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any, Literal, NamedTuple

from sessile.core import entries as make
from sessile.core.compaction import (
    CompactionSettings,
    Objection,
    Preparation,
    Result,
    ResultPruning,
    context_size,
    is_due,
    plan_result_pruning,
    prepare,
    verify,
)
from sessile.core.summaries import (
    SYSTEM_PROMPT,
    Message,
    Purpose,
    Summarizer,
    Summary,
    SummaryRequest,
    as_text,
    extract,
    history_prompt,
    merged,
    short_prompt,
    turn_prefix_prompt,
)
from sessile.core.tokens import Counter, Snapshot, estimate
from sessile.errors import HookFailed, LeafMoved, SummarizerFailed, Unsupported
from sessile.session import Receipt, Session
from sessile.storage.base import Row
from sessile.upkeep.hooks import Hooks
from sessile.vendors.answers import is_overflow

Trigger = Literal["manual", "threshold", "overflow"]
Status = Literal["compacted", "nothing", "not_due", "cancelled", "rejected", "given_up"]

_READABLE = 100_000  # tokens that a summarizer gets at once if its window is unknown
_LEAST = 1_000  # tokens: smaller pieces are not worth another attempt


class Outcome(NamedTuple):
    """The result of a compaction.

    Attributes:
        status: "compacted", or why not: "nothing" to do, "not_due", "cancelled" by a hook, "rejected" or "given_up".
        tokens_before: The size of the context before, and where the number comes from.
        tokens_after: The estimated size of the context after, in tokens.
        receipt: The receipt of the compaction entry.
        objections: Why the summary was rejected.
        retry: Whether the failed turn is worth another attempt.
    """

    status: Status
    tokens_before: Snapshot | None = None
    tokens_after: int | None = None
    receipt: Receipt | None = None
    objections: tuple[Objection, ...] = ()
    retry: bool = False


class _HookOptions(NamedTuple):
    """Options of a summary set by hooks: extra lines for the prompt, and data to carry along if `preserves` is set."""

    lines: tuple[str, ...] = ()
    preserves: bool = False
    preserve_data: Any = None


class Compactor:
    """Compacts the context of one session: replaces all but its newest part by a summary.

    Args:
        session: The session.
        summarizer: Returns the summary of a request; by default messages are quoted, without a model.
        window: The context window of the session's model, in tokens. Without it a compaction is never due.
        settings: When to compact, and how much to keep.
        counter: Counts the tokens of a message.
        hooks: Called before and after a compaction.
        readable: How many tokens the summarizer can read at once; `window` by default.

    Example:
        ```python
        compactor = Compactor(session, AnthropicSummarizer("claude-haiku-4-5"), window=200_000)
        if compactor.compact_if_due().status == "compacted":
            messages = session.context().messages
        ```
    """

    def __init__(
        self,
        session: Session,
        summarizer: Summarizer = extract,
        *,
        window: int | None = None,
        settings: CompactionSettings | None = None,
        counter: Counter = estimate,
        hooks: Hooks | None = None,
        readable: int | None = None,
    ) -> None:
        self._session = session
        self._summarizer = summarizer
        self._window = window
        self._settings = settings or CompactionSettings()
        self._counter = counter
        self._hooks = hooks or Hooks()
        self._calls: list[Summary] = []  # of the current compaction; their usage is written into its entry
        self._readable = readable or window or _READABLE

    # -- measuring

    def size(self) -> Snapshot:
        """Return the size of the context in tokens, and where the number comes from."""
        return context_size(self._session.walk_up(), self._session.read_row, self._counter)

    def is_due(self, coming: int = 0) -> bool:
        """Return whether the context plus `coming` tokens is too large for the window."""
        return is_due(self.size().tokens + coming, self._window, self._settings)

    def prepare(self) -> Preparation[Row] | None:
        """Return what a compaction would keep and summarize; `None` if there is nothing to do."""
        read = self._session.read_row
        return prepare(self._session.walk_up(), read, self._settings, window=self._window, counter=self._counter)

    # -- compacting

    def compact_if_due(self, coming: int = 0) -> Outcome:
        """Compact if the context is too large.

        Args:
            coming: The number of tokens of the next prompt.
        """
        return self.compact(trigger="threshold") if self.is_due(coming) else Outcome("not_due")

    def recover(self, error: str, failed: Message | None = None) -> Outcome:
        """Compact after a provider has refused the context as too long; `failed` is its answer, if there is one.

        If the leaf is a failed answer, it is first removed from the context. The outcome has `retry` set only if the context
        has become smaller; otherwise the provider would refuse it again.
        """
        answer = failed or {}
        usage, stop = answer.get("usage"), answer.get("stopReason")
        if not is_overflow(error, usage if isinstance(usage, Mapping) else None, self._window, stop and str(stop)):
            return Outcome("not_due")
        if self._has_recovered():
            return Outcome("given_up", self.size())
        self._remove_failed_answer()
        outcome = self.compact(trigger="overflow")
        return outcome._replace(retry=outcome.status == "compacted")

    def _remove_failed_answer(self) -> None:
        """Remove a failed answer from the context if it is the leaf; the entry itself stays."""
        leaf = self._session.leaf_id
        entry = None if leaf is None else self._session.get_entry(leaf)
        if entry is None or _message(entry.stored).get("stopReason") != "error":
            return
        try:
            self._session.append_context_edit(entry.id, None)
        except Unsupported:
            # Files of other agents have no context edits: continue from before that answer instead.
            if entry.parent_id is None:
                raise
            self._session.branch(entry.parent_id)

    def _has_recovered(self) -> bool:
        """Return whether the last compaction was for an overflow and there was no answer since."""
        for row in self._session.walk_up():
            entry = self._session.read_row(row)
            if entry.get("type") == "compaction":
                return entry.get("trigger") == "overflow"
            message = _message(entry)
            if message.get("role") == "assistant" and message.get("stopReason") not in ("error", "aborted"):
                return False
        return False

    def compact(self, instructions: str | None = None, *, trigger: Trigger = "manual") -> Outcome:
        """Summarize all but the newest part of the context.

        Args:
            instructions: What the summary should focus on.
            trigger: Why: "manual", "threshold" or "overflow".

        Raises:
            HookFailed: A hook failed before the compaction.
            SummarizerFailed: There is no summary.
        """
        preparation = self.prepare()
        if preparation is None:
            return Outcome("nothing", self.size())
        leaf, before = self._session.leaf_id, preparation.tokens_before
        event = self._event(preparation, instructions, trigger)
        supplied: Mapping[str, Any] | None = None
        for answer in self._hooks.ask("session_before_compact", event):
            if answer.get("cancel") is True:
                return Outcome("cancelled", before)
            supplied = answer.get("compaction", supplied)
        if not isinstance(supplied, Mapping | None):
            raise HookFailed("a hook for session_before_compact returned an invalid compaction: it must be a mapping")
        payload, result = (
            self._summarize(preparation, instructions) if supplied is None else _supplied(supplied, preparation)
        )
        objections = verify(
            result,
            preparation,
            replaced_tokens=preparation.replaced_tokens(self._counter),
            counter=self._counter,
        )
        if objections:
            return Outcome("rejected", before, objections=objections)
        receipt = self._append({**payload, "trigger": trigger}, leaf)
        after = self.size().tokens
        self._hooks.tell("session_compact", {**event, "entryId": receipt.id, "tokensAfter": after})
        return Outcome("compacted", before, after, receipt)

    def _event(self, preparation: Preparation[Row], instructions: str | None, trigger: Trigger) -> dict[str, Any]:
        return {
            "sessionId": self._session.id,
            "path": self._session.path,
            "trigger": trigger,
            "customInstructions": instructions,
            "firstKeptEntryId": preparation.first_kept_id,
            "tokensBefore": preparation.tokens_before.tokens,
            "isSplitTurn": preparation.is_split_turn,
            "previousSummary": preparation.previous_summary,
        }

    def _summarize(self, preparation: Preparation[Row], instructions: str | None) -> tuple[make.Payload, Result]:
        """Call the summarizer and return the entry to append."""
        self._calls.clear()
        options = self._hook_options()
        focus = "\n".join(filter(None, (instructions, *options.lines))) or None
        messages, prefix = list(preparation.history()), list(preparation.turn_prefix())
        previous = preparation.previous_summary
        summary = self._in_pieces("history", messages, previous, focus) if messages or not prefix else None
        stops, text = [summary.stop] if summary else [], summary.text if summary else None
        if prefix:
            turn = self._in_pieces("prefix", prefix, None, focus)
            stops.append(turn.stop)
            # Both parts must have text: half a summary would lose the other half.
            complete = turn.text.strip() and (summary is None or summary.text.strip())
            text = merged(text, turn.text, previous) if complete else ""
        files = preparation.files()
        full_text = files.appended_to(text) if text and text.strip() else ""  # a list of files alone is not a summary
        payload = make.compaction(
            full_text,
            preparation.first_kept_id,
            preparation.tokens_before.tokens,
            short_summary=self._in_short(text or "", [*messages, *prefix]),
            details=files.details(),
            preserve_data=options.preserve_data if options.preserves else preparation.preserve_data,
        )
        if preparation.system_message is not None:
            payload["systemMessage"] = preparation.system_message
        payload |= _spent(self._calls)
        stop = next((stop for stop in stops if stop != "stop"), "stop")
        return payload, Result(full_text, preparation.first_kept_id, stop, int(stop == "toolUse"))

    def _hook_options(self) -> _HookOptions:
        """Return the prompt lines of all hooks, and the data to carry along from the last hook that sets it."""
        options = _HookOptions()
        for answer in self._hooks.ask("session.compacting", {"sessionId": self._session.id}):
            prompt, lines = answer.get("prompt"), answer.get("context", [])
            if not isinstance(prompt, str | None):
                raise HookFailed("a hook for session.compacting returned an invalid prompt: it must be a string")
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise HookFailed(
                    "a hook for session.compacting returned an invalid context: it must be a list of strings"
                )
            options = options._replace(lines=(*options.lines, prompt or "", *lines))
            if "preserveData" in answer:
                options = options._replace(preserves=True, preserve_data=answer["preserveData"])
        return options

    # -- calling the summarizer

    def _ask(
        self, purpose: Purpose, prompt: str, messages: Sequence[Message], previous: str | None, share: float
    ) -> Summary:
        max_tokens = int(self._room() * share) or None
        summary = self._summarizer(SummaryRequest(purpose, SYSTEM_PROMPT, prompt, messages, previous, max_tokens))
        self._calls.append(summary)
        return summary

    def _room(self) -> float:
        """Return roughly how many tokens all summaries may take, so that the next compaction is not due at once."""
        reserve = self._settings.reserve(self._window)
        if self._window is None:
            return reserve
        return min(reserve, (self._window - reserve - self._settings.keep(self._window)) * 2 / 3)

    def _in_pieces(
        self,
        purpose: Literal["history", "prefix"],
        messages: Sequence[Message],
        previous: str | None,
        focus: str | None,
    ) -> Summary:
        """Summarize a history, or the beginning of a turn, piece by piece if it is longer than the summarizer can read."""
        prompt_for, share = (history_prompt, 0.8) if purpose == "history" else (turn_prefix_prompt, 0.5)
        length = sum(map(_length, messages))
        size = min(length, self._readable * 3 // 4)  # the rest is for instructions and the previous summary
        while True:
            text, summary = previous, None
            try:
                for piece in _pieces(messages, size):
                    summary = self._ask(purpose, prompt_for(piece, text, focus), piece, text, share)
                    # Each summary continues the previous one: a piece without a summary would be lost.
                    if summary.stop != "stop" or not summary.text.strip():
                        return summary
                    text = summary.text
            except SummarizerFailed as error:
                size //= 2
                if not error.overflow or size < _LEAST:
                    raise
            else:
                return summary or Summary(previous or "")

    def _in_short(self, summary: str, messages: Sequence[Message]) -> str | None:
        """Return a few sentences for listings; a compaction does not fail without them."""
        try:
            short = self._ask("short", short_prompt(summary), messages, None, 0.2)
        except SummarizerFailed:
            return None
        return short.text if short.stop == "stop" and short.text else None

    def _append(self, payload: make.Payload, planned_at: str | None) -> Receipt:
        """Append the compaction after new entries, if they continue from the leaf it was planned at."""
        leaf = self._session.leaf_id
        if leaf != planned_at and not any(row.id == planned_at for row in self._session.walk_up()):
            raise LeafMoved(
                "the leaf moved to another branch during the compaction; nothing was changed",
                path=self._session.path,
                hint="compact the session again",
            )
        if leaf != planned_at and "firstKeptEntryId" not in payload:
            # A hook may have chosen to keep nothing, but it did not know the entries that were appended since.
            *_, first = takewhile(lambda row: row.id != planned_at, self._session.walk_up())
            payload = {**payload, "firstKeptEntryId": first.id}
        return self._session.append_many([payload], on_leaf_moved="follow")[0]

    # -- pruning

    def prune(self) -> ResultPruning:
        """Remove old tool results from the context if that saves enough; the entries themselves stay."""
        context = self._session.context()
        pruning = plan_result_pruning(context.messages, context.sources, counter=self._counter)
        self._session.append_many(pruning.edits)
        return pruning


def _message(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message of an entry; a damaged one counts as empty."""
    message = entry.get("message")
    return message if isinstance(message, Mapping) else {}


def _spent(calls: Sequence[Summary]) -> dict[str, Any]:
    """Return model and total usage of the calls for one compaction; nothing if none of them reports usage."""
    reported = [call for call in calls if call.usage]
    counts: dict[str, int] = {}
    for call in reported:
        for name, count in (call.usage or {}).items():
            counts[name] = counts.get(name, 0) + count
    return {"model": reported[-1].model, "usage": counts} if reported else {}


def _length(message: Message) -> int:
    """Return roughly how many tokens a message takes as text."""
    return len(as_text([message])) // 4 + 1


def _parts(message: Message, size: int) -> Iterator[Message]:
    """Yield a message, or parts of its text if it is longer than `size` tokens."""
    if _length(message) <= max(size, _LEAST):
        yield message
        return
    text = as_text([message])
    step = max(size, _LEAST) * 3  # a little less than the limit, because each part gets a label
    role = "assistant" if message.get("role") == "assistant" else "user"
    yield from ({"role": role, "content": text[start : start + step]} for start in range(0, len(text), step))


def _pieces(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """Yield groups of messages of about `size` tokens; a tool result stays with its call."""
    piece: list[Message] = []
    length = 0
    for part in chain.from_iterable(_parts(message, size) for message in messages):
        own = _length(part)
        if piece and length + own > size and part.get("role") != "toolResult":
            yield piece
            piece, length = [], 0
        piece.append(part)
        length += own
    if piece:
        yield piece


def _supplied(given: Mapping[str, Any], preparation: Preparation[Row]) -> tuple[make.Payload, Result]:
    """Return the entry that a hook supplies."""
    summary, first = given.get("summary"), given.get("firstKeptEntryId", preparation.first_kept_id)
    short = given.get("shortSummary")
    if not isinstance(summary, str) or not isinstance(first, str | None) or not isinstance(short, str | None):
        raise HookFailed("a hook for session_before_compact returned an invalid summary")
    payload = make.compaction(
        summary,
        first,
        preparation.tokens_before.tokens,
        short_summary=short,
        details=given.get("details"),
        from_extension=True,
        preserve_data=given.get("preserveData"),
    )
    return payload, Result(summary, first)
