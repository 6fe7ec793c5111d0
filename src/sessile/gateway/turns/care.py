"""What a turn does for the context of its session: notes before it gets too long, and compactions.

    before the turn    notes, if it comes near a compaction (once between two); a compaction, if it is due
    in the turn        a compaction when the provider says that the context is too long, and one more try
    behind it          a compaction, if it is due by now

Rules: the notes are asked for on a copy of the context; neither question nor answer becomes a part of the conversation, and the
engine itself appends the answer to the file of the day. Whatever fails here is told and never stops the turn. Only a model sums
up and takes notes; where a program or the echo answers, a compaction is an extract. All of it happens in the lane of the session.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio.from_thread

from sessile.core import memory_flush
from sessile.core.compaction import is_due
from sessile.core.delivery import is_silent
from sessile.core.messages import joined_text
from sessile.core.summaries import Summarizer, Summary, SummaryRequest, extract
from sessile.core.usage import usage_of
from sessile.errors import ModelFailed, RunnerFailed, SessileError, SummarizerFailed
from sessile.gateway.conversations.notes import append_notes
from sessile.gateway.events import Event
from sessile.gateway.turns.admission import make_request
from sessile.gateway.turns.replies import Json
from sessile.gateway.turns.runners import Done, RunRequest
from sessile.gateway.turns.turn import NOTHING, Due, Job
from sessile.upkeep.compactor import Compactor

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.runners import Answerer
    from sessile.session import Session
    from sessile.upkeep.compactor import Outcome, Trigger

FLUSHED = "sessile.memory_flush"


class Care:
    """Takes care of the contexts of a gateway's sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # -- what is due

    def before(self, session: Session, job: Job) -> Due:
        """What is due before a turn whose message is in the session already; blocks."""
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

    def behind(self, session: Session, job: Job) -> bool:
        """Whether a compaction is due behind a turn; blocks."""
        return job.answerer.window is not None and self._compactor(session, job.answerer).is_due()

    # -- compactions

    async def compact(
        self, bound: Bound, answerer: Answerer, trigger: Trigger, instructions: str | None = None
    ) -> Outcome:
        """Compact a session; what is said of it is counted and told."""
        return await self._gateway.call(self._compact, bound, answerer, trigger, instructions, None)

    async def recover(self, bound: Bound, answerer: Answerer, error: str) -> Outcome:
        """Compact a session after its provider has refused the context as too long."""
        return await self._gateway.call(self._compact, bound, answerer, "overflow", None, error)

    def _compact(
        self, bound: Bound, answerer: Answerer, trigger: Trigger, instructions: str | None, error: str | None
    ) -> Outcome:
        self._tell(bound, "start", trigger)
        try:
            with self._gateway.opened(bound.path) as session:
                compactor = self._compactor(session, answerer)
                outcome = (
                    compactor.compact(instructions, trigger=trigger) if error is None else compactor.recover(error)
                )
        except SessileError as failure:
            self._tell(bound, "failed", trigger, error=failure.message)
            raise
        if outcome.status == "compacted":
            members = {"contextTokens": outcome.tokens_after, "totalTokensFresh": False}
            self._gateway.conversations.count(bound.text, bound.session_id, compactions=1, members=members)
        self._tell(bound, "end", trigger, status=outcome.status, tokensAfter=outcome.tokens_after)
        return outcome

    def _compactor(self, session: Session, answerer: Answerer) -> Compactor:
        return Compactor(session, summarizer_of(answerer), window=answerer.window, settings=answerer.agent.compaction)

    def _tell(self, bound: Bound, phase: str, trigger: Trigger, **more: Any) -> None:
        data = {
            "phase": phase,
            "trigger": trigger,
            **{name: value for name, value in more.items() if value is not None},
        }
        anyio.from_thread.run_sync(self._gateway.hub.publish, Event(None, bound.session_id, "compaction", data))

    # -- notes

    async def take_notes(self, job: Job) -> str | None:
        """Let the model note what should be remembered; gives what to tell a person who wants to hear of it."""
        gateway = self._gateway
        now = gateway.store.now()
        before = memory_flush.flushed_of(job.bound.entry)
        cycle = job.bound.entry.known("compactionCount")
        usage: Json = {}
        path: str | None = None
        told: str | None = None
        try:
            request = await gateway.call(self._question, job, now)
            message = await _whole(job.answerer, request)
            usage = message.get("usage") or {}
            text = joined_text(message.get("content"))
            kind: memory_flush.Outcome = "silent" if is_silent(text) or not text.strip() else "written"
            if kind == "written":
                key = memory_flush.flush_key(job.session_id, cycle)
                path = await gateway.call(self._write, job, text, key, now)
                told = None if path is None else f"📝 Notes were kept in {path}."
        except SessileError as error:
            kind = "failed"
            told = f"⚠️ No notes could be kept before the compaction: {error.message}"
        patch = memory_flush.outcome_patch(kind, cycle, now, before)
        record = {"outcome": kind, "file": path, "compactions": cycle or 0, "model": job.answerer.model}
        await gateway.call(self._record, job, patch, record, usage, now)
        failures = patch["memoryFlush"]["failureCount"]
        return told if job.toggles.is_verbose or failures >= memory_flush.MAX_FAILURES else None

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
    """Who sums up a conversation: the model that answers in it, else its own words. To be called on a worker thread."""
    if not answerer.is_model:
        return extract

    async def ask(request: SummaryRequest) -> Summary:
        question = {"role": "user", "content": [{"type": "text", "text": request.prompt}]}
        run = RunRequest(
            [question], system=request.system, model=answerer.settings.model, max_tokens=request.max_tokens
        )
        message = await _whole(answerer, run)
        return Summary(joined_text(message.get("content")), message["stopReason"], answerer.model, message.get("usage"))

    def summarize(request: SummaryRequest) -> Summary:
        try:
            return anyio.from_thread.run(ask, request)
        except ModelFailed as error:
            raise SummarizerFailed(error.message, hint=error.hint, overflow=error.overflow) from error

    return summarize


async def _whole(answerer: Answerer, request: RunRequest) -> Json:
    """An answer that nobody hears; raises if it is none."""
    message: Json | None = None
    async with aclosing(answerer.runner.run(request)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if isinstance(piece, Done):
                message = piece.message
    if message is None or message.get("stopReason") == "error":
        told = "it said nothing" if message is None else message.get("errorMessage")
        raise RunnerFailed(f"{answerer.model} did not answer: {told}")
    return message
