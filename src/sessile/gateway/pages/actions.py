"""What the page changes: name, label, pin, tag, branch and fork of a session, like the verbs of the command.

Rules: only sessions of one's own are written, and none in which a turn runs; those of other agents are only read, and can be
forked into one's own. A pin lies in one's own store, and a fork is a new session: both are for any session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from sessile.errors import Conflict, Invalid, InvalidQuery
from sessile.gateway.events import Event
from sessile.gateway.http.wire import Taken, Told
from sessile.gateway.pages.sessions import IdText, NameText, NumberOf, entry_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessile.gateway.pages.viewing import View
    from sessile.gateway.service import Gateway
    from sessile.session import Session

TitleText = Annotated[str, Meta(max_length=1_000)]


class NotOurs(Conflict):
    """The session belongs to another agent."""


class RenameBody(Taken, frozen=True):
    """The new title of a session."""

    id: IdText
    title: TitleText


class LabelBody(Taken, frozen=True):
    """The label of an entry, by its number or its id; without one it has none."""

    id: IdText
    number: NumberOf | None = None
    entry: NameText | None = None
    label: TitleText | None = None


class PinBody(Taken, frozen=True):
    """Whether a session is kept from being cleaned up."""

    id: IdText
    pinned: bool = True


class TagBody(Taken, frozen=True):
    """The tag of a session; without one it has none."""

    id: IdText
    tag: TitleText | None = None


class BranchBody(Taken, frozen=True):
    """The entry at which the next one begins a branch, and what was learned on the branch that is left."""

    id: IdText
    number: NumberOf | None = None
    entry: NameText | None = None
    summary: Annotated[str, Meta(max_length=100_000)] | None = None


class ForkOffBody(Taken, frozen=True):
    """The session that is copied: all of it, or the path to an entry; and the project of the copy."""

    id: IdText
    number: NumberOf | None = None
    entry: NameText | None = None
    cwd: Annotated[str, Meta(max_length=4_096, pattern="^/")] | None = None


class Changed(Told, frozen=True):
    """A session as it is now; `from` is the one that it was forked from."""

    id: str
    title: str | None
    tag: str | None
    leaf: str | None
    pinned: bool
    source: str | None = msgspec.field(name="from", default=None)


# -- one's own sessions


async def rename_session(gateway: Gateway, body: RenameBody) -> Changed:
    """Name a session."""

    def rename(session: Session, entry: str | None) -> None:
        if not session.set_session_name(body.title):
            raise Invalid("a name needs a visible character", hint="say what the session is about")

    return await _change(gateway, body.id, rename)


async def label_entry(gateway: Gateway, body: LabelBody) -> Changed:
    """Name an entry, or take its name away."""

    def label(session: Session, entry: str | None) -> None:
        session.append_label_change(_meant(entry), body.label or None)

    return await _change(gateway, body.id, label, body)


async def tag_session(gateway: Gateway, body: TagBody) -> Changed:
    """Tag a session, or take its tag away."""

    def tag(session: Session, entry: str | None) -> None:
        session.set_tag(body.tag or None)

    return await _change(gateway, body.id, tag)


async def branch_session(gateway: Gateway, body: BranchBody) -> Changed:
    """Move the leaf of a session to an earlier entry; nothing is removed."""

    def branch(session: Session, entry: str | None) -> None:
        if body.summary is None:
            session.branch(_meant(entry), durable=True)
        else:
            session.branch_with_summary(_meant(entry), body.summary)

    return await _change(gateway, body.id, branch, body)


async def _change(
    gateway: Gateway,
    name: str,
    change: Callable[[Session, str | None], None],
    at: LabelBody | BranchBody | None = None,
) -> Changed:
    """Change a session of one's own while no turn runs in it, and tell whoever looks at it."""
    session_id, path, entry = await gateway.call(_found, gateway, name, at)

    def work() -> Changed:
        with gateway.opened(path) as session:
            change(session, entry)
            return _told(gateway, session)

    async with gateway.turns.alone(session_id):
        changed = await gateway.call(work)
    gateway.shelf.touched()
    gateway.hub.publish(Event(None, session_id, "entry", {}))
    told: dict[str, Any] = {"notice": "changed", "title": changed.title, "leaf": changed.leaf}
    gateway.hub.publish(Event(None, session_id, "notice", told))
    return changed


def _found(gateway: Gateway, name: str, at: LabelBody | BranchBody | None) -> tuple[str, str, str | None]:
    """The id, the file and the entry of a session that may be written."""
    with gateway.views.opened(name) as view:
        if not view.is_own:
            told = f"this session belongs to {view.agent}, whose files are only read"
            raise NotOurs(told, path=view.path, hint="fork it: the copy is yours")
        return view.session.id, view.path, None if at is None else _entry(view, at)


def _entry(view: View, at: LabelBody | BranchBody | ForkOffBody) -> str | None:
    if at.number is not None and at.entry is not None:
        raise InvalidQuery("name an entry by its number or by its id", hint="just one of them")
    if at.number is not None:
        return view.rows[view.check(at.number)].id
    return None if at.entry is None else entry_named(view, at.entry)


def _meant(entry: str | None) -> str:
    if entry is None:
        raise Invalid("which entry?", hint="say its number, or its id as entry")
    return entry


# -- any session


async def pin_session(gateway: Gateway, body: PinBody) -> Changed:
    """Keep a session from being cleaned up, or do so no longer."""
    return await gateway.call(_pin, gateway, body)


def _pin(gateway: Gateway, body: PinBody) -> Changed:
    with gateway.views.opened(body.id) as view:
        with gateway.shelf.asked() as library:
            if body.pinned:
                library.pins.add(view.session.id)
            else:
                library.pins.remove(view.session.id)
        return _told(gateway, view.session)


async def fork_session(gateway: Gateway, body: ForkOffBody) -> Changed:
    """Begin a new session of one's own from another, or from an entry of it."""
    return await gateway.call(_fork, gateway, body)


def _fork(gateway: Gateway, body: ForkOffBody) -> Changed:
    with gateway.views.opened(body.id) as view:
        source, entry = view.session, _entry(view, body)
        if entry is None:
            fork = gateway.store.fork_from(source.path, body.cwd or source.cwd)
        else:
            fork = source.create_branched_session(entry)
        with fork:
            fork.publish()
            if body.cwd is not None and entry is not None:
                fork.move_to(body.cwd)
            gateway.shelf.touched()
            return _told(gateway, fork, source.id)


def _told(gateway: Gateway, session: Session, source: str | None = None) -> Changed:
    with gateway.shelf.asked() as library:
        pinned = session.id in library.pins.names()
    return Changed(
        id=session.id, title=session.title, tag=session.tag, leaf=session.leaf_id, pinned=pinned, source=source
    )
