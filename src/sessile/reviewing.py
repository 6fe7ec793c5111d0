"""The review of what an export would replace: each finding with what stands around it, for a person to decide about.

    redactor = share_redactor(personal=True, home="/home/ann", keep=["e-mail#1"])
    review = review_export(session, leaf=None, redactor=redactor)
    review.findings, review.images, share_report(session.id, review.report)

Rules: a secret is never told: what stands around it is told as it would leave, with every secret in it replaced. Findings are
named by rule and number, which are the same each time that the same session is gone through with the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.redact import Redaction, Redactor
from sessile.core.secrets_table import PERSONAL, SECRET
from sessile.exporting import Export

if TYPE_CHECKING:
    from sessile.view import SessionView

_PLACEHOLDER = "[REDACTED:{}]"
_ENTRY = "entry "  # how the report names one
_AROUND = 60  # characters on either side
_IMAGE = b'"image"'


class Reviewed(NamedTuple):
    """A finding: how it is named, how it begins, how often and where it stands, and what stands around the first place."""

    id: str
    rule: str
    begins: str
    length: int
    times: int
    excerpt: str | None
    places: tuple[str, ...]
    kept: bool


class Review(NamedTuple):
    """What an export would replace, the images that it would hold, and the report of it."""

    findings: list[Reviewed]
    images: int
    report: Sequence[Redaction]


def share_redactor(*, personal: bool = False, home: str | None = None, keep: Collection[str] = ()) -> Redactor:
    """What replaces secrets, and with `personal` addresses and the like; `keep` are names of findings, or placeholders."""
    kept = [name if name.startswith("[") else _PLACEHOLDER.format(name) for name in keep]
    known = {home: "home-folder"} if personal and home else {}
    return Redactor(groups=(SECRET, PERSONAL) if personal else (SECRET,), known=known, keep=kept)


def review_export(session: SessionView, *, leaf: str | None, redactor: Redactor) -> Review:
    """Go through what would leave of a session: all branches, or the path to `leaf`."""
    report = Export(session, leaf=leaf, redactor=redactor).report
    findings = [
        Reviewed(
            found.placeholder.removeprefix("[REDACTED:").removesuffix("]"),
            found.rule,
            found.hint,
            found.length,
            found.count,
            _excerpt(session, redactor, found),
            found.where,
            found.kept,
        )
        for found in report
    ]
    return Review(findings, _count_images(session, leaf), report)


def share_report(session_id: str, report: Sequence[Redaction]) -> dict[str, Any]:
    """What was replaced, for who shares it; never the secrets."""
    return {"schema": "sessile.share-report/1", "session": session_id, "items": report}


def _excerpt(session: SessionView, redactor: Redactor, found: Redaction) -> str | None:
    """The text around the first place of a finding, redacted; `None` where it stands in no text."""
    for where in found.where:
        for text in _texts(redactor.redact_value(_at(session, where), where)):
            start = text.find(found.placeholder)
            if start >= 0:
                end = start + len(found.placeholder)
                before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
                lead, trail = "…" if start > _AROUND else "", "…" if len(text) > end + _AROUND else ""
                return " ".join(f"{lead}{before}{found.placeholder}{after}{trail}".split())
    return None


def _at(session: SessionView, where: str) -> Any:
    """What a place of the report is in: an entry, the labels or the header."""
    if where.startswith(_ENTRY):
        entry_id = where[len(_ENTRY) :].partition("/")[0]
        return None if session.get_entry(entry_id) is None else session.get_full_entry(entry_id)
    return dict(session.get_labels()) if where.startswith("labels") else session.header


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value."""
    waiting: list[Any] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += reversed(value.values())
        elif isinstance(value, list | tuple):
            waiting += reversed(value)


def _count_images(session: SessionView, leaf: str | None) -> int:
    entries = session.iter_lines() if leaf is None else session.iter_branch(leaf)
    return sum(_images_in(entry.body) for entry in entries if _IMAGE in entry.raw)


def _images_in(value: Any) -> int:
    found, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found += value.get("type") == "image"
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found
