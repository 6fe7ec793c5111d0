"""The compactor: keeps a session usable for a model, however long it gets.

    compactor = Compactor(session, summarizer, window=200_000)
    compactor.compact("keep the error messages")      when a person asks
    compactor.compact_if_due()                        after a turn and before the next
    compactor.recover(error)                          when a provider says that the context is too long
    compactor.prune()                                 old tool results are no longer sent

Rules:

- One appended entry: nothing that it sums up is removed, and `Session.branch` leads back to all of it.
- A result must be whole, smaller than what it stands for, and fit the path; else nothing is appended and the outcome says why.
  A summarizer that fails raises; the session is as it was.
- What was said while the summarizer worked stays: the entry hangs from the leaf as it is then, and keeps all of that.
- An overflow is recovered from once; if the next answer overflows too, it is told. Nothing is retried without a compaction.

Which model sums up, and how much it can read, are arguments.
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

_READABLE = 100_000  # tokens that a summarizer is given at once if nobody knows its window
_LEAST = 1_000  # tokens: less at once is not worth another try


class Outcome(NamedTuple):
    """What became of a compaction; `retry` says that a turn that failed is worth another try."""

    status: Status
    tokens_before: Snapshot | None = None
    tokens_after: int | None = None
    receipt: Receipt | None = None
    objections: tuple[Objection, ...] = ()
    retry: bool = False


class _Wishes(NamedTuple):
    """What hooks want of a summary: lines for whoever makes it, and data to carry on, if they say so."""

    lines: tuple[str, ...] = ()
    preserves: bool = False
    preserve_data: Any = None


class Compactor:
    """Compacts one session. `window` is how many tokens its model can read; unknown means that nothing is ever due."""

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
        self._calls: list[Summary] = []  # of the compaction under way: what they used stands in its entry
        self._readable = readable or window or _READABLE

    # -- looking

    def size(self) -> Snapshot:
        """How large the context is now, and who says so."""
        return context_size(self._session.walk_up(), self._session.read_row, self._counter)

    def is_due(self, coming: int = 0) -> bool:
        """Whether the context, with so many tokens to come, is too large for the window."""
        return is_due(self.size().tokens + coming, self._window, self._settings)

    def prepare(self) -> Preparation[Row] | None:
        """What a compaction would keep and sum up; `None` if there is nothing to do."""
        read = self._session.read_row
        return prepare(self._session.walk_up(), read, self._settings, window=self._window, counter=self._counter)

    # -- compacting

    def compact_if_due(self, coming: int = 0) -> Outcome:
        """Compact if the context is too large; `coming` are the tokens of the next prompt."""
        return self.compact(trigger="threshold") if self.is_due(coming) else Outcome("not_due")

    def recover(self, error: str, failed: Message | None = None) -> Outcome:
        """Compact after a provider has refused a context as too long; `failed` is its answer, if there is one.

        An answer that failed, if it is the leaf, is taken out of the context first. `retry` says whether to try once more:
        only if the context has become smaller, else the same refusal would come again, and again.
        """
        told = failed or {}
        usage, stop = told.get("usage"), told.get("stopReason")
        if not is_overflow(error, usage if isinstance(usage, Mapping) else None, self._window, stop and str(stop)):
            return Outcome("not_due")
        if self._has_recovered():
            return Outcome("given_up", self.size())
        self._take_out_failed()
        outcome = self.compact(trigger="overflow")
        return outcome._replace(retry=outcome.status == "compacted")

    def _take_out_failed(self) -> None:
        """Take an answer that failed out of the context, if it is the leaf; the entry stays."""
        leaf = self._session.leaf_id
        entry = None if leaf is None else self._session.get_entry(leaf)
        if entry is None or _message(entry).get("stopReason") != "error":
            return
        try:
            self._session.append_context_edit(entry.id, None)
        except Unsupported:
            # Another agent's file knows no edits: there the conversation goes on from before that answer.
            if entry.parent_id is None:
                raise
            self._session.branch(entry.parent_id)

    def _has_recovered(self) -> bool:
        """Whether the last compaction was for an overflow and nothing was answered since."""
        for row in self._session.walk_up():
            entry = self._session.read_row(row)
            if entry.get("type") == "compaction":
                return entry.get("trigger") == "overflow"
            message = _message(entry)
            if message.get("role") == "assistant" and message.get("stopReason") not in ("error", "aborted"):
                return False
        return False

    def compact(self, instructions: str | None = None, *, trigger: Trigger = "manual") -> Outcome:
        """Sum up all but the newest part of the context."""
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
            raise HookFailed("a hook for session_before_compact supplied no compaction")
        payload, result = (
            self._summed_up(preparation, instructions) if supplied is None else _supplied(supplied, preparation)
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

    def _summed_up(self, preparation: Preparation[Row], instructions: str | None) -> tuple[make.Payload, Result]:
        """The entry that a summarizer's work makes."""
        self._calls.clear()
        more = self._wishes()
        focus = "\n".join(filter(None, (instructions, *more.lines))) or None
        messages, prefix = list(preparation.history()), list(preparation.turn_prefix())
        previous = preparation.previous_summary
        summary = self._in_pieces("history", messages, previous, focus) if messages or not prefix else None
        stops, text = [summary.stop] if summary else [], summary.text if summary else None
        if prefix:
            turn = self._in_pieces("prefix", prefix, None, focus)
            stops.append(turn.stop)
            # Half a summary is none, though together they would be some text.
            whole = turn.text.strip() and (summary is None or summary.text.strip())
            text = merged(text, turn.text, previous) if whole else ""
        files = preparation.files()
        told = files.told_in(text) if text and text.strip() else ""  # a list of files alone is no summary
        payload = make.compaction(
            told,
            preparation.first_kept_id,
            preparation.tokens_before.tokens,
            short_summary=self._in_short(text or "", [*messages, *prefix]),
            details=files.details(),
            preserve_data=more.preserve_data if more.preserves else preparation.preserve_data,
        )
        if preparation.system_message is not None:
            payload["systemMessage"] = preparation.system_message
        payload |= _spent(self._calls)
        stop = next((stop for stop in stops if stop != "stop"), "stop")
        return payload, Result(told, preparation.first_kept_id, stop, int(stop == "toolUse"))

    def _wishes(self) -> _Wishes:
        """What hooks want the summary to look at, all of them, and to carry on, which the last one decides."""
        wishes = _Wishes()
        for answer in self._hooks.ask("session.compacting", {"sessionId": self._session.id}):
            prompt, lines = answer.get("prompt"), answer.get("context", [])
            if not isinstance(prompt, str | None):
                raise HookFailed("a hook for session.compacting gave a prompt that is no text")
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise HookFailed("a hook for session.compacting gave a context that is no list of lines")
            wishes = wishes._replace(lines=(*wishes.lines, prompt or "", *lines))
            if "preserveData" in answer:
                wishes = wishes._replace(preserves=True, preserve_data=answer["preserveData"])
        return wishes

    # -- asking the summarizer

    def _ask(
        self, purpose: Purpose, prompt: str, messages: Sequence[Message], previous: str | None, share: float
    ) -> Summary:
        most = int(self._room() * share) or None
        summary = self._summarizer(SummaryRequest(purpose, SYSTEM_PROMPT, prompt, messages, previous, most))
        self._calls.append(summary)
        return summary

    def _room(self) -> float:
        """What summaries may take together, about: a compaction that leaves the context too large would come again at once."""
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
        """The summary of a history, or of a turn's beginning, piece by piece if it is longer than the summarizer can read."""
        asking, share = (history_prompt, 0.8) if purpose == "history" else (turn_prefix_prompt, 0.5)
        whole = sum(map(_length, messages))
        size = min(whole, self._readable * 3 // 4)  # the rest is for instructions and the summary before
        while True:
            told, summary = previous, None
            try:
                for piece in _pieces(messages, size):
                    summary = self._ask(purpose, asking(piece, told, focus), piece, told, share)
                    # One piece without a summary would be missing in what the next one makes of it.
                    if summary.stop != "stop" or not summary.text.strip():
                        return summary
                    told = summary.text
            except SummarizerFailed as error:
                size //= 2
                if not error.overflow or size < _LEAST:
                    raise
            else:
                return summary or Summary(previous or "")

    def _in_short(self, summary: str, messages: Sequence[Message]) -> str | None:
        """A few sentences for listings; a compaction does not fail for want of them."""
        try:
            short = self._ask("short", short_prompt(summary), messages, None, 0.2)
        except SummarizerFailed:
            return None
        return short.text if short.stop == "stop" and short.text else None

    def _append(self, payload: make.Payload, planned_at: str | None) -> Receipt:
        """Append the compaction behind what was said meanwhile, if that goes on from where it was planned."""
        leaf = self._session.leaf_id
        if leaf != planned_at and not any(row.id == planned_at for row in self._session.walk_up()):
            raise LeafMoved(
                "the session went on elsewhere while it was summed up; nothing was changed",
                path=self._session.path,
                hint="compact it again",
            )
        if leaf != planned_at and "firstKeptEntryId" not in payload:
            # A hook may keep nothing of what it knew; of what was said since it knew nothing.
            *_, first = takewhile(lambda row: row.id != planned_at, self._session.walk_up())
            payload = {**payload, "firstKeptEntryId": first.id}
        return self._session.append_many([payload], on_leaf_moved="follow")[0]

    # -- pruning

    def prune(self) -> ResultPruning:
        """Take old tool results out of the context, if that is worth it; the results themselves stay."""
        context = self._session.context()
        pruning = plan_result_pruning(context.messages, context.sources, counter=self._counter)
        self._session.append_many(pruning.edits)
        return pruning


def _message(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message of an entry; a damaged one is as if it said nothing."""
    message = entry.get("message")
    return message if isinstance(message, Mapping) else {}


def _spent(calls: Sequence[Summary]) -> dict[str, Any]:
    """What the calls for one compaction used together, for the ledger; nothing if none of them says so."""
    told = [call for call in calls if call.usage]
    counts: dict[str, int] = {}
    for call in told:
        for name, count in (call.usage or {}).items():
            counts[name] = counts.get(name, 0) + count
    return {"model": told[-1].model, "usage": counts} if told else {}


def _length(message: Message) -> int:
    """How many tokens a message takes as text, about."""
    return len(as_text([message])) // 4 + 1


def _parts(message: Message, size: int) -> Iterator[Message]:
    """A message, or its text part by part if it alone is longer than so many tokens."""
    if _length(message) <= max(size, _LEAST):
        yield message
        return
    text, step = (
        as_text([message]),
        max(size, _LEAST) * 3,
    )  # a little less than it may be: each part has a label of its own
    role = "assistant" if message.get("role") == "assistant" else "user"
    yield from ({"role": role, "content": text[start : start + step]} for start in range(0, len(text), step))


def _pieces(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """Messages in groups of so many tokens, as text; a tool's result stays with its call."""
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
    """The entry that a hook supplies."""
    summary, first = given.get("summary"), given.get("firstKeptEntryId", preparation.first_kept_id)
    short = given.get("shortSummary")
    if not isinstance(summary, str) or not isinstance(first, str | None) or not isinstance(short, str | None):
        raise HookFailed("a hook for session_before_compact supplied no summary")
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
