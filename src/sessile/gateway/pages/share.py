"""Sharing for the page: what an export would replace, the export itself, and pictures that are kept apart.

Rules: secrets are replaced unless somebody says otherwise, and never told. A file comes as a download, by a name that is safe
everywhere, and as no type that a browser would show. A picture is one of four kinds, by its first bytes and not by what anybody
says of it; what is none is refused.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from sessile.core.ids import sha256
from sessile.errors import BlobNotFound, NotFound, TooLarge, Unsupported
from sessile.export import Export, review_export, share_redactor, share_report
from sessile.gateway.http.streams import Download, disposition
from sessile.gateway.http.wire import Taken, Told, Whole
from sessile.gateway.pages.sessions import IdText, NameText, entry_named, several
from sessile.render.html import image_kind

if TYPE_CHECKING:
    from sessile.export import Reviewed
    from sessile.gateway.service import Gateway

FILE = "application/octet-stream"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
Binary = Annotated[str, Meta(extra_json_schema={"format": "binary"})]

_LARGEST = 64 * 1024 * 1024  # bytes of a picture
_PLACES = 20  # of a finding that are told


class NoPicture(Unsupported):
    """This is no picture of a kind that is shown."""

    status = 415


# -- the review


class ShareQuery(Taken, frozen=True):
    """Which session, all of it or the branch that ends at an entry; `personal` looks for addresses and the like, too."""

    id: IdText
    branch: NameText | None = None
    personal: bool = False


class PlaceTold(Told, frozen=True):
    """Where a finding stands: in an entry, or elsewhere in the session."""

    entry: str | None
    at: str


class FindingTold(Told, frozen=True):
    """What an export would replace; the secret itself is never told, only how it begins."""

    id: str
    rule: str
    count: int
    begins: str
    length: int
    excerpt: str | None
    places: tuple[PlaceTold, ...]


class ShareReview(Told, frozen=True):
    """All findings, how many images there are, and the report that a person may keep."""

    findings: tuple[FindingTold, ...]
    images: int
    report: dict[str, Any]


async def view_share(gateway: Gateway, query: ShareQuery) -> ShareReview:
    """See what an export of a session would replace."""
    return await gateway.call(_share, gateway, query)


def _share(gateway: Gateway, query: ShareQuery) -> ShareReview:
    with gateway.views.opened(query.id) as view:
        leaf = None if query.branch is None else entry_named(view, query.branch)
        redactor = share_redactor(personal=query.personal, home=_home())
        review = review_export(view.session, leaf=leaf, redactor=redactor)
        return ShareReview(
            findings=tuple(map(_finding, review.findings)),
            images=review.images,
            report=share_report(view.session.id, review.report),
        )


def _finding(found: Reviewed) -> FindingTold:
    return FindingTold(
        id=found.id,
        rule=found.rule,
        count=found.times,
        begins=found.begins,
        length=found.length,
        excerpt=found.excerpt,
        places=tuple(map(_place, found.places[:_PLACES])),
    )


def _place(where: str) -> PlaceTold:
    entry, _, at = where.partition("/")
    if entry.startswith("entry "):
        return PlaceTold(entry=entry.removeprefix("entry "), at=at)
    return PlaceTold(entry=None, at=where)


def _home() -> str:
    return os.path.expanduser("~")


# -- the file


class ExportQuery(Taken, frozen=True):
    """What leaves, in which form; `keep` are ids of findings that are not replaced."""

    id: IdText
    form: Literal["html", "md", "txt", "jsonl"] = "html"
    redact: Literal["auto", "off"] = "auto"
    keep: tuple[Annotated[str, Meta(max_length=10_000)], ...] = ()
    branch: NameText | None = None
    personal: bool = False
    images: bool = True


async def view_export(gateway: Gateway, query: ExportQuery) -> Download:
    """A session as a file for others to read."""
    return await gateway.call(_export, gateway, query)


def _export(gateway: Gateway, query: ExportQuery) -> Download:
    with gateway.views.opened(query.id) as view:
        leaf = None if query.branch is None else entry_named(view, query.branch)
        path = view.path
    with ExitStack() as opened:
        # One of its own: it may take minutes, and others look at the same session meanwhile.
        session = opened.enter_context(gateway.store.open(path, readonly=True))
        redactor = None
        if query.redact == "auto":
            redactor = share_redactor(personal=query.personal, home=_home(), keep=several(query.keep))
        export = Export(session, leaf=leaf, redactor=redactor, images=query.images)
        title = session.title or ""
        title = title if redactor is None else redactor.redact(title)  # which may hold a secret, too
        headers = {"content-disposition": disposition(title or f"session-{session.id[:8]}", query.form)}
        return Download(gateway.call, export.written(query.form), opened.pop_all(), FILE, headers)


# -- pictures


class BlobQuery(Taken, frozen=True):
    """Which picture of which session."""

    id: IdText
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


async def view_blob(gateway: Gateway, query: BlobQuery) -> Whole:
    """A picture that an entry names."""
    return await gateway.call(_blob, gateway, query)


def _blob(gateway: Gateway, query: BlobQuery) -> Whole:
    data = _bytes_of(gateway, query)
    kind = image_kind(data[:32])
    if kind is None:
        raise NoPicture("this is no picture of a kind that is shown", hint="png, jpeg, gif and webp are")
    headers = {"content-disposition": disposition(query.digest[:16], kind, inline=True)}
    return Whole(200, data, f"image/{kind}", headers)


def _bytes_of(gateway: Gateway, query: BlobQuery) -> bytes:
    pieces, size = [], 0
    with gateway.views.opened(query.id) as view:
        try:
            for piece in view.session.blob_pieces(query.digest):
                pieces.append(piece)
                size += len(piece)
                if size > _LARGEST:
                    raise TooLarge("this picture is too large to be shown", hint="export the session")
        except NotFound as error:
            raise BlobNotFound(
                "this picture is not there any more", hint="sessile doctor says what is missing"
            ) from error
    data = b"".join(pieces)
    if sha256(data).hexdigest() != query.digest:
        raise BlobNotFound("this picture is not what it was", hint="sessile doctor says what is damaged")
    return data
