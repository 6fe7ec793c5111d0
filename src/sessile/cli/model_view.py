"""What the model sees of a session: its context at any entry, and compaction, which replaces older messages by a summary."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from sessile.agents.registry import AGENTS
from sessile.cli.arguments import (
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
from sessile.cli.command import App, verb
from sessile.core.context import Absence, SessionContext, absences
from sessile.core.kinds import MARKER
from sessile.core.visible import visible_line
from sessile.errors import Invalid, Unsupported
from sessile.render.shown import show_all
from sessile.render.styled import Line, Span
from sessile.render.terminal import transcript_lines
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile.session import Session
    from sessile.upkeep.compactor import Compactor, Outcome

_LISTED = 8  # absences that are printed one by one
_REMOVED = {
    "compaction": "summarized by the compaction",
    "reset_boundary": "left behind by the reset",
    "context_edit": "removed by the edit",
}


@verb(
    "sessile context webhook               what the model sees now",
    "sessile context webhook#9f31c2a0      what it saw at an entry; same as --at 9f31c2a0",
    "sessile context webhook --provider anthropic    the request to a provider",
    "sessile context webhook --as pi       the request that pi would send",
    "sessile context webhook --bridge      continue where an entry is missing",
    "sessile context session.jsonl --json  messages and state, for programs",
    name="context",
)
@click.argument("session", type=SESSION, default="@here")
@click.option("--at", metavar="ENTRY", help="The entry; same as SESSION#ENTRY.")
@click.option(
    "--provider",
    type=click.Choice(["anthropic", "openai", "responses", "google"]),
    help="Print the request to this provider's API, with notes on changes, as JSON.",
)
@click.option(
    "--as",
    "agent",
    metavar="AGENT",
    help="Print the request that this agent would send, to the API that answered last unless --provider is given. "
    "`none` is for the provider's own rules only. Default: the session's agent.",
)
@click.option("--bridge", is_flag=True, help="Where a parent is missing, continue at the nearest earlier entry.")
def context_verb(app: App, session: str, at: str | None, provider: str | None, agent: str | None, bridge: bool) -> int:
    """Show what the model sees at the leaf, or saw at any entry: after a compaction, the summary and the kept messages."""
    if at is not None and "#" in session:
        raise Invalid("two entries given", hint="pass SESSION#ENTRY or --at ENTRY")
    with opened(app, session if at is None else f"{session}#{at}") as named:
        found = named.session
        if provider is not None or agent is not None:
            _print_request(app, named, provider, agent, bridge)
        elif app.json:
            context, gaps = _context(app, named, bridge)
            app.out.document(
                "context/2",
                entryCount=found.count_entries(),
                messages=context.messages,
                thinkingLevel=context.thinking_level,
                models=context.models,
                mode=context.mode,
                modeData=context.mode_data,
                injectedTtsrRules=context.injected_ttsr_rules,
                sources=context.sources,
                system=context.system,
                tools=context.tools,
                gaps=gaps,
                leaf=named.at or found.leaf_id,
                findings=[finding._asdict() for finding in context.findings],
            )
        else:
            app.out.page(_view(app, named, bridge))
        return damage(app, found, bridged=bridge)


def _context(app: App, named: Named, bridge: bool) -> tuple[SessionContext, list[str]]:
    """Return the context, and what the session's agent sends besides but does not store."""
    session = named.session
    if app.store.layout.owns(session.path):
        return session.context(bridge=bridge) if named.at is None else session.context(named.at, bridge=bridge), []
    from sessile.next_request import (  # loads every API, which our own sessions do not need
        agent_of,
        context_for,
        gaps_of,
    )

    agent = agent_of(session, app.places.sources(app.store))
    context = context_for(session, agent, named.at, bridge=bridge)
    return context, gaps_of(context, None if agent is None else agent.dialect)


