"""Verbs that change a session: branch, fork, label, rename, tag, pin, move.

Each reports the file that it wrote. Files of other agents are written only with --in-place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from sessile.cli.arguments import SESSION, damage, in_place_option, opened, writable
from sessile.cli.command import App, verb
from sessile.errors import Invalid
from sessile.session import Session


@verb(
    "sessile branch webhook#9f31c2a0      the next message starts a branch at this entry",
    "sessile branch webhook@tests-green   at a label",
    name="branch",
)
@click.argument("entry", metavar="SESSION#ENTRY", type=SESSION)
@click.option("--summary", metavar="TEXT", help="Summary of the abandoned branch.")
def branch_verb(app: App, entry: str, summary: str | None) -> int:
    """Move the leaf of a session to an earlier entry. Nothing is removed: the abandoned branch stays in the tree."""
    with writable(app, entry, in_place=None) as (session, at, leaf):
        target = at or leaf
        if target is None:
            raise Invalid(
                "an entry is required", hint="sessile branch SESSION#ENTRY; run `sessile tree SESSION` for ids"
            )
        if summary is None:
            session.branch(target, durable=True)
        else:
            session.branch_with_summary(target, summary)
        return _done(app, "branch", session, f"the leaf is at {session.leaf_id}", leaf=session.leaf_id)


@verb(
    "sessile fork webhook             a copy with all branches, in your store",
    "sessile fork webhook#9f31c2a0    only the path to this entry",
    "sessile fork @last --cwd ~/app   for another project",
    name="fork",
)
@click.argument("session", type=SESSION)
@click.option("--cwd", metavar="FOLDER", help="Project of the new session; default: the same project.")
def fork_verb(app: App, session: str, cwd: str | None) -> int:
    """Create a session from another one, or from one of its entries. The original is not changed."""
    folder = None if cwd is None else os.path.abspath(os.path.join(app.here, os.path.expanduser(cwd)))
    with opened(app, session) as named:
        source = named.session
        if named.at is None:
            fork = app.store.fork_from(source.path, folder or source.cwd)
        else:
            fork = source.create_branched_session(named.at)
        with fork:
            if folder is not None and named.at is not None:
                fork.move_to(folder)
            _done(app, "fork", fork, f"forked as {fork.id}", source=source.path)
        return damage(app, source)  # unreadable parts are not in the fork


@verb(
    "sessile label webhook#9f31c2a0 tests-green",
    "sessile label webhook#9f31c2a0 --clear",
    "sessile show webhook@tests-green     use the label",
    name="label",
)
@click.argument("entry", metavar="SESSION#ENTRY", type=SESSION)
@click.argument("text", required=False)
@click.option("--clear", is_flag=True, help="Remove the label.")
@in_place_option
def label_verb(app: App, entry: str, text: str | None, clear: bool, in_place: bool) -> int:
    """Label an entry."""
    if clear == bool(text):
        raise Invalid("pass either a label or --clear", hint="sessile label SESSION#ENTRY TEXT")
    with writable(app, entry, in_place=in_place) as (session, at, leaf):
        target = at or leaf
        if target is None:
            raise Invalid(
                "an entry is required", hint="sessile label SESSION#ENTRY TEXT; run `sessile tree SESSION` for ids"
            )
        session.append_label_change(target, text)
        return _done(app, "label", session, f"labelled {target} {text!r}" if text else f"removed the label of {target}")


@verb('sessile rename 6513 "Webhook retries"', "sessile rename @last Webhook retries", name="rename")
@click.argument("session", type=SESSION)
@click.argument("title", nargs=-1, required=True)
@in_place_option
def rename_verb(app: App, session: str, title: tuple[str, ...], in_place: bool) -> int:
    """Rename a session."""
    with writable(app, session, in_place=in_place) as (found, _, _):
        if not found.set_session_name(" ".join(title)):
            raise Invalid("the title has no visible characters", hint="pass a title")
        return _done(app, "rename", found, f"renamed to {found.title!r}", title=found.title)


@verb(
    "sessile tag webhook payments      tag it",
    "sessile tag webhook --clear",
    "sessile tag webhook               show its tag",
    name="tag",
)
@click.argument("session", type=SESSION)
@click.argument("text", required=False)
@click.option("--clear", is_flag=True, help="Remove the tag.")
@in_place_option
def tag_verb(app: App, session: str, text: str | None, clear: bool, in_place: bool) -> int:
    """Tag a session, or show its tag. A session has at most one; Claude Code shows it too."""
    if clear and text is not None:
        raise Invalid("pass either a tag or --clear", hint="sessile tag SESSION TEXT")
    if text is None and not clear:
        with opened(app, session) as named:
            tag = named.session.tag
            if app.json:
                app.out.document("tag/1", id=named.session.id, path=named.session.path, tag=tag)
            elif tag is not None:
                app.out.line(tag)
            else:
                app.out.note(f"no tag ({named.session.path})")
            return 0 if tag is not None else 1
    with writable(app, session, in_place=in_place) as (found, _, _):
        tag = found.set_tag(text)
        return _done(app, "tag", found, f"tagged {tag!r}" if tag else "removed the tag", tag=tag)


@verb("sessile pin webhook", "sessile pin webhook --remove", "sessile ls --pinned", name="pin")
@click.argument("sessions", type=SESSION, nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Unpin.")
def pin_verb(app: App, sessions: Sequence[str], remove: bool) -> int:
    """Protect sessions from cleanup. Pins are stored in your store, not in the session."""
    changed = 0
    for name in sessions:
        with opened(app, name) as named:
            session_id = named.session.id
            fresh = app.library.pins.remove(session_id) if remove else app.library.pins.add(session_id)
            changed += fresh
            done = "unpinned" if remove else "pinned"
            message = done if fresh else "not pinned" if remove else "already pinned"
            _done(app, "pin", named.session, f"{message}: {session_id}")
    return 0 if changed else 1


@verb("sessile move webhook ~/work/payments", "sessile move @last .", name="move")
@click.argument("session", type=SESSION)
@click.argument("folder")
@in_place_option
def move_verb(app: App, session: str, folder: str, in_place: bool) -> int:
    """Move a session, with its artifacts, to another project."""
    cwd = os.path.abspath(os.path.join(app.here, os.path.expanduser(folder)))
    with writable(app, session, in_place=in_place) as (found, _, _):
        found.move_to(cwd)
        return _done(app, "move", found, f"moved to {cwd}", cwd=cwd)


def _done(app: App, what: str, session: Session, message: str, **members: str | None) -> int:
    """Report a change: the id of the session on stdout, a message with its file on stderr."""
    if app.json:
        app.out.document(f"{what}/1", id=session.id, path=session.path, **members)
    else:
        app.out.line(session.id)
        app.out.note(f"{message} ({session.path})")
    return 0
