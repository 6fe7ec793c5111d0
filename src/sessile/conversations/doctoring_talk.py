"""What is wrong with how conversations go: compaction that comes too often, words that should not have been sent, lost notes.

    compaction    a session is compacted every few messages: because its window is small, because much of it is kept free, or
                  because tool results fill it. Which of these it is, is said
    silence       an answer that nearly stays silent (`NO_REPLY.`, `no_reply`) was delivered; one with more behind it was not
    memory        notes could not be kept before a compaction
    window        nobody knows how much a model can read, so nothing is compacted before it is too late

Only the newest entries of each session are read. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from sessile.care.models import Models
from sessile.config import Config
from sessile.config.agents import Agent
from sessile.core.compaction import CompactionSettings
from sessile.core.llm import joined_text
from sessile.core.memory_flush import MAX_FAILURES, flushed_of
from sessile.core.silence import NO_REPLY, is_silent
from sessile.core.tokens import estimate
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.session import Session

Json = dict[str, Any]
Severity = Literal["damage", "warning", "note"]

LOOKED_AT = 400  # entries of each session, the newest
_COMPACTIONS = 3  # in these entries; fewer tell nothing about how often they come
_FEW = 5  # messages of a person between two compactions: whoever is compacted that often loses the thread
_SMALL = 32_000  # tokens; what is documented to warn of
_FREE = 4  # a quarter of the window is much to keep free
_FULL = 0.5  # of a context: then it is tool results that fill it
_EDGES = "*_`\"'.,:;!?()[]{}<>-–—…"  # what a model puts around a word
_EXCERPT = 40  # characters


class Advice(NamedTuple):
    """Something that is wrong: what, where, and what to do about it."""

    kind: str
    severity: Severity
    what: str
    where: str | None
    do: str


class Bloat(NamedTuple):
    """How much of a context tool results are, and the tool that says most; in tokens."""

    tokens: int
    results: int
    tool: str | None


def examine_session(
    key: str, agent: str, entry: SessionEntry, session: Session, config: Config, models: Models
) -> Iterator[Advice]:
    """What is wrong with how one conversation goes."""
    newest = [session.read_row(row) for row in islice(session.walk_up(), LOOKED_AT)]
    settings = config.agents.named(agent)
    window = _window(entry, settings, models)
    yield from _silence(key, newest)
    yield from _compaction(key, newest, window, settings.compaction)


# -- compaction


def _window(entry: SessionEntry, agent: Agent, models: Models) -> int | None:
    """How much the model of a conversation can read; `None` if nobody knows."""
    told = entry.known("contextWindow")
    if told is not None and told > 0:
        return int(told)
    provider, model = entry.known("modelProvider"), entry.known("model")
    name = f"{provider}/{model}" if provider and model else agent.model_name
    return (None if name is None else models.window(name)) or agent.context_tokens


def _compaction(key: str, newest: Sequence[Json], window: int | None, settings: CompactionSettings) -> Iterator[Advice]:
    places = [number for number, entry in enumerate(newest) if entry.get("type") == "compaction"][:_COMPACTIONS]
    if len(places) < _COMPACTIONS:
        return
    between = newest[places[0] : places[-1]]
    messages = sum(1 for entry in between if _role(entry) == "user")
    if messages >= _FEW * (_COMPACTIONS - 1):
        return
    reasons = list(_reasons(window, settings, bloat_of(newest[places[0] + 1 : places[1]])))
    told = f"{key} is compacted too often: {messages} messages between its last {_COMPACTIONS} compactions"
    for why, do in reasons or [("its messages are long", "compact with instructions: /compact keep …")]:
        yield Advice("compaction", "warning", f"{told}; the reason: {why}", key, do)


def _reasons(window: int | None, settings: CompactionSettings, bloat: Bloat) -> Iterator[tuple[str, str]]:
    """Why compactions come so often, and what helps."""
    if window is not None and window < _SMALL:
        yield (
            f"a small window, {window:,} tokens",
            "choose a model that reads more; if that figure is wrong, set contextWindow of the model in the configuration",
        )
    elif window is not None and (reserve := settings.reserve(window)) * _FREE > window:
        floor = settings.reserve_tokens_floor > settings.reserve_tokens
        name = "reserveTokensFloor" if floor else "reserveTokens"
        yield (
            f"a high reserve, {reserve:,} of {window:,} tokens are kept free by compaction.{name}",
            f"lower compaction.{name} of the agent; a quarter of the window, {window // _FREE:,}, is enough",
        )
    if bloat.tokens and bloat.results >= _FULL * bloat.tokens:
        most = "" if bloat.tool is None else f", most of it from {bloat.tool}"
        yield (
            f"tool-result bloat, {100 * bloat.results // bloat.tokens} % of the context is what tools answered{most}",
            "let tools answer with less, and set contextPruning of the agent so that old results are trimmed",
        )


def bloat_of(entries: Sequence[Json]) -> Bloat:
    """How much of some entries is what tools answered."""
    tokens = 0
    by_tool: Counter[str] = Counter()
    for entry in entries:
        message = entry.get("message")
        if not isinstance(message, dict):
            continue
        size = estimate(message)
        tokens += size
        if message.get("role") == "toolResult":
            by_tool[str(message.get("toolName") or "?")] += size
    most = by_tool.most_common(1)
    return Bloat(tokens, by_tool.total(), most[0][0] if most else None)


def examine_agent(agent: str, config: Config, models: Models) -> Iterator[Advice]:
    """What is wrong with how an agent is set, as far as compaction goes."""
    settings = config.agents.named(agent)
    provider, model = config.model_of(agent)
    if model is None or settings.context_tokens is not None:
        return
    name = f"{provider}/{model}" if provider else model
    if models.window(name) is None:
        yield Advice(
            "window",
            "warning",
            f"nobody knows how much {name} can read, so {agent} compacts only when a request has failed",
            f"agents.{agent}",
            "set contextTokens of the agent, or contextWindow of the model, in the configuration",
        )


# -- silence


def _silence(key: str, newest: Sequence[Json]) -> Iterator[Advice]:
    for entry in newest:
        if _role(entry) != "assistant":
            continue
        text = joined_text(entry["message"].get("content")).strip()
        where = f"{key} at entry {entry.get('id')}"
        if is_silent(text):
            behind = text.removeprefix(NO_REPLY).strip()
            if behind:
                told = f"an answer was held back although it has more to say than {NO_REPLY}: {_excerpt(behind)}"
                do = f"tell the model to answer with {NO_REPLY} alone, or with an answer"
                yield Advice("silence", "note", told, where, do)
        elif nearly_silent(text):
            told = f"a turn that was to be silent was delivered, because it is not exactly {NO_REPLY}: {_excerpt(text)}"
            yield Advice(
                "silence", "warning", told, where, f"tell the model to begin with {NO_REPLY} and a space or nothing"
            )


def nearly_silent(text: str) -> bool:
    """Whether a text that was delivered looks as if it should not have been."""
    words = text.split()
    if not words or is_silent(text):
        return False
    first, last = words[0], words[-1]
    return first.startswith(NO_REPLY) or NO_REPLY in (first.strip(_EDGES).upper(), last.strip(_EDGES))


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _EXCERPT else f"{line[:_EXCERPT]}…")


def _role(entry: Json) -> str | None:
    message = entry.get("message")
    return message.get("role") if isinstance(message, dict) else None


# -- notes


def examine_notes(key: str, entry: SessionEntry) -> Iterator[Advice]:
    """Whether notes were lost before a compaction."""
    detail = entry.known("memoryFlush")
    if detail is None or detail.get("kind") != "failed":
        return
    failures = flushed_of(entry).failures
    ended = failures >= MAX_FAILURES
    then = "and is not tried again before the next compaction" if ended else "and is tried again with the next message"
    told = f"the notes of {key} could not be kept: that failed {failures} times, {then}"
    yield Advice(
        "memory", "warning", told, key, "look at the workspace of the agent, its memory folder, and at its model"
    )
