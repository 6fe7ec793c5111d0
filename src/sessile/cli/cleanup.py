"""Cleanup: disk usage, pruning, the trash, and copies of sessions that their agent is about to delete.

Destructive verbs show what they would do and act only with --apply. Removed files go to the trash of the store, from where
`undo` restores them; only `trash empty --apply` and `erase`, which asks, delete permanently.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from sessile.agents.base import DAY
from sessile.cli.arguments import SESSION, addresses, located
from sessile.cli.command import App, load_settings, verb
from sessile.cli.listing import SOON, say_problem
from sessile.cli.output import Cell, Column, size_of
from sessile.core.dates import parse_span
from sessile.core.digest import title_of
from sessile.core.visible import visible_line
from sessile.errors import Ambiguous, Invalid, NotFound, Refused, SessileError, SessionNotFound
from sessile.render.wording import many
from sessile.storage.filters import Filter
from sessile.storage.layout import Source, stem_of
from sessile.storage.trash import Deletion
from sessile.upkeep.disk import Trashed, disk_usage, empty_trash, plan_empty_trash, trash_contents, undo_last
from sessile.upkeep.keep import Keeper, Kept, expiring
from sessile.upkeep.prune import PrunePlan, PruneRule, apply_prune, plan_prune
from sessile.upkeep.sweep import (
    FilePlan,
    apply_blob_sweep,
    apply_file_plan,
    plan_blob_sweep,
    plan_leftovers,
    plan_originals,
)

if TYPE_CHECKING:
    from sessile.erase import Erasure

_KINDS = {
    "sessions": "session_bytes",
    "artifacts": "artifacts_bytes",
    "blobs": "blob_bytes",
    "drafts": "draft_bytes",
    "originals": "originals_bytes",
    "kept": "kept_bytes",
    "trash": "trash_bytes",
    "catalog": "catalog_bytes",
    "indexes": "index_bytes",
    "prompt history": "history_bytes",
    "unfinished turns": "turns_bytes",
    "gateway": "gateway_bytes",
    "workspaces": "workspaces_bytes",
    "settings and notes": "state_bytes",
    "files set aside": "copies_bytes",
    "being written": "temporary_bytes",
    "left by dead processes": "leftover_bytes",
    "unknown files": "other_bytes",
}
_LARGEST = 10
_SPARED = {"recent": "used within the last day"}  # descriptions of reasons that need more than a word
_RECENT = "; pass --recent to include them"


@verb(
    "sessile du            disk usage of your store, and the largest sessions of all agents",
    "sessile du --orphans  include unreferenced blobs; reads every file",
    "sessile du --json",
    name="du",
)
@click.option("--orphans", is_flag=True, help="Look for unreferenced blobs.")
def du_verb(app: App, orphans: bool) -> int:
    """Show disk usage."""
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
    rows.append(("other caches", usage.cache_bytes - usage.catalog_bytes - usage.index_bytes))
    rows += [("orphaned blobs", usage.orphan_blob_bytes)] if usage.orphan_blob_bytes is not None else []
    app.out.note(app.tilde(app.store.name), "strong")
    app.out.table(
        [Column("size", right=True), Column("what")],
        [
            *([Cell(size_of(size), value=str(size)), Cell(kind)] for kind, size in rows if size),
            [Cell(size_of(usage.total), "strong", str(usage.total)), Cell("total", "strong")],
        ],
    )
    for path in usage.other_paths:
        app.out.note(f"unknown: {visible_line(app.tilde(path))}")
    if largest:
        app.out.note("")
        app.out.note("largest sessions of all agents", "strong")
        columns = [Column("size", right=True), Column("agent"), Column("id"), Column("title", wide=True)]
        cells = (
            [
                Cell(size_of(row.size), value=str(row.size)),
                Cell(app.library.agent_of(row.path) or ""),
                Cell((row.id or "")[: 8 if app.out.columns else None], "id"),
                Cell(title_of(row.title, row.first_text)),
            ]
            for row in largest
        )
        app.out.table(columns, cells)
    return 0


@verb(
    "sessile prune --older-than 90d          show what would be removed",
    "sessile prune --older-than 90d --apply  move it to the trash",
    "sessile prune 6513 --apply              one session; same as sessile rm 6513 --apply",
    "sessile prune --agent claude --older-than 90d --apply   sessions of another agent",
    "sessile prune --blobs                   unreferenced blobs",
    "sessile prune --originals               replaced files older than 30 days, or more than ten of a session",
    "sessile prune --leftovers               temporary files of dead processes",
    name="prune",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--older-than", metavar="SPAN", help="Only sessions not changed for this long: 90d, 12w …")
@click.option(
    "--larger-than", metavar="MB", type=click.FloatRange(min=0), help="Only sessions larger than this, in megabytes."
)
@click.option("--empty", is_flag=True, help="Only sessions without messages.")
@click.option("-p", "--project", metavar="FOLDER", help="Only sessions of this project.")
@click.option("--agent", metavar="AGENT", help="Sessions of this agent, instead of your own.")
@click.option("--keep", type=click.IntRange(0), default=0, metavar="N", help="Keep the newest N.")
@click.option("--recent", is_flag=True, help="Include named sessions that were used within the last day.")
@click.option("--blobs", is_flag=True, help="Prune unreferenced blobs instead of sessions.")
@click.option("--originals", is_flag=True, help="Prune files that repairs and edits have replaced, instead.")
@click.option("--leftovers", is_flag=True, help="Prune temporary files that dead processes left, instead.")
@click.option("--apply", is_flag=True, help="Do it; otherwise only show.")
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
    originals: bool,
    leftovers: bool,
    apply: bool,
) -> int:
    """Move sessions to the trash of your store: your own, or those of another agent.

    Pinned and open sessions are always skipped. Sessions used within the last day are skipped unless you name them and
    pass --recent.
    """
    if blobs + originals + leftovers > 1:
        raise Invalid("--blobs, --originals and --leftovers exclude each other", hint="pass one of them")
    if blobs:
        return _sweep(app, apply)
    if originals:
        rules = load_settings(app).config.originals
        age, copies = rules.prune_after_ms / 1000, rules.max_copies
        return _sweep_files(app, plan_originals(app.store, older_than=age, copies=copies), "original", apply)
    if leftovers:
        return _sweep_files(app, plan_leftovers(app.store), "leftover", apply)
    if agent is not None and sessions:
        raise Invalid("--agent cannot be combined with sessions", hint="pass either sessions or --agent")
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
    """Return the sources that contain the sessions; raise if one is in none, because it could not be restored."""
    found: dict[str, Source] = {}
    for path in paths:
        if app.store.layout.keeps(path):
            raise Refused("this is a kept copy of a session", path=path, hint="delete the file yourself")
        source = app.library.source_of(path)
        if source is None:
            hint = "run `sessile sources add FOLDER`, or delete it yourself"
            raise Refused("this session is not in any source", path=path, hint=hint)
        found[source.sessions] = source
    return [*found.values()]


def _folders_of(app: App, agent: str) -> list[Source]:
    """Return the sources of an agent."""
    found = [source for source in app.library.given if source.agent == agent]
    if not found:
        agents = ", ".join(dict.fromkeys(source.agent for source in app.library.given))
        raise NotFound(f"no folder of agent {agent[:40]!r}", hint=f"available agents: {agents}")
    return found


def _roots(app: App) -> list[str]:
    """Return the folders of other agents that files may be restored to, whether they still exist or not."""
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
        _print_spared(app, plan, named=named)
        if done is None:
            sessions = f"{many(len(plan.candidates), 'session')}, {size_of(plan.bytes)}"
            message = f"{sessions} would be moved to the trash. Do it: --apply"
            app.out.note(message if plan.candidates else "nothing to prune")
        elif done.deletions:
            sessions = f"{many(len(done.deletions), 'session')}, {size_of(done.bytes)}"
            times = f" -n {len(done.deletions)}" if len(done.deletions) > 1 else ""
            app.out.note(f"{sessions} moved to the trash. Undo: {app.command} undo{times}")
        else:
            app.out.note("nothing was pruned")
        if done is not None:
            for path, why in done.refused:
                app.out.note(f"skipped: {path}: {why}")
    if done is not None and done.failure is not None:
        raise done.failure
    return 0 if plan.candidates else 1


def _print_spared(app: App, plan: PrunePlan, *, named: bool) -> None:
    reasons: dict[str, int] = {}
    for item in plan.spared:
        reasons[item.why] = reasons.get(item.why, 0) + 1
    if reasons:
        counts = ", ".join(f"{count} {_SPARED.get(why, why)}" for why, count in reasons.items())
        app.out.note(f"skipped: {counts}{_RECENT if named and 'recent' in reasons else ''}")
    if not plan.sees_open_files:
        app.out.note("cannot detect which files are open; only locked ones are skipped")


def _sweep(app: App, apply: bool) -> int:
    plan = plan_blob_sweep(app.store)
    done = apply_blob_sweep(app.store, plan) if apply else None
    if app.json:
        items = ({"hash": orphan.hash, "size": orphan.size} for orphan in plan.orphans)
        token = done.deletion.token if done is not None and done.deletion is not None else None
        app.out.document("prune.blobs/1", items, bytes=plan.bytes, recent=plan.recent, applied=apply, token=token)
        return 0 if plan.orphans else 1
    app.out.note(
        f"{many(len(plan.orphans), 'unreferenced blob')}, {size_of(plan.bytes)}; {plan.recent:,} more too recent"
    )
    if done is not None and done.deletion is not None:
        app.out.note(f"moved to the trash. Undo: {app.command} undo")
    elif plan.orphans:
        app.out.note("Move them to the trash: --apply")
    return 0 if plan.orphans else 1


def _sweep_files(app: App, plan: FilePlan, what: str, apply: bool) -> int:
    done = apply_file_plan(app.store, plan, f"{what}s") if apply else None
    token = done.deletion.token if done is not None and done.deletion is not None else None
    if app.json:
        items = ({"path": item.path, "size": item.size, "why": item.why} for item in plan.items)
        app.out.document("prune.files/1", items, bytes=plan.bytes, stay=plan.stay, applied=apply, token=token)
        return 0 if plan.items else 1
    app.out.table(
        [Column("size", right=True), Column("why"), Column("path", wide=True)],
        (
            [Cell(size_of(item.size), value=str(item.size)), Cell(item.why), Cell(app.tilde(item.path))]
            for item in plan.items
        ),
    )
    files = f"{many(len(plan.items), what)}, {size_of(plan.bytes)}"
    if not plan.items:
        app.out.note("nothing to prune")
    elif done is None:
        app.out.note(f"{files} would be moved to the trash. Do it: --apply")
    elif token is not None:
        app.out.note(f"{files} moved to the trash. Undo: {app.command} undo")
    for path, why in () if done is None else done.refused:
        app.out.note(f"skipped: {app.tilde(path)}: {why}")
    return 0 if plan.items else 1


@verb(
    "sessile trash                            list the trash",
    "sessile trash restore TOKEN              restore a deletion",
    "sessile trash empty --older-than 30d     show what would be deleted permanently; then --apply",
    name="trash",
)
@click.argument("action", type=click.Choice(["list", "restore", "empty"]), default="list")
@click.argument("token", required=False)
@click.option("--older-than", metavar="SPAN", help="Only deletions older than this: 30d …")
@click.option("--apply", is_flag=True, help="Delete permanently; otherwise only show.")
def trash_verb(app: App, action: str, token: str | None, older_than: str | None, apply: bool) -> int:
    """List the trash, restore a deletion, or empty the trash. It is never emptied automatically."""
    if action == "restore":
        return _restore(app, token)
    if action == "empty":
        span = None if older_than is None else parse_span(older_than) / 1000
        plan = plan_empty_trash(app.store, span)
        done = empty_trash(app.store, plan, confirm=True) if apply else None
        _print_trash(app, plan.items, applied=apply)
        if done is None:
            if plan.items and not app.json:
                deletions = f"{many(len(plan.items), 'deletion')}, {size_of(plan.bytes)}"
                app.out.note(f"{deletions} would be deleted permanently. Do it: --apply")
        elif plan.items:
            app.out.note(f"{size_of(done.bytes)} deleted permanently")
            if done.failure is not None:
                raise done.failure
        return 0 if plan.items else 1
    items = trash_contents(app.store)
    _print_trash(app, items, applied=False)
    return 0 if items else 1


def _restore(app: App, token: str | None) -> int:
    if token is None:
        raise Invalid(
            "a token is required", hint="run `sessile trash` for tokens, or `sessile undo` for the last deletion"
        )
    tokens = [item.token for item in trash_contents(app.store) if token in item.token]
    if not tokens:
        raise NotFound(f"deletion not found: {token[:40]!r}", hint="run `sessile trash` for tokens")
    if len(tokens) > 1:
        message = f"deletion {token[:40]!r} is ambiguous ({len(tokens)})"
        raise Ambiguous(message, hint="pass more of the token", candidates=[{"id": each} for each in tokens])
    return _print_restored(app, [app.store.undo(tokens[0], roots=_roots(app))])


def _print_restored(app: App, deletions: Iterable[Deletion]) -> int:
    if app.json:
        # All at once: an error must not leave half a document.
        app.out.document("undo/1", [{"token": each.token, "paths": each.paths} for each in deletions])
        return 0
    for deletion in deletions:
        for path in deletion.paths:
            app.out.line(path)
    app.out.note("restored")
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
                Cell(item.paths[0] if item.paths else "(left over from an interrupted deletion)"),
            ]
            for item in items
        ),
    )
    if not items:
        app.out.note("the trash is empty")


@verb("sessile undo", "sessile undo -n 3", "sessile trash restore TOKEN   for an earlier one", name="undo")
@click.option("-n", "--number", type=click.IntRange(1), default=1, help="Number of deletions to undo (1).")
def undo_verb(app: App, number: int) -> int:
    """Undo the last deletion, whichever verb made it. Each pruned session is one deletion."""
    return _print_restored(app, _undo(app, number))


def _undo(app: App, number: int) -> Iterator[Deletion]:
    """Undo up to `number` deletions and yield them."""
    for count in range(number):
        try:
            yield undo_last(app.store, roots=_roots(app))
        except NotFound:
            if not count:
                raise
            app.out.note(f"only {many(count, 'deletion')} undone: the trash is empty")
            return


@verb(
    "sessile erase 6513          show what would be erased, and ask",
    "sessile erase 6513 --yes    do not ask",
    name="erase",
)
@click.argument("session", type=SESSION)
@click.option("-y", "--yes", is_flag=True, help="Erase without asking.")
def erase_verb(app: App, session: str, yes: bool) -> int:
    """Erase a session of your store for good: nothing can restore it.

    Its journal, drafts and artifacts are removed, copies that were kept when it was changed or deleted, blobs that nothing
    else uses, its prompts in the history, and what caches and the gateway know about it. A note without content stays.
    """
    path = _erasable(app, session)
    plan = app.library.erase(path)
    if not app.json:
        _print_erasure(app, plan)
    if app.json and not yes:
        _document_erasure(app, plan)
        return 0
    if not yes:
        if not app.out.is_terminal or not sys.stdin.isatty():
            hint = "check the plan, then pass --yes"
            raise Refused("nothing was erased: it was not confirmed", path=plan.path, hint=hint)
        if not click.confirm(f"Erase {many(len(plan.parts), 'file')} for good?", default=False, err=True):
            app.out.note("nothing was erased")
            return 1
    done = app.library.erase(path, confirm=True)
    if app.json:
        _document_erasure(app, done)
    else:
        app.out.note(f"erased: {many(len(done.parts), 'file')}, {size_of(done.bytes)}")
    return 0


def _erasable(app: App, session: str) -> str:
    """Return the path of a session, or its id if it is in the trash."""
    (address,) = addresses((session,))
    try:
        return located(app, address)
    except SessionNotFound:
        deleted = {
            path for item in trash_contents(app.store) for path in item.paths if address.session in stem_of(path)
        }
        if len(deleted) != 1:
            raise
        return deleted.pop()


def _document_erasure(app: App, plan: Erasure) -> None:
    items = (part._asdict() for part in plan.parts)
    about = {"id": plan.session_id, "path": plan.path, "bytes": plan.bytes, "prompts": plan.prompts}
    app.out.document("erase/1", items, **about, shared_blobs=plan.shared_blobs, forks=plan.forks, erased=plan.done)


def _print_erasure(app: App, plan: Erasure) -> None:
    app.out.table(
        [Column("size", right=True), Column("what"), Column("path", wide=True)],
        (
            [Cell(size_of(part.bytes), value=str(part.bytes)), Cell(part.what), Cell(app.tilde(part.path))]
            for part in plan.parts
        ),
    )
    if plan.prompts:
        app.out.note(f"{many(plan.prompts, 'prompt')} in the history")
    if plan.shared_blobs:
        app.out.note(f"{many(plan.shared_blobs, 'blob')} will stay: other sessions use them")
    for fork in plan.forks:
        app.out.note(f"a fork will stay, with copies of its text: {visible_line(app.tilde(fork))}")
    app.out.note(f"{size_of(plan.bytes)} in all. This cannot be undone.")


# -- keep

_HIDE = ("sub_agent",)  # sub-agents are copied with their session


@verb(
    "sessile keep                 copy sessions that would be deleted within 7 days",
    "sessile keep --within 14d    look further ahead",
    "sessile keep --all           all sessions of agents that delete theirs",
    "sessile keep 0f4e webhook    these sessions, of any agent",
    name="keep",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--within", metavar="SPAN", help="Sessions that would be deleted within this time: 14d, 2w … (7d).")
@click.option("--all", "everything", is_flag=True, help="All sessions of agents that delete theirs.")
def keep_verb(app: App, sessions: tuple[str, ...], within: str | None, everything: bool) -> int:
    """Copy sessions that their agent is about to delete into your store, byte for byte, with their companion files.

    Claude Code deletes sessions that were not changed for 30 days, or for the time in its settings. Originals are only
    read. Once the original is gone, the copy is listed, shown, searched and resumed like any session.
    """
    if bool(sessions) + (within is not None) + everything > 1:
        raise Invalid("sessions, --within and --all exclude each other", hint="pass one of them")
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
        _print_kept(app, kept, failed)
    return failed[0].exit_code if failed else 0


def _due(app: App, days: float | None) -> dict[str, int | None]:
    """Return the sessions that their agents would delete within `days`, or ever, with their deadlines."""
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up(progress=progress)
    app.say_notices()
    found = expiring(app.library, now=app.store.now(), within_days=days, hide=_HIDE, follow=os.path.realpath)
    for outlook in found if days is not None else ():
        say_problem(app, outlook)
    return {session.path: session.deadline for outlook in found for session in outlook.sessions}


def _print_kept(app: App, kept: list[Kept], failed: list[SessileError]) -> None:
    for each in kept:
        for path in each.written:
            app.out.line(path)
        for path in each.aside:
            app.out.note(f"the original changed since its last copy, which is now {path}")
        for path in each.left_out:
            app.out.note(f"not copied (neither a file nor a folder): {path}")
    for error in failed:
        app.out.fail(error)
    new = [each for each in kept if each.written]
    if new:
        size = size_of(sum(each.bytes for each in new))
        app.out.note(f"kept {many(len(new), 'session')}, {size}, in {app.tilde(app.store.layout.kept)}")
    elif app.out.is_terminal and not failed:
        app.out.note("nothing to keep: all copies are up to date")


def _described(app: App, kept: Kept, deadline: int | None) -> dict[str, Any]:
    """Return the result for a session as JSON members."""
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
    """Add ids to the items; the id of a file outside of all sources is unknown."""
    rows = app.library.list(Filter(hide=())).rows if items else []
    ids = {row.path: row.id for row in rows}
    return ({"id": ids.get(item["path"]), **item} for item in items)