def _print_request(app: App, named: Named, provider: str | None, agent: str | None, bridge: bool) -> None:
    """Print a request, with a note for each change that this needed, and what the agent sends but does not store."""
    # `context` alone starts faster without them
    from sessile.next_request import agent_named, agent_of, next_request
    from sessile.vendors.images import can_resize, resize

    if agent is None:
        sender = agent_of(named.session, app.places.sources(app.store))
    else:
        sender = None if agent == "none" else agent_named(agent)
    api, request = next_request(
        named.session,
        provider,
        at=named.at,
        agent=sender,
        bridge=bridge,
        # Without an image library, large images are sent as they are if the provider accepts them.
        resize=resize if can_resize() else None,
        fs=app.store.fs,
    )
    notes = [note._asdict() for note in request.notes]
    shape = None if sender is None or sender.dialect is None else sender.name
    app.out.document(f"context.{api}/2", **request, agent=shape, notes=notes, gaps=request.gaps)


def _view(app: App, named: Named, bridge: bool) -> Iterator[Line]:
    from sessile.core.compaction import context_size  # imports json

    session = named.session
    # Before the context: both are large in a long session.
    size = context_size(session.walk_up(named.at, bridge=bridge), session.read_row)
    context, gaps = _context(app, named, bridge)
    models = ", ".join(f"{role} {model}" for role, model in context.models.items()) or "no model"
    tokens = f"{'' if size.source == 'provider' else '~'}{size.tokens:,} tokens"
    facts = f"{many(len(context.messages), 'message')} · {tokens} · thinking {context.thinking_level} · {models}"
    path = [row for row in session.walk_up(named.at, bridge=bridge) if not row.flags & MARKER]
    gone = absences(map(session.read_row, reversed(path)), set(context.sources))
    at = visible_line(named.at or session.leaf_id or "the start")
    yield (Span(name_of(session), "strong"), Span(f"  at {at}", "dim"))
    yield (Span(visible_line(facts), "dim"),)
    tools = [str(tool.get("name")) for tool in context.tools]
    if context.system or tools:
        prompt = f"system prompt of {len(context.system):,} characters" if context.system else "no system prompt"
        yield (Span(visible_line(f"{prompt} · {many(len(tools), 'tool')}: {', '.join(tools)}".rstrip(": ")), "dim"),)
    for gap in gaps:
        yield (Span(visible_line(f"not shown: {gap}"), "dim"),)
    for finding in context.findings[:_LISTED]:
        ends = finding.code == "missing_parent" and not bridge
        yield (Span(visible_line(finding.detail + ("; the history starts there" if ends else "")), "failed"),)
    for absence in gone[:_LISTED]:
        yield (Span(_absent(app, session, absence), "summary"),)
    if len(gone) > _LISTED:
        yield (Span(f"… {len(gone) - _LISTED} more", "summary"),)
    yield ()
    messages = (
        {"type": "message", "id": source, "message": message}
        for message, source in zip(context.messages, context.sources, strict=True)
    )
    out = app.out
    yield from transcript_lines(
        show_all(messages), "all", out.columns, plain_words=out.plain, when=when(app), prose=out.prose
    )


def _absent(app: App, session: Session, absence: Absence) -> str:
    """Return a line about messages that the model no longer sees, and how to show them."""
    where = f"{app.command} show {handle(app, session.id, session.path)} --from {absence.first} --to {absence.last}"
    if absence.changed:
        return f"{many(absence.messages, 'message')} changed by the edit {absence.by}. Original: {where}"
    return f"{many(absence.messages, 'message')} {_REMOVED.get(absence.kind, absence.kind)} {absence.by}. Show: {where}"


# -- compact

_EXTRACT = "extract"  # the summarizer that needs no model
_OUTCOMES = {
    "nothing": "nothing to compact",
    "cancelled": "cancelled by a hook",
    "rejected": "the summary was rejected; nothing was changed",
}


