"""What the model saw at any entry of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, Named, name_of, opened, when

if TYPE_CHECKING:
    from sessile import SessionContext
    from sessile.core.styled import Line


@verb(
    "sessile context webhook               what the model would see now",
    "sessile context webhook#9f31c2a0      … what it saw at an entry",
    "sessile context session.jsonl --json  messages and state, for a program",
    name="context",
)
@click.argument("session", type=SESSION, default="@here")
@click.option("--as", "wire", type=click.Choice(["anthropic", "openai"]), help="As a provider takes it; JSON.")
def context_verb(app: App, session: str, wire: str | None) -> int:
    """See what the model saw at the leaf, or at any entry: after a compaction, the summary and what was kept."""
    with opened(app, session) as named:
        found = named.session
        context = found.context(named.at) if named.at is not None else found.context()
        if wire is not None:
            from sessile import convert_to_llm, to_anthropic, to_openai

            convert = to_anthropic if wire == "anthropic" else to_openai
            app.out.document(f"context.{wire}/1", messages=convert(convert_to_llm(context.messages)))
        elif app.json:
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
            app.out.page(_seen(app, named, context))
    return 0


def _seen(app: App, named: Named, context: SessionContext) -> Iterator[Line]:
    # A program that reads the document needs none of this.
    from sessile.core.shown import show_all
    from sessile.core.styled import Span
    from sessile.render.text import transcript_lines

    session = named.session
    models = ", ".join(f"{role} {model}" for role, model in context.models.items()) or "no model"
    path = session.get_branch(named.at)
    seen = {source for source in context.sources if source}
    gone = [
        entry
        for entry in path
        if entry.id not in seen and entry.type in ("message", "custom_message", "branch_summary")
    ]
    yield (Span(name_of(session), "strong"), Span(f"  at {named.at or session.leaf_id or 'the beginning'}", "dim"))
    yield (Span(f"{len(context.messages)} messages · thinking {context.thinking_level} · {models}", "dim"),)
    if gone:
        told = f"{len(gone)} earlier messages are no longer seen; they are all still in the session:"
        yield (Span(f"{told} sessile show {session.id[:8]} --to {gone[-1].id}", "summary"),)
    yield ()
    messages = (
        {"type": "message", "id": source, "message": message}
        for message, source in zip(context.messages, context.sources, strict=True)
    )
    yield from transcript_lines(show_all(messages), "all", app.out.columns, plain_words=app.out.plain, when=when(app))
