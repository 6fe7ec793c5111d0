"""Compacting a session: the model goes on with a summary, and everything stays in the tree."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, handle, in_place_option, opened, writable, written_by
from sessile.errors import Invalid, Unsupported
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile import Compactor, Session
    from sessile.care.compactor import Outcome

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
    from sessile import CompactionSettings, Compactor, capabilities_of

    with opened(app, session) if only_plan else writable(app, session, in_place=in_place) as (found, at, leaf):
        if at is not None or leaf is not None:
            raise Invalid("a whole session is compacted", hint="sessile branch SESSION#ENTRY, then compact")
        writer = written_by(found)
        if not only_plan and writer is not None and "compact" not in capabilities_of(writer):
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
    from sessile import Models

    model = session.context().models.get("default")
    return None if model is None else Models().window(model)


def _summarizer(name: str, base_url: str | None) -> Callable[[Any], Any]:
    """The summarizer that a person has named."""
    from sessile import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer, RemoteSummarizer, extract

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