@verb(
    "sessile compact webhook                      extracts the summary; needs no model",
    "sessile compact webhook --with anthropic/claude-haiku-4-5 keep the error messages",
    'sessile compact webhook --with "command:my-summarizer --short"',
    "sessile compact webhook --plan               show what would be done",
    name="compact",
)
@click.argument("session", type=SESSION)
@click.argument("instructions", nargs=-1)
@click.option(
    "--with",
    "summarizer",
    metavar="SUMMARIZER",
    default=_EXTRACT,
    envvar="SESSILE_SUMMARIZER",
    help="Summarizer: extract, openai/MODEL, anthropic/MODEL, an HTTP URL, or command:COMMAND.",
)
@click.option("--base-url", metavar="URL", help="Base URL for openai/ or anthropic/.")
@click.option("--keep", metavar="TOKENS", type=click.IntRange(min=1), help="Number of recent tokens to keep.")
@click.option("--window", metavar="TOKENS", type=click.IntRange(min=1), help="Context window of the session's model.")
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be done.")
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
    """Replace all but the newest messages by a summary, for the model. Nothing is removed from the session.

    API keys are read from OPENAI_API_KEY and ANTHROPIC_API_KEY.
    """
    from sessile.core.compaction import CompactionSettings
    from sessile.upkeep.compactor import Compactor  # `context` starts faster without it

    with opened(app, session) if only_plan else writable(app, session, in_place=in_place) as (found, at, leaf):
        if at is not None or leaf is not None:
            raise Invalid("cannot compact at an entry", hint="run `sessile branch SESSION#ENTRY` first")
        writer = written_by(found)
        if not only_plan and writer is not None and "compact" not in AGENTS.capabilities(writer):
            hint = "run `sessile fork` and compact the fork"
            raise Unsupported(f"compaction is not supported for sessions of {writer}", path=found.path, hint=hint)
        window = window or _window(found)
        settings = CompactionSettings() if keep is None else CompactionSettings(keep_recent_tokens=keep)
        compactor = Compactor(found, _summarizer(summarizer, base_url), window=window, settings=settings)
        if only_plan:
            return _print_plan(app, found, compactor)
        with app.out.progress("Summarizing"):
            outcome = compactor.compact(" ".join(instructions) or None)
        return _print_outcome(app, found, outcome)


def _window(session: Session) -> int | None:
    """Return the context window of the session's model, if known."""
    from sessile.vendors.models import Models  # only `compact` needs it

    model = session.context().models.get("default")
    return None if model is None else Models().window(model)


def _summarizer(name: str, base_url: str | None) -> Callable[[Any], Any]:
    """Return the summarizer of this name."""
    from sessile.core.summaries import extract
    from sessile.vendors.summarizers import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer, RemoteSummarizer

    kind, slash, model = name.partition("/")
    if name == _EXTRACT:
        return extract
    if name.startswith("command:"):
        return CommandSummarizer(shlex.split(name.removeprefix("command:")))
    if name.startswith(("http://", "https://")):
        return RemoteSummarizer(name)
    if slash and model and kind in ("openai", "anthropic"):
        return (OpenAISummarizer if kind == "openai" else AnthropicSummarizer)(model, base_url=base_url)
    raise Invalid(
        f"invalid summarizer {name[:80]!r}",
        hint="use extract, openai/MODEL, anthropic/MODEL, an HTTP URL, or command:COMMAND",
    )


def _print_plan(app: App, session: Session, compactor: Compactor) -> int:
    preparation = compactor.prepare()
    size = compactor.size()
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
        app.out.note(f"{_OUTCOMES['nothing']}: {_size(size.tokens, size.source)}")
    else:
        app.out.line(preparation.first_kept_id)
        split = ", splitting a turn" if preparation.is_split_turn else ""
        plan = f"{many(len(summed), 'message')} would be summarized and {kept} kept{split}"
        app.out.note(f"{plan}; the context has {_size(size.tokens, size.source)} now")
    return 0 if preparation is not None else 1


def _print_outcome(app: App, session: Session, outcome: Outcome) -> int:
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
        context = f"{app.command} context {handle(app, session.id, session.path)}"
        app.out.note(f"summarized messages stay in the session. Show: {context}")
    else:
        app.out.note(_OUTCOMES.get(outcome.status, outcome.status))
        for objection in outcome.objections:
            app.out.note(f"  {objection.detail}")
    return 0 if outcome.status == "compacted" else 1


def _size(tokens: int, source: str) -> str:
    return f"{tokens:,} tokens" if source == "provider" else f"about {tokens:,} tokens"
