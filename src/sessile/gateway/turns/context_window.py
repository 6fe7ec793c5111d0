"""Keeping the context of a session within the model's window: requests, memory notes and compactions.

    before a turn      notes, if a compaction is near (once between two compactions); a compaction, if due
    during a turn      a compaction if the provider rejects the context as too long, and one more try
    after a turn       a compaction, if due

Rules:
- A request is the context with old tool results trimmed, converted for the model and cleaned for its provider. Trimming
  changes nothing in the session. What was trimmed once stays trimmed in later requests, so that the provider's cache
  keeps working; that is stored in the session (`sessile.trimmed`).
- Notes are requested with a copy of the context. Question and answer do not become part of the conversation; the answer
  is appended to the notes file of the day.
- A failure is reported and never stops the turn.
- Only models summarize and take notes. Where a program or the echo runner answers, a compaction is an extract.
- All of this happens in the lane of the session.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio.from_thread

from sessile.core import memory_flush, result_trimming
from sessile.core.compaction import is_due
from sessile.core.delivery import is_silent
from sessile.core.hygiene import clean
from sessile.core.messages.family import convert_to_llm, joined_text
from sessile.core.providers import LIMITS
from sessile.core.summaries import Summarizer, Summary, SummaryRequest, extract
from sessile.core.text import parse_timestamp
from sessile.core.usage import usage_of
from sessile.errors import ModelFailed, RunnerFailed, SessileError, SummarizerFailed
from sessile.gateway.conversations.notes import append_notes
from sessile.gateway.events import Event
from sessile.gateway.turns.runners import Done, RunRequest
from sessile.gateway.turns.turn import NOTHING, Due, Job
from sessile.upkeep.compactor import Compactor
from sessile.vendors.images import can_resize, resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessile.core.context import SessionContext
    from sessile.core.result_trimming import Trims
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.runners import Answerer
    from sessile.session import Session
    from sessile.upkeep.compactor import Outcome, Trigger

Json = dict[str, Any]

FLUSHED = "sessile.memory_flush"
TRIMMED = "sessile.trimmed"


class ContextWindow:
    """Keeps the contexts of a gateway's sessions within their windows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # -- what is due

    def due(self, session: Session, job: Job) -> Due:
        """Return what is due before a turn whose message is in the session already. Blocks."""
        answerer = job.answerer
        if answerer.window is None:
            return NOTHING
        tokens = self._compactor(session, answerer).size().tokens
        entry = job.bound.entry
        situation = memory_flush.Situation(
            tokens=tokens,
            window=answerer.window,
            compactions=entry.known("compactionCount"),
            flushed=memory_flush.flushed_of(entry),
            workspace_access=answerer.agent.access if answerer.agent.workspace else None,
            command_runner=not answerer.is_model,
            heartbeat=job.message.is_system,
            incognito=bool(entry.get("incognito")),
        )
        settings = answerer.agent.compaction
        notes = memory_flush.decide_flush(situation, settings.memory_flush, settings)
        return Due(notes.due, is_due(tokens, answerer.window, settings))

    def is_due(self, session: Session, job: Job) -> bool:
        """Return whether a compaction is due after a turn. Blocks."""
        return job.answerer.window is not None and self._compactor(session, job.answerer).is_due()

    # -- compactions

    async def compact(
        self, bound: Bound, answerer: Answerer, trigger: Trigger, instructions: str | None = None
    ) -> Outcome:
        """Compact a session, count it and notify clients."""
        return await self._gateway.call(self._compact, bound, answerer, trigger, instructions, None)

    async def recover(self, bound: Bound, answerer: Answerer, error: str) -> Outcome:
        """Compact a session after its provider rejected the context as too long."""
        return await self._gateway.call(self._compact, bound, answerer, "overflow", None, error)

    def _compact(
        self, bound: Bound, answerer: Answerer, trigger: Trigger, instructions: str | None, error: str | None
    ) -> Outcome:
        self._publish(bound, "start", trigger)
        try:
            with self._gateway.opened(bound.path) as session:
                compactor = self._compactor(session, answerer)
                outcome = (
                    compactor.compact(instructions, trigger=trigger) if error is None else compactor.recover(error)
                )
        except SessileError as failure:
            self._publish(bound, "failed", trigger, error=failure.message)
            raise
        if outcome.status == "compacted":
            members = {"contextTokens": outcome.tokens_after, "totalTokensFresh": False}
            self._gateway.conversations.count(bound.text, bound.session_id, compactions=1, members=members)
        self._publish(bound, "end", trigger, status=outcome.status, tokensAfter=outcome.tokens_after)
        return outcome

    def _compactor(self, session: Session, answerer: Answerer) -> Compactor:
        return Compactor(session, summarizer_of(answerer), window=answerer.window, settings=answerer.agent.compaction)

    def _publish(self, bound: Bound, phase: str, trigger: Trigger, **more: Any) -> None:
        data = {
            "phase": phase,
            "trigger": trigger,
            **{name: value for name, value in more.items() if value is not None},
        }
        anyio.from_thread.run_sync(self._gateway.hub.publish, Event(None, bound.session_id, "compaction", data))

    # -- notes

    async def take_notes(self, job: Job) -> str | None:
        """Let the model take notes. Return a notice for the user, if one is due."""
        gateway = self._gateway
        now = gateway.store.now()
        before = memory_flush.flushed_of(job.bound.entry)
        cycle = job.bound.entry.known("compactionCount")
        usage: Json = {}
        path: str | None = None
        notice: str | None = None
        try:
            request = await gateway.call(self._question, job, now)
            message = await _answer(job.answerer, request)
            usage = message.get("usage") or {}
            text = joined_text(message.get("content"))
            kind: memory_flush.Outcome = "silent" if is_silent(text) or not text.strip() else "written"
            if kind == "written":
                key = memory_flush.flush_key(job.session_id, cycle)
                path = await gateway.call(self._write, job, text, key, now)
                notice = None if path is None else f"📝 Notes saved in {path}."
        except SessileError as error:
            kind = "failed"
            notice = f"⚠️ Notes could not be saved before the compaction: {error.message}"
        patch = memory_flush.outcome_patch(kind, cycle, now, before)
        record = {"outcome": kind, "file": path, "compactions": cycle or 0, "model": job.answerer.model}
        await gateway.call(self._record, job, patch, record, usage, now)
        failures = patch["memoryFlush"]["failureCount"]
        return notice if job.toggles.is_verbose or failures >= memory_flush.MAX_FAILURES else None

    def _question(self, job: Job, now: int) -> RunRequest:
        settings = job.answerer.agent.compaction.memory_flush
        prompt = memory_flush.flush_prompt(settings, now, self._gateway.zone)
        question = {"role": "user", "content": [{"type": "text", "text": prompt}], "timestamp": now}
        with self._gateway.opened(job.path) as session:
            return make_request(
                session,
                session.context(job.before),
                job.answerer,
                now,
                key=job.bound.text,
                system=memory_flush.flush_system_prompt(settings),
                more=[question],
            )

    def _write(self, job: Job, text: str, key: str, now: int) -> str | None:
        gateway = self._gateway
        return append_notes(
            gateway.store.fs, gateway.workspace(job.bound.agent), text, key=key, now=now, zone=gateway.zone
        )

    def _record(self, job: Job, patch: Json, record: Json, usage: Json, now: int) -> None:
        data = {name: value for name, value in record.items() if value is not None} | (
            {"usage": usage} if usage else {}
        )
        with self._gateway.opened(job.path) as session:
            session.append_custom_entry(FLUSHED, data)
        self._gateway.conversations.count(
            job.bound.text, job.session_id, usage=usage_of(usage or None), members=patch, now=now
        )


