"""What the model saw at any entry of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, Named, damage, handle, name_of, opened, when

if TYPE_CHECKING:
    from sessile import SessionContext
    from sessile.core.styled import Line

_MESSAGES = ("message", "custom_message", "branch_summary")  # the kinds of entries that a model sees


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
        return damage(app, found)


def _seen(app: App, named: Named, context: SessionContext) -> Iterator[Line]:
    # A program that reads the document needs none of this.
    from sessile.core.shown import show_all
    from sessile.core.styled import Span
    from sessile.render.text import transcript_lines
    from sessile.render.wording import many

    session = named.session
    models = ", ".join(f"{role} {model}" for role, model in context.models.items()) or "no model"
    gone, last = _unseen(named, context)
    yield (Span(name_of(session), "strong"), Span(f"  at {named.at or session.leaf_id or 'the beginning'}", "dim"))
    yield (Span(f"{many(len(context.messages), 'message')} · thinking {context.thinking_level} · {models}", "dim"),)
    if gone:
        told = many(gone, "earlier message is no longer seen", "earlier messages are no longer seen")
        told += "; they are all still in the session:" if gone > 1 else "; it is still in the session:"
        yield (Span(f"{told} {app.command} show {handle(app, session.id, session.path)} --to {last}", "summary"),)
    yield ()
    messages = (
        {"type": "message", "id": source, "message": message}
        for message, source in zip(context.messages, context.sources, strict=True)
    )
    yield from transcript_lines(show_all(messages), "all", app.out.columns, plain_words=app.out.plain, when=when(app))


def _unseen(named: Named, context: SessionContext) -> tuple[int, str | None]:
    """How many messages of the path the model does not see any more, and the last of them."""
    seen = {source for source in context.sources if source}
    count, last = 0, None
    for entry in named.session.iter_branch(named.at):
        if entry.id not in seen and entry.type in _MESSAGES:
            count, last = count + 1, entry.id
    return count, last
