"""Operations of the page that change a session: rename, label, tag, branch, pin and fork, like the commands.

Rules: only native sessions are written, and only while no turn runs in them. Sessions of other agents are read-only,
and can be forked into native ones. Pins are stored in the own store and forks are new sessions, so both work for any
session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from sessile.errors import Conflict, Invalid, InvalidQuery
from sessile.gateway.events import Event
from sessile.gateway.http.wire import RequestModel, ResponseModel, Routes
from sessile.gateway.pages.views import EntryName, EntryNumber, SessionName, entry_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessile.gateway.pages.views import View
    from sessile.gateway.service import Gateway
    from sessile.session import Session

routes = Routes()

TitleText = Annotated[str, Meta(max_length=1_000)]


class NotOurs(Conflict):
    """The session belongs to another agent."""


class RenameBody(RequestModel, frozen=True):
    """A session, and its new title."""

    id: SessionName
    title: TitleText


class LabelBody(RequestModel, frozen=True):
    """An entry, by its number or id, and its label. Without `label` the label is removed."""

    id: SessionName
    number: EntryNumber | None = None
    entry: EntryName | None = None
    label: TitleText | None = None


class PinBody(RequestModel, frozen=True):
    """A session, and whether it is pinned."""

    id: SessionName
    pinned: bool = True


class TagBody(RequestModel, frozen=True):
    """A session, and its tag. Without `tag` the tag is removed."""

    id: SessionName
    tag: TitleText | None = None


class BranchBody(RequestModel, frozen=True):
    """The entry that becomes the leaf, by its number or id, and a summary of the branch that is left."""

    id: SessionName
    number: EntryNumber | None = None
    entry: EntryName | None = None
    summary: Annotated[str, Meta(max_length=100_000)] | None = None


class ForkOffBody(RequestModel, frozen=True):
    """The session to copy, or the path to one of its entries, and the project of the copy."""

    id: SessionName
    number: EntryNumber | None = None
    entry: EntryName | None = None
    cwd: Annotated[str, Meta(max_length=4_096, pattern="^/")] | None = None


class Changed(ResponseModel, frozen=True):
    """The changed session. `from` is the session that it was forked from."""

    id: str
    title: str | None
    tag: str | None
    leaf: str | None
    pinned: bool
    source: str | None = msgspec.field(name="from", default=None)


# -- native sessions


@routes.post("/v1/view/session/rename", body=RenameBody, answers={200: Changed}, problems=(404, 409))
async def rename_session(gateway: Gateway, body: RenameBody) -> Changed:
    """Rename a session."""

    def rename(session: Session, entry: str | None) -> None:
        if not session.set_session_name(body.title):
            raise Invalid("title must contain a visible character", hint="pass a title")

    return await _change(gateway, body.id, rename)


@routes.post("/v1/view/session/label", body=LabelBody, answers={200: Changed}, problems=(404, 409))
async def label_entry(gateway: Gateway, body: LabelBody) -> Changed:
    """Label an entry, or remove its label."""

    def label(session: Session, entry: str | None) -> None:
        session.append_label_change(_required(entry), body.label or None)

    return await _change(gateway, body.id, label, body)


@routes.post("/v1/view/session/tag", body=TagBody, answers={200: Changed}, problems=(404, 409))
async def tag_session(gateway: Gateway, body: TagBody) -> Changed:
    """Tag a session, or remove its tag."""

    def tag(session: Session, entry: str | None) -> None:
        session.set_tag(body.tag or None)

    return await _change(gateway, body.id, tag)


@routes.post("/v1/view/session/branch", body=BranchBody, answers={200: Changed}, problems=(404, 409))
async def branch_session(gateway: Gateway, body: BranchBody) -> Changed:
    """Move the leaf of a session to an earlier entry. Nothing is removed."""

    def branch(session: Session, entry: str | None) -> None:
        if body.summary is None:
            session.branch(_required(entry), durable=True)
        else:
            session.branch_with_summary(_required(entry), body.summary)

    return await _change(gateway, body.id, branch, body)


async def _change(
    gateway: Gateway,
    name: str,
    change: Callable[[Session, str | None], None],
    at: LabelBody | BranchBody | None = None,
) -> Changed:
    """Change a native session while no turn runs in it, and notify clients."""
    session_id, path, entry = await gateway.call(_found, gateway, name, at)

    def work() -> Changed:
        with gateway.opened(path) as session:
            change(session, entry)
            return _changed(gateway, session)

    async with gateway.turns.alone(session_id):
        changed = await gateway.call(work)
    gateway.shelf.touched()
    gateway.hub.publish(Event(None, session_id, "entry", {}))
    notice: dict[str, Any] = {"notice": "changed", "title": changed.title, "leaf": changed.leaf}
    gateway.hub.publish(Event(None, session_id, "notice", notice))
    return changed


def _found(gateway: Gateway, name: str, at: LabelBody | BranchBody | None) -> tuple[str, str, str | None]:
    """Return id, file and entry of a writable session."""
    with gateway.views.opened(name) as view:
        if not view.is_own:
            problem = f"sessions of {view.agent} are read-only"
            raise NotOurs(problem, path=view.path, hint="fork the session, and change the copy")
        return view.session.id, view.path, None if at is None else _entry(view, at)


def _entry(view: View, at: LabelBody | BranchBody | ForkOffBody) -> str | None:
    if at.number is not None and at.entry is not None:
        raise InvalidQuery("number and entry exclude each other", hint="pass one of them")
    if at.number is not None:
        return view.rows[view.check(at.number)].id
    return None if at.entry is None else entry_named(view, at.entry)


def _required(entry: str | None) -> str:
    if entry is None:
        raise Invalid("number or entry is required", hint="pass the number or the id of an entry")
    return entry


# -- any session


@routes.post("/v1/view/session/pin", body=PinBody, answers={200: Changed}, problems=(404, 409))
async def pin_session(gateway: Gateway, body: PinBody) -> Changed:
    """Pin a session, so that it is not cleaned up, or unpin it."""
    return await gateway.call(_pin, gateway, body)


def _pin(gateway: Gateway, body: PinBody) -> Changed:
    with gateway.views.opened(body.id) as view:
        with gateway.shelf.asked() as library:
            if body.pinned:
                library.pins.add(view.session.id)
            else:
                library.pins.remove(view.session.id)
        return _changed(gateway, view.session)


@routes.post("/v1/view/session/fork", body=ForkOffBody, answers={200: Changed}, problems=(404, 409))
async def fork_session(gateway: Gateway, body: ForkOffBody) -> Changed:
    """Fork a session, or the path to one of its entries, into a new native session."""
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
            return _changed(gateway, fork, source.id)


def _changed(gateway: Gateway, session: Session, source: str | None = None) -> Changed:
    with gateway.shelf.asked() as library:
        pinned = session.id in library.pins.names()
    return Changed(
        id=session.id, title=session.title, tag=session.tag, leaf=session.leaf_id, pinned=pinned, source=source
    )
