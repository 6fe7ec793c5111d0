"""Cleaning up: what takes room, what could go, and how it comes back.

Every verb here shows what it would do first and changes something only with --apply. What it removes goes to the trash of the
store, from where `undo` brings it back; only `trash empty --apply` is for good.

Keeping sessions that their agent is about to delete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from sessile.agents.base import DAY
from sessile.cli.app import App, verb
from sessile.cli.listing import SOON, say_problem
from sessile.cli.names import SESSION, addresses, located
from sessile.cli.output import Cell, Column, size_of
from sessile.core.dates import parse_span
from sessile.errors import Ambiguous, Invalid, NotFound, Refused, SessileError
from sessile.render.wording import many
from sessile.storage.filters import Filter
from sessile.storage.layout import Source
from sessile.storage.trash import Deletion
from sessile.upkeep.disk import Trashed, disk_usage, empty_trash, plan_empty_trash, trash_contents, undo_last
from sessile.upkeep.keep import Keeper, Kept, expiring
from sessile.upkeep.prune import PrunePlan, PruneRule, apply_prune, plan_prune
from sessile.upkeep.sweep import apply_blob_sweep, plan_blob_sweep

# --- cleaning

_KINDS = {
    "sessions": "session_bytes",
    "artifacts": "artifacts_bytes",
    "blobs": "blob_bytes",
    "drafts": "draft_bytes",
    "originals": "originals_bytes",
    "kept": "kept_bytes",
    "trash": "trash_bytes",
    "cache": "cache_bytes",
    "other": "other_bytes",
}
_LARGEST = 10
_SPARED = {"recent": "used within the last day"}  # where the word alone says too little
_RECENT = "; --recent means those, too"


@verb(
    "sessile du            what takes room in your store, and the largest sessions of all agents",
    "sessile du --orphans  also blobs that nothing names; reads every file",
    "sessile du --json",
    name="du",
)
@click.option("--orphans", is_flag=True, help="Look for blobs that nothing names.")
def du_verb(app: App, orphans: bool) -> int:
    """See what takes room on the disk."""
    usage = disk_usage(app.store, orphans=orphans)
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up(progress=progress)
    app.say_notices()
    largest = app.library.list(Filter(sort="size", limit=_LARGEST)).rows
    if app.json:
        items = ({"id": row.id, "path": row.path, "size": row.size, "title": row.title} for row in largest)
        app.out.document("du/1", items, store=usage._asdict(), total=usage.total)
        return 0
    rows = [(kind, getattr(usage, member)) for kind, member in _KINDS.items()]
    rows += [("orphaned blobs", usage.orphan_blob_bytes)] if usage.orphan_blob_bytes is not None else []
    app.out.note(app.tilde(app.store.name), "strong")
    app.out.table(
        [Column("size", right=True), Column("what")],
        [
            *([Cell(size_of(size), value=str(size)), Cell(kind)] for kind, size in rows if size),
            [Cell(size_of(usage.total), "strong", str(usage.total)), Cell("total", "strong")],
        ],
    )
    if largest:
        app.out.note("")
        app.out.note("the largest sessions of all agents", "strong")
        columns = [Column("size", right=True), Column("agent"), Column("id"), Column("title", wide=True)]
        cells = (
            [
                Cell(size_of(row.size), value=str(row.size)),
                Cell(app.library.agent_of(row.path) or ""),
                Cell((row.id or "")[: 8 if app.out.columns else None], "id"),
                Cell(row.title or row.first_text or "(no title)"),
            ]
            for row in largest
        )
        app.out.table(columns, cells)
    return 0


@verb(
    "sessile prune --older-than 90d          shows what would go",
    "sessile prune --older-than 90d --apply  moves it to the trash",
    "sessile prune 6513 --apply              one session; the same as sessile rm 6513 --apply",
    "sessile prune --agent claude --older-than 90d --apply   those of another agent, to your own trash",
    "sessile prune --blobs                   blobs that no session names any more",
    name="prune",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--older-than", metavar="SPAN", help="Not changed for 90d, 12w …")
@click.option("--larger-than", metavar="MB", type=click.FloatRange(min=0), help="Larger than so many megabytes.")
@click.option("--empty", is_flag=True, help="In which nobody ever said anything.")
@click.option("-p", "--project", metavar="FOLDER", help="Only of this project.")
@click.option("--agent", metavar="AGENT", help="Those of this agent, instead of your own.")
@click.option("--keep", type=click.IntRange(0), default=0, metavar="N", help="Spare the newest N.")
@click.option("--recent", is_flag=True, help="Also if the session that you name was used within the last day.")
@click.option("--blobs", is_flag=True, help="Blobs that nothing names, instead of sessions.")
@click.option("--apply", is_flag=True, help="Do it; else it is only shown.")
def prune_verb(
    app: App,
    sessions: tuple[str, ...],
    older_than: str | None,
    larger_than: float | None,
    empty: bool,
    project: str | None,
    agent: str | None,
    keep: int,
    recent: bool,
    blobs: bool,
    apply: bool,
) -> int:
    """Move sessions to the trash of your own store: your own, or those of another agent that you name.

    Pinned and open ones are always spared, and those that were used within the last day unless you name them with --recent.
    """
    if blobs:
        return _sweep(app, apply)
    if agent is not None and sessions:
        raise Invalid("sessions, or those of an agent?", hint="name the sessions without --agent")
    named = [located(app, address) for address in addresses(sessions)] if sessions else None
    sources = _sources_of(app, named) if named is not None else None if agent is None else _folders_of(app, agent)
    rule = PruneRule(
        older_than=None if older_than is None else parse_span(older_than) / 1000,
        larger_than=None if larger_than is None else int(larger_than * 1e6),
        empty=empty,
        project=None if project is None else os.path.abspath(os.path.join(app.here, os.path.expanduser(project))),
        keep=keep,
        named=named,
        recent=recent,
    )
    plan = plan_prune(app.store, rule, pinned=app.library.pins.names(), sources=sources)
    return _prune(app, plan, apply, named=named is not None)


def _sources_of(app: App, paths: Sequence[str]) -> list[Source]:
    """The folders that hold some sessions; each must lie in one, so that it can be put back."""
    found: dict[str, Source] = {}
    for path in paths:
        if app.store.layout.keeps(path):
            raise Refused("this is the copy of a session that was kept", path=path, hint="remove the file by hand")
        source = app.library.source_of(path)
        if source is None:
            hint = "sessile sources add FOLDER looks there; or delete it yourself"
            raise Refused("this session lies in no folder that is looked at", path=path, hint=hint)
        found[source.sessions] = source
    return [*found.values()]


def _folders_of(app: App, agent: str) -> list[Source]:
    """The folders of an agent."""
    found = [source for source in app.library.given if source.agent == agent]
    if not found:
        agents = ", ".join(dict.fromkeys(source.agent for source in app.library.given))
        raise NotFound(f"there is no folder of {agent[:40]!r}", hint=f"there are folders of {agents}")
    return found


def _roots(app: App) -> list[str]:
    """The folders of other agents that something may be put back into, whether they are still there or not."""
    return list(dict.fromkeys(source.sessions for source in (*app.library.given, *app.places.family)))


def _prune(app: App, plan: PrunePlan, apply: bool, *, named: bool) -> int:
    done = apply_prune(app.store, plan) if apply else None
    if app.json:
        items = (
            {"id": item.id, "path": item.path, "title": item.title, "size": item.size, "reason": item.reason}
            for item in plan.candidates
        )
        spared = [{"id": item.id, "path": item.path, "why": item.why} for item in plan.spared]
        tokens = None if done is None else [deletion.token for deletion in done.deletions]
        refused = [] if done is None else [{"path": path, "why": why} for path, why in done.refused]
        app.out.document(
            "prune/1", items, spared=spared, bytes=plan.bytes, applied=apply, tokens=tokens, refused=refused
        )
    else:
        columns = [
            Column("size", right=True),
            Column("changed", right=True),
            Column("id"),
            Column("why"),
            Column("title", wide=True),
        ]
        cells = (
            [
                Cell(size_of(item.size), value=str(item.size)),
                app.out.moment(int(item.modified.timestamp() * 1000)),
                Cell(item.id[: 8 if app.out.columns else None], "id"),
                Cell(item.reason),
                Cell(item.title or ""),
            ]
            for item in plan.candidates
        )
        app.out.table(columns, cells)
        _say_spared(app, plan, named=named)
        if done is None:
            told = f"{many(len(plan.candidates), 'session')}, {size_of(plan.bytes)} would go to the trash"
            app.out.note(f"{told}. Do it: --apply" if plan.candidates else "nothing to prune")
        elif done.deletions:
            told = f"{many(len(done.deletions), 'session')}, {size_of(done.bytes)} went to the trash"
            times = f" -n {len(done.deletions)}" if len(done.deletions) > 1 else ""
            app.out.note(f"{told}. Take back: {app.command} undo{times}")
        else:
            app.out.note("nothing was pruned")
        if done is not None:
            for path, why in done.refused:
                app.out.note(f"spared after all: {path}: {why}")
    if done is not None and done.failure is not None:
        raise done.failure
    return 0 if plan.candidates else 1


def _say_spared(app: App, plan: PrunePlan, *, named: bool) -> None:
    reasons: dict[str, int] = {}
    for item in plan.spared:
        reasons[item.why] = reasons.get(item.why, 0) + 1
    if reasons:
        told = ", ".join(f"{count} {_SPARED.get(why, why)}" for why, count in reasons.items())
        app.out.note(f"spared: {told}{_RECENT if named and 'recent' in reasons else ''}")
    if not plan.sees_open_files:
        app.out.note("nobody can tell which of these files are open: only those that hold a lock count as such")


def _sweep(app: App, apply: bool) -> int:
    plan = plan_blob_sweep(app.store)
    done = apply_blob_sweep(app.store, plan) if apply else None
    if app.json:
        items = ({"hash": orphan.hash, "size": orphan.size} for orphan in plan.orphans)
        token = done.deletion.token if done is not None and done.deletion is not None else None
        app.out.document("prune.blobs/1", items, bytes=plan.bytes, recent=plan.recent, applied=apply, token=token)
        return 0 if plan.orphans else 1
    app.out.note(
        f"{many(len(plan.orphans), 'blob')}, {size_of(plan.bytes)}, named by nothing; {plan.recent:,} more too young"
    )
    if done is not None and done.deletion is not None:
        app.out.note(f"they are in the trash. Take back: {app.command} undo")
    elif plan.orphans:
        app.out.note("Move them to the trash: --apply")
    return 0 if plan.orphans else 1


@verb(
    "sessile trash                            what is in the trash",
    "sessile trash restore TOKEN              bring it back",
    "sessile trash empty --older-than 30d     shows what would be gone for good; then --apply",
    name="trash",
)
@click.argument("action", type=click.Choice(["list", "restore", "empty"]), default="list")
@click.argument("token", required=False)
@click.option("--older-than", metavar="SPAN", help="Only what has been there for 30d …")
@click.option("--apply", is_flag=True, help="Remove it for good; else it is only shown.")
def trash_verb(app: App, action: str, token: str | None, older_than: str | None, apply: bool) -> int:
    """See what is in the trash, bring something back, or empty it. Nothing leaves the trash by itself."""
    if action == "restore":
        return _restore(app, token)
    if action == "empty":
        span = None if older_than is None else parse_span(older_than) / 1000
        plan = plan_empty_trash(app.store, span)
        done = empty_trash(app.store, plan, confirm=True) if apply else None
        _print_trash(app, plan.items, applied=apply)
        if done is None:
            told = f"{many(len(plan.items), 'deletion')}, {size_of(plan.bytes)} would be gone for good"
            if plan.items and not app.json:
                app.out.note(f"{told}. Do it: --apply")
        elif plan.items:
            app.out.note(f"{size_of(done.bytes)} are gone for good")
            if done.failure is not None:
                raise done.failure
        return 0 if plan.items else 1
    items = trash_contents(app.store)
    _print_trash(app, items, applied=False)
    return 0 if items else 1


def _restore(app: App, token: str | None) -> int:
    if token is None:
        raise Invalid("which one?", hint="sessile trash shows tokens; sessile undo takes the last one back")
    tokens = [item.token for item in trash_contents(app.store) if token in item.token]
    if not tokens:
        raise NotFound(f"there is no deletion {token[:40]!r}", hint="sessile trash shows tokens")
    if len(tokens) > 1:
        told = f"deletion {token[:40]!r} is ambiguous ({len(tokens)})"
        raise Ambiguous(told, hint="say more of the token", candidates=[{"id": each} for each in tokens])
    return _restored(app, [app.store.undo(tokens[0], roots=_roots(app))])


def _restored(app: App, deletions: Iterable[Deletion]) -> int:
    if app.json:
        # All of them first: half a document is none.
        app.out.document("undo/1", [{"token": each.token, "paths": each.paths} for each in deletions])
        return 0
    for deletion in deletions:
        for path in deletion.paths:
            app.out.line(path)
    app.out.note("back where it was")
    return 0


def _print_trash(app: App, items: Sequence[Trashed], *, applied: bool) -> None:
    if app.json:
        described = (
            {"token": item.token, "deleted": app.out.iso(item.at), "paths": item.paths, "size": item.bytes}
            for item in items
        )
        app.out.document("trash/1", described, applied=applied, now=app.out.iso(int(time.time() * 1000)))
        return
    columns = [Column("deleted", right=True), Column("size", right=True), Column("token"), Column("from", wide=True)]
    app.out.table(
        columns,
        (
            [
                app.out.moment(item.at),
                Cell(size_of(item.bytes), value=str(item.bytes)),
                Cell(item.token, "id"),
                Cell(item.paths[0] if item.paths else "(what an interrupted emptying left)"),
            ]
            for item in items
        ),
    )
    if not items:
        app.out.note("the trash is empty")


@verb("sessile undo", "sessile undo -n 3", "sessile trash restore TOKEN   for an earlier one", name="undo")
@click.option("-n", "--number", type=click.IntRange(1), default=1, help="The last so many, each session one (1).")
def undo_verb(app: App, number: int) -> int:
    """Take the last deletion back, whatever verb made it."""
    return _restored(app, _taken_back(app, number))


def _taken_back(app: App, number: int) -> Iterator[Deletion]:
    """The last so many deletions, or as many as there are."""
    for count in range(number):
        try:
            yield undo_last(app.store, roots=_roots(app))
        except NotFound:
            if not count:
                raise
            app.out.note(f"only {many(count, 'deletion')} could be taken back: there were no more")
            return


# --- keeping

_ALL = ("sub_agent",)  # hidden even when everything is kept: they go with their session


@verb(
    "sessile keep                 copy what its agent would delete within 7 days; quiet if that is nothing",
    "sessile keep --within 14d    look further ahead",
    "sessile keep --all           all sessions of agents that delete theirs, however new",
    "sessile keep 0f4e webhook    these, of whichever agent",
    name="keep",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--within", metavar="SPAN", help="What would be deleted within 14d, 2w … (7d).")
@click.option("--all", "everything", is_flag=True, help="All sessions of agents that delete theirs.")
def keep_verb(app: App, sessions: tuple[str, ...], within: str | None, everything: bool) -> int:
    """Copy sessions that their agent is about to delete into your own store, byte for byte, with what lies beside them.

    Claude Code deletes what was not changed for 30 days, or for as long as its settings say. Originals are only read. A
    copy is listed, shown, searched and resumed like any session as soon as its original is gone.
    """
    if bool(sessions) + (within is not None) + everything > 1:
        raise Invalid("say names, --within or --all", hint="one of them chooses the sessions")
    days = None if everything else SOON if within is None else parse_span(within) / DAY
    deadlines = {located(app, address): None for address in addresses(sessions)} if sessions else _due(app, days)
    kept: list[Kept] = []
    failed: list[SessileError] = []
    keeper = Keeper(app.library)
    for path in deadlines:
        try:
            kept.append(keeper.keep(path))
        except SessileError as error:
            failed.append(error)
    failed += [error for each in kept for error in each.failed]
    if app.json:
        items = [_described(app, each, deadlines[each.path]) for each in kept]
        app.out.document("keep/1", _with_ids(app, items), failed=[str(error) for error in failed])
    else:
        _print(app, kept, failed)
    return failed[0].exit_code if failed else 0


def _due(app: App, days: float | None) -> dict[str, int | None]:
    """The files of the sessions that would be deleted within so many days, or ever, and when."""
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up(progress=progress)
    app.say_notices()
    found = expiring(app.library, now=app.store.now(), within_days=days, hide=_ALL, follow=os.path.realpath)
    for outlook in found if days is not None else ():
        say_problem(app, outlook)
    return {session.path: session.deadline for outlook in found for session in outlook.sessions}


def _print(app: App, kept: list[Kept], failed: list[SessileError]) -> None:
    for each in kept:
        for path in each.written:
            app.out.line(path)
        for path in each.aside:
            app.out.note(f"the original has other bytes than its copy had; those are in {path}")
        for path in each.left_out:
            app.out.note(f"not copied, because it is neither a file nor a folder: {path}")
    for error in failed:
        app.out.fail(error)
    new = [each for each in kept if each.written]
    if new:
        told = f"kept {many(len(new), 'session')}, {size_of(sum(each.bytes for each in new))}"
        app.out.note(f"{told}, in {app.tilde(app.store.layout.kept)}")
    elif app.out.is_terminal and not failed:
        app.out.note("nothing to keep: no copy is missing")


def _described(app: App, kept: Kept, deadline: int | None) -> dict[str, Any]:
    """What was done for a session, for a program."""
    return {
        "path": kept.path,
        "agent": kept.agent,
        "deadline": app.out.iso(deadline),
        "copy": kept.copy,
        "written": kept.written,
        "bytes": kept.bytes,
        "unchanged": kept.unchanged,
        "aside": kept.aside,
        "left_out": kept.left_out,
    }


def _with_ids(app: App, items: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The sessions with their ids; that of a file where nobody looks is unknown."""
    rows = app.library.list(Filter(hide=())).rows if items else []
    ids = {row.path: row.id for row in rows}
    return ({"id": ids.get(item["path"]), **item} for item in items)
