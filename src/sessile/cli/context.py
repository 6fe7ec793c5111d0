"""What the model saw at any entry of a session, as it is or as a provider takes it, and what it does not see any more.

Compacting a session: the model goes on with a summary, and everything stays in the tree.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from sessile.cli.app import App, verb
from sessile.cli.names import (
    SESSION,
    Named,
    damage,
    handle,
    in_place_option,
    name_of,
    opened,
    when,
    writable,
    written_by,
)
from sessile.errors import Invalid, Unsupported
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile.core.context import Absence, SessionContext
    from sessile.render.styled import Line
    from sessile.session import Session
    from sessile.upkeep.compactor import Compactor, Outcome


# --- context

_TOLD = 8  # absences that are told one by one
_DOES = {
    "compaction": "summed up by the compaction",
    "reset_boundary": "left by the reset",
    "context_edit": "taken out by the edit",
}


@verb(
    "sessile context webhook               what the model would see now",
    "sessile context webhook#9f31c2a0      … what it saw at an entry; the same as --at 9f31c2a0",
    "sessile context webhook --provider anthropic    … as it is sent there",
    "sessile context session.jsonl --json  messages and state, for a program",
    name="context",
)
@click.argument("session", type=SESSION, default="@here")
@click.option("--at", metavar="ENTRY", help="At this entry; the same as SESSION#ENTRY.")
@click.option(
    "--provider",
    "--as",
    type=click.Choice(["anthropic", "openai", "google"]),
    help="As a provider takes it, with what had to be done for that; JSON.",
)
def context_verb(app: App, session: str, at: str | None, provider: str | None) -> int:
    """See what the model saw at the leaf, or at any entry: after a compaction, the summary and what was kept."""
    if at is not None and "#" in session:
        raise Invalid("one entry, not two", hint="say SESSION#ENTRY, or --at ENTRY")
    with opened(app, session if at is None else f"{session}#{at}") as named:
        found = named.session
        if provider is not None:
            _send(app, _context(named), provider)
        elif app.json:
            context = _context(named)
            app.out.document(
                "context/1",
                entryCount=found.count_entries(),
                messages=context.messages,
                thinkingLevel=context.thinking_level,
                models=context.models,
                mode=context.mode,
                modeData=context.mode_data,
                injectedTtsrRules=context.injected_ttsr_rules,
                sources=context.sources,
                leaf=named.at or found.leaf_id,
            )
        else:
            app.out.page(_seen(app, named))
        return damage(app, found)


def _context(named: Named) -> SessionContext:
    return named.session.context(named.at) if named.at is not None else named.session.context()


def _send(app: App, context: SessionContext, provider: str) -> None:
    """The messages as a provider takes them, and a note of everything that was done for that."""
    from sessile.core.hygiene import clean
    from sessile.core.messages import convert_to_llm, to_anthropic, to_google, to_openai
    from sessile.core.providers import policy_for
    from sessile.vendors.images import can_resize, resize

    messages: list[dict[str, Any]] = []
    sources: list[str | None] = []
    for message, source in zip(context.messages, context.sources, strict=True):
        converted = convert_to_llm([message])
        messages += converted
        sources += [source] * len(converted)
    # Where nobody can resize, a large image is sent as it is, as long as a provider takes it.
    cleaned = clean(messages, policy_for(provider), resize=resize if can_resize() else None)
    shape = {"anthropic": to_anthropic, "openai": to_openai, "google": to_google}[provider]
    notes = [{"entry": sources[note.place], "did": note.did, "text": note.text} for note in cleaned.notes]
    app.out.document(f"context.{provider}/1", messages=shape(cleaned.messages), notes=notes)


def _seen(app: App, named: Named) -> Iterator[Line]:
    # A program that reads the document needs none of this.
    from sessile.core.compaction import context_size
    from sessile.core.context import absences
    from sessile.core.visible import visible_line
    from sessile.render.shown import show_all
    from sessile.render.styled import Span
    from sessile.render.terminal import transcript_lines
    from sessile.render.wording import many

    session = named.session
    size = context_size(session.walk_up(named.at), session.read_row)  # first: neither is small in a long session
    context = _context(named)
    models = ", ".join(f"{role} {model}" for role, model in context.models.items()) or "no model"
    told = (
        f"{many(len(context.messages), 'message')} · {'' if size.source == 'provider' else '~'}{size.tokens:,} tokens"
    )
    gone = absences((entry.body for entry in session.iter_branch(named.at)), set(context.sources))
    at = visible_line(named.at or session.leaf_id or "the beginning")
    yield (Span(name_of(session), "strong"), Span(f"  at {at}", "dim"))
    yield (Span(visible_line(f"{told} · thinking {context.thinking_level} · {models}"), "dim"),)
    for absence in gone[:_TOLD]:
        yield (Span(_absent(app, session, absence), "summary"),)
    if len(gone) > _TOLD:
        yield (Span(f"… and {many(len(gone) - _TOLD, 'more')} like that", "summary"),)
    yield ()
    messages = (
        {"type": "message", "id": source, "message": message}
        for message, source in zip(context.messages, context.sources, strict=True)
    )
    yield from transcript_lines(show_all(messages), "all", app.out.columns, plain_words=app.out.plain, when=when(app))


def _absent(app: App, session: Session, absence: Absence) -> str:
    """What the model does not see any more, and how to see it."""
    from sessile.render.wording import many

    where = f"{app.command} show {handle(app, session.id, session.path)} --from {absence.first} --to {absence.last}"
    if absence.changed:
        return f"{many(absence.messages, 'message')} changed by the edit {absence.by}; as it was: {where}"
    return f"{many(absence.messages, 'message')} {_DOES.get(absence.kind, absence.kind)} {absence.by}; still there: {where}"


# --- compacting

_NO_MODEL = "extract"
_SAID = {
    "nothing": "there is nothing to sum up",
    "cancelled": "it was cancelled by a hook",
    "rejected": "the summary was not good enough; nothing was changed",
}


@verb(
    "sessile compact webhook                      from the words that are there; needs no model",
    "sessile compact webhook --with anthropic/claude-haiku-4-5 keep the error messages",
    'sessile compact webhook --with "command:my-summarizer --short"',
    "sessile compact webhook --plan               only say what it would do",
    name="compact",
)
@click.argument("session", type=SESSION)
@click.argument("instructions", nargs=-1)
@click.option(
    "--with",
    "summarizer",
    metavar="WHO",
    default=_NO_MODEL,
    envvar="SESSILE_SUMMARIZER",
    help="Who sums up: extract, openai/MODEL, anthropic/MODEL, an http address, or command:COMMAND.",
)
@click.option("--base-url", metavar="URL", help="Where the endpoint of openai/ or anthropic/ is.")
@click.option("--keep", metavar="TOKENS", type=click.IntRange(min=1), help="Keep so many tokens as they are.")
@click.option("--window", metavar="TOKENS", type=click.IntRange(min=1), help="What the session's model can read.")
@click.option("--plan", "only_plan", is_flag=True, help="Only say what it would do.")
@in_place_option
def compact_verb(
    app: App,
    session: str,
    instructions: tuple[str, ...],
    summarizer: str,
    base_url: str | None,
    keep: int | None,
    window: int | None,
    only_plan: bool,
    in_place: bool,
) -> int:
    """Sum up all but the newest part of a session, for the model. Nothing is removed: sessile tree shows it all.

    The endpoints take their keys from OPENAI_API_KEY and ANTHROPIC_API_KEY.
    """
    from sessile.agents.registry import AGENTS
    from sessile.core.compaction import CompactionSettings
    from sessile.upkeep.compactor import Compactor

    with opened(app, session) if only_plan else writable(app, session, in_place=in_place) as (found, at, leaf):
        if at is not None or leaf is not None:
            raise Invalid("a whole session is compacted", hint="sessile branch SESSION#ENTRY, then compact")
        writer = written_by(found)
        if not only_plan and writer is not None and "compact" not in AGENTS.capabilities(writer):
            hint = "fork it (sessile fork), and compact the copy"
            raise Unsupported(f"{writer} has no compactions", path=found.path, hint=hint)
        known = window or _window(found)
        settings = CompactionSettings() if keep is None else CompactionSettings(keep_recent_tokens=keep)
        work = Compactor(found, _summarizer(summarizer, base_url), window=known, settings=settings)
        if only_plan:
            return _plan(app, found, work)
        with app.out.progress("Summing up"):
            outcome = work.compact(" ".join(instructions) or None)
        return _told(app, found, outcome)


def _window(session: Session) -> int | None:
    """What the model of a session can read, if somebody knows."""
    from sessile.vendors.models import Models

    model = session.context().models.get("default")
    return None if model is None else Models().window(model)


def _summarizer(name: str, base_url: str | None) -> Callable[[Any], Any]:
    """The summarizer that a person has named."""
    from sessile.core.summaries import extract
    from sessile.vendors.summarizers import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer, RemoteSummarizer

    kind, slash, model = name.partition("/")
    if name == _NO_MODEL:
        return extract
    if name.startswith("command:"):
        return CommandSummarizer(shlex.split(name.removeprefix("command:")))
    if name.startswith(("http://", "https://")):
        return RemoteSummarizer(name)
    if slash and model and kind in ("openai", "anthropic"):
        return (OpenAISummarizer if kind == "openai" else AnthropicSummarizer)(model, base_url=base_url)
    raise Invalid(
        f"nobody is called {name[:80]!r}",
        hint="say extract, openai/MODEL, anthropic/MODEL, an http address, or command:COMMAND",
    )


def _plan(app: App, session: Session, work: Compactor) -> int:
    preparation = work.prepare()
    size = work.size()
    summed = [] if preparation is None else [*preparation.history(), *preparation.turn_prefix()]
    kept = 0 if preparation is None else sum(1 for _ in preparation.kept())
    if app.json:
        app.out.document(
            "compact/1",
            status="nothing" if preparation is None else "planned",
            id=session.id,
            path=session.path,
            tokens_before=size._asdict(),
            first_kept=None if preparation is None else preparation.first_kept_id,
            summed_up=len(summed),
            kept=kept,
        )
    elif preparation is None:
        app.out.note(f"{_SAID['nothing']}: {_size(size.tokens, size.source)}")
    else:
        app.out.line(preparation.first_kept_id)
        split = ", splitting a turn" if preparation.is_split_turn else ""
        told = f"{many(len(summed), 'message')} would be summed up and {kept} kept{split}"
        app.out.note(f"{told}; the context is {_size(size.tokens, size.source)} now")
    return 0 if preparation is not None else 1


def _told(app: App, session: Session, outcome: Outcome) -> int:
    before = outcome.tokens_before
    if app.json:
        app.out.document(
            "compact/1",
            status=outcome.status,
            id=session.id,
            path=session.path,
            tokens_before=None if before is None else before._asdict(),
            tokens_after=outcome.tokens_after,
            entry=None if outcome.receipt is None else outcome.receipt.id,
            objections=[objection._asdict() for objection in outcome.objections],
        )
    elif outcome.receipt is not None and before is not None:
        app.out.line(outcome.receipt.id)
        app.out.note(
            f"compacted: {_size(before.tokens, before.source)} → about {outcome.tokens_after:,} ({session.path})"
        )
        again = f"{app.command} context {handle(app, session.id, session.path)}"
        app.out.note(f"what was summed up is still in the session, and {again} says where")
    else:
        app.out.note(_SAID.get(outcome.status, outcome.status))
        for objection in outcome.objections:
            app.out.note(f"  {objection.detail}")
    return 0 if outcome.status == "compacted" else 1


def _size(tokens: int, source: str) -> str:
    return f"{tokens:,} tokens" if source == "provider" else f"about {tokens:,} tokens"