def summarizer_of(answerer: Answerer) -> Summarizer:
    """Return the summarizer of a conversation: its model, or `extract` if no model answers. To be called on a worker thread."""
    if not answerer.is_model:
        return extract

    async def ask(request: SummaryRequest) -> Summary:
        question = {"role": "user", "content": [{"type": "text", "text": request.prompt}]}
        run = RunRequest(
            [question], system=request.system, model=answerer.settings.model, max_tokens=request.max_tokens
        )
        message = await _answer(answerer, run)
        return Summary(joined_text(message.get("content")), message["stopReason"], answerer.model, message.get("usage"))

    def summarize(request: SummaryRequest) -> Summary:
        try:
            return anyio.from_thread.run(ask, request)
        except ModelFailed as error:
            raise SummarizerFailed(error.message, hint=error.hint, overflow=error.overflow) from error

    return summarize


async def _answer(answerer: Answerer, request: RunRequest) -> Json:
    """Return an answer without streaming it. Raise if there is none."""
    message: Json | None = None
    async with aclosing(answerer.runner.run(request)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if isinstance(piece, Done):
                message = piece.message
    if message is None or message.get("stopReason") == "error":
        problem = "no answer" if message is None else message.get("errorMessage")
        raise RunnerFailed(f"{answerer.model} did not answer: {problem}")
    return message


# -- requests


def make_request(
    session: Session,
    context: SessionContext,
    answerer: Answerer,
    now: int,
    *,
    key: str,
    thinking: str | None = None,
    system: str | None = None,
    more: Sequence[Json] = (),
) -> RunRequest:
    """Return the request of a turn: a context of the session, and `more` messages that are not stored.

    `system` follows the instructions of the agent.
    """
    messages = convert_to_llm([*_trimmed(session, context, answerer, now), *more])
    if answerer.policy is not None:
        limits = LIMITS._replace(side=answerer.agent.image_max_dimension_px)
        messages = clean(messages, answerer.policy, limits=limits, resize=resize if can_resize() else None).messages
    instructions = "\n\n".join(part for part in (answerer.agent.system_prompt, system) if part)
    return RunRequest(
        messages,
        system=instructions or None,
        model=answerer.settings.model,
        max_tokens=answerer.settings.max_tokens,
        thinking=thinking,
        session_key=key,
        session_id=session.id,
    )


def _trimmed(session: Session, context: SessionContext, answerer: Answerer, now: int) -> list[Json]:
    """Return the messages with old tool results trimmed, where that is worth it."""
    messages, sources = context.messages, context.sources
    settings, window = answerer.agent.context_pruning.settings, answerer.window
    provider, model = answerer.settings.provider or answerer.settings.name, answerer.settings.model or ""
    if settings is None or window is None or not result_trimming.has_prompt_cache(provider, model):
        return messages
    if not any(message.get("role") == "toolResult" for message in messages):
        return messages
    trims = _trims(session, context)
    if not result_trimming.is_trim_due(_last_answer(messages), now, settings.ttl):
        return result_trimming.apply_trims(messages, sources, trims)
    trimmed = result_trimming.trim_results(messages, sources, window, trims, settings)
    if trimmed.trims != trims:
        session.append_custom_entry(TRIMMED, trimmed.trims)
    return trimmed.messages


def _trims(session: Session, context: SessionContext) -> Trims:
    """Return what was trimmed in the part of the session that the context comes from."""
    missing = {source for source in context.sources if source is not None}
    for row in session.walk_up():
        if not missing:
            break
        if row.id in missing:
            missing.discard(row.id)
            continue
        entry = session.read_row(row)
        if entry.get("customType") == TRIMMED:
            return result_trimming.read_trims(entry.get("data"))
    return {}


def _last_answer(messages: Sequence[Json]) -> int | None:
    """Return the time of the last answer in milliseconds."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            timestamp = message.get("timestamp")
            return timestamp if isinstance(timestamp, int) else parse_timestamp(timestamp)
    return None
