"""What the model saw at any entry of a session, as it is or as a provider takes it, and what it does not see any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, Named, damage, handle, name_of, opened, when
from sessile.errors import Invalid

if TYPE_CHECKING:
    from sessile import Session, SessionContext
    from sessile.core.styled import Line
    from sessile.core.whereabouts import Absence

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
    from sessile import can_resize, convert_to_llm, resize, to_anthropic, to_google, to_openai
    from sessile.core.hygiene import clean
    from sessile.core.hygiene_policy import policy_for

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
    from sessile.core.shown import show_all
    from sessile.core.styled import Span
    from sessile.core.visible import visible_line
    from sessile.core.whereabouts import absences
    from sessile.render.text import transcript_lines
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
