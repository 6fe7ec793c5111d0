"""Operations of the page for sharing: review what an export would redact, export a session, and show its images.

Rules: secrets are redacted unless the request says otherwise, and are never returned. An export is a download with a
safe file name, of a type that browsers do not display. Images must be of one of four types, detected by their first
bytes; anything else is rejected.
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
from sessile.gateway.http.wire import RequestModel, Response, ResponseModel, Routes
from sessile.gateway.pages.library_view import several
from sessile.gateway.pages.views import EntryName, SessionName, entry_named
from sessile.render.html import image_kind

if TYPE_CHECKING:
    from sessile.export import Reviewed
    from sessile.gateway.service import Gateway

routes = Routes()

FILE = "application/octet-stream"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
Binary = Annotated[str, Meta(extra_json_schema={"format": "binary"})]

_MAX_BYTES = 64 * 1024 * 1024  # bytes of an image
_MAX_PLACES = 20  # places returned for a finding


class NoPicture(Unsupported):
    """The image type is not supported."""

    status = 415


# -- review


class ShareQuery(RequestModel, frozen=True):
    """The session, or the branch that ends at an entry. `personal` also looks for personal data, such as addresses."""

    id: SessionName
    branch: EntryName | None = None
    personal: bool = False


class PlaceTold(ResponseModel, frozen=True):
    """The place of a finding: in an entry, or elsewhere in the session."""

    entry: str | None
    at: str


class FindingTold(ResponseModel, frozen=True):
    """Text that an export would redact. No part of a secret is returned."""

    id: str
    rule: str
    count: int
    length: int
    excerpt: str | None
    places: tuple[PlaceTold, ...]


class ShareReview(ResponseModel, frozen=True):
    """All findings, the number of images, and the report."""

    findings: tuple[FindingTold, ...]
    images: int
    report: dict[str, Any]


@routes.get("/v1/view/share", query=ShareQuery, answers={200: ShareReview}, problems=(404, 409, 413))
async def view_share(gateway: Gateway, query: ShareQuery) -> ShareReview:
    """Review what an export of a session would redact."""
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
        length=found.length,
        excerpt=found.excerpt,
        places=tuple(map(_place, found.places[:_MAX_PLACES])),
    )


def _place(where: str) -> PlaceTold:
    entry, _, at = where.partition("/")
    if entry.startswith("entry "):
        return PlaceTold(entry=entry.removeprefix("entry "), at=at)
    return PlaceTold(entry=None, at=where)


def _home() -> str:
    return os.path.expanduser("~")


# -- export


class ExportQuery(RequestModel, frozen=True):
    """The session or branch to export, the format, and what to redact. `keep` are ids of findings that are not redacted."""

    id: SessionName
    form: Literal["html", "md", "txt", "jsonl"] = "html"
    redact: Literal["auto", "off"] = "auto"
    keep: tuple[Annotated[str, Meta(max_length=10_000)], ...] = ()
    branch: EntryName | None = None
    personal: bool = False
    images: bool = True


@routes.get("/v1/view/export", query=ExportQuery, answers={200: Binary}, problems=(404, 409, 413), media_type=FILE)
async def view_export(gateway: Gateway, query: ExportQuery) -> Download:
    """Export a session as a file."""
    return await gateway.call(_export, gateway, query)


def _export(gateway: Gateway, query: ExportQuery) -> Download:
    with gateway.views.opened(query.id) as view:
        leaf = None if query.branch is None else entry_named(view, query.branch)
        path = view.path
    with ExitStack() as opened:
        # Opened separately: an export may take minutes, and others read the same session.
        session = opened.enter_context(gateway.store.open(path, readonly=True))
        redactor = None
        if query.redact == "auto":
            redactor = share_redactor(personal=query.personal, home=_home(), keep=several(query.keep))
        export = Export(session, leaf=leaf, redactor=redactor, images=query.images)
        title = session.title or ""
        title = title if redactor is None else redactor.redact(title)  # a title may contain a secret, too
        headers = {"content-disposition": disposition(title or f"session-{session.id[:8]}", query.form)}
        return Download(gateway.call, export.written(query.form), opened.pop_all(), FILE, headers)


# -- images


class BlobQuery(RequestModel, frozen=True):
    """The session, and the digest of the image."""

    id: SessionName
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@routes.get(
    "/v1/view/blob", query=BlobQuery, answers={200: Binary}, problems=(404, 409, 413, 415), media_types=PICTURES
)
async def view_blob(gateway: Gateway, query: BlobQuery) -> Response:
    """Return an image of an entry."""
    return await gateway.call(_blob, gateway, query)


def _blob(gateway: Gateway, query: BlobQuery) -> Response:
    data = _bytes_of(gateway, query)
    kind = image_kind(data[:32])
    if kind is None:
        raise NoPicture("unsupported image type", hint="png, jpeg, gif and webp are supported")
    headers = {"content-disposition": disposition(query.digest[:16], kind, inline=True)}
    return Response(200, data, f"image/{kind}", headers)


def _bytes_of(gateway: Gateway, query: BlobQuery) -> bytes:
    pieces, size = [], 0
    with gateway.views.opened(query.id) as view:
        try:
            for piece in view.session.blob_pieces(query.digest):
                pieces.append(piece)
                size += len(piece)
                if size > _MAX_BYTES:
                    raise TooLarge("the image is too large", hint="export the session")
        except NotFound as error:
            raise BlobNotFound("the image no longer exists", hint="run `sessile doctor`") from error
    data = b"".join(pieces)
    if sha256(data).hexdigest() != query.digest:
        raise BlobNotFound("the image is damaged", hint="run `sessile doctor`")
    return data
