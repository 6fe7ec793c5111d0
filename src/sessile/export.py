"""Sessions for sharing: as HTML, Markdown, text or a session file, with secrets replaced.

    export = Export(session, redactor=Redactor())
    export.report                   what was replaced, where and how often
    export.written("html")          the file, in pieces

    review = review_export(session, leaf=None, redactor=share_redactor(personal=True))
    review.findings                 what an export would replace, for a person to decide about

Rules:

- The redactor reads everything once before the first byte is written, so a secret that is recognized late in a session is
  replaced everywhere. Title, project, labels and header are redacted like the entries.
- A line that does not change is written byte for byte. Without a redactor nothing changes.
- Entries are read as they are needed, so large sessions need little memory.
- A review shows no part of a secret: the text around it is shown with every secret replaced. The names of findings (rule and
  number) are the same whenever the same session is reviewed with the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.codec import decode, encode_plain
from sessile.core.entries import Entry
from sessile.core.kinds import MARKERS
from sessile.core.redact import Redaction, Redactor
from sessile.core.secret_shapes import PERSONAL, SECRET
from sessile.core.text import parse_timestamp
from sessile.errors import Refused, Unsupported, storage_failures
from sessile.render.shown import Depth, Gap, Transcript
from sessile.session import SessionView
from sessile.storage.atomic import read_all
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import files_below

if TYPE_CHECKING:
    from sessile.render.markdown import Keep


Body = Mapping[str, Any]

OMITTED = "[image omitted]"
_IMAGE = b'"image"'
_PASSES = 2  # of the redactor: one to learn what is secret, one to count
_PLACEHOLDER = "[REDACTED:{}]"
_ENTRY = "entry "  # the prefix of an entry's id in a report
_AROUND = 60  # characters of an excerpt before and after a finding


class Passed(NamedTuple):
    """The progress of an export: entries read, and entries to read in total."""

    done: int
    total: int


class Export:
    """A session, or one path of it, prepared for sharing.

    Iterating yields the entries that are exported, as dicts, without leaf markers.

    Args:
        session: The session to export.
        leaf: Export only the path to this entry; all branches if `None`.
        redactor: Replaces secrets; `None` replaces nothing.
        images: Whether to include images; otherwise a short text takes their place.
        progress: Called for every entry that is read.

    Attributes:
        report (list[Redaction]): What the redactor replaces in this session, and where.

    Example:
        ```python
        export = Export(session, redactor=Redactor())
        with open("session.html", "wb") as file:
            file.writelines(export.written("html"))
        ```
    """

    def __init__(
        self,
        session: SessionView,
        *,
        leaf: str | None = None,
        redactor: Redactor | None = None,
        images: bool = True,
        progress: Callable[[Passed], None] | None = None,
    ) -> None:
        self.report: list[Redaction] = []
        self._session = session
        self._leaf = leaf
        self._images = images
        self._markers: dict[str, str | None] = {}
        self._redactor = redactor
        self._progress = progress
        self._done = self._total = 0
        if redactor is not None:
            self._learn(redactor)

    def _learn(self, redactor: Redactor) -> None:
        """Read everything: first to learn what is secret, then to count it."""
        self._expect(_PASSES)
        for number in range(_PASSES):
            if number and not redactor.report:
                break
            before = {found.placeholder: found.count for found in redactor.report}
            self._redacted(dict(self._session.header), "header")
            self._redacted(dict(self._session.get_labels()), "labels")
            for entry in self._entries():
                self._redacted(self._body(entry), f"entry {entry.id}")
        counts = ((found, found.count - before.get(found.placeholder, 0)) for found in redactor.report)
        self.report = [found.counted(count) for found, count in counts if count]

    # -- entries

    def __iter__(self) -> Iterator[Body]:
        """Yield the exported entries in file order, without leaf markers."""
        for entry in self._entries():
            if _is_marker(entry):
                self._markers[entry.id] = self._parent_of(entry.parent_id)
            else:
                body = self._redacted(self._body(entry), f"entry {entry.id}")
                parent = self._parent_of(entry.parent_id)
                yield body if body.get("parentId") == parent else {**body, "parentId": parent}

    def _parent_of(self, parent: str | None) -> str | None:
        return self._markers.get(parent, parent) if parent is not None else None

    def _entries(self) -> Iterator[Entry]:
        session, progress = self._session, self._progress
        for entry in session.iter_lines() if self._leaf is None else session.iter_branch(self._leaf):
            yield entry
            if progress is not None:
                self._done += 1
                progress(Passed(min(self._done, self._total), self._total))

    def _expect(self, times: int) -> None:
        """Set the expected number of entries to read: everything, this many times."""
        if self._progress is not None:
            self._done, self._total = 0, times * self._session.count_entries()

    def _body(self, entry: Entry) -> Body:
        """The entry as it was appended, or without its images."""
        if _is_marker(entry):
            return entry.stored
        return entry.body if self._images else _without_images(entry.body)

    def _redacted(self, value: Any, at: str) -> Any:
        return value if self._redactor is None else self._redactor.redact_value(value, at)

    # -- files

    def transcript(self, depth: Depth = "tools", notes: tuple[str, ...] = ()) -> Transcript:
        """Return the session as the renderers need it.

        Args:
            depth: How much of each entry to show.
            notes: Remarks for the reader.
        """
        session = self._session
        header = self._redacted(dict(session.header), "header")
        title = self._redacted(session.shown_title, "header")
        count = session.count_entries() if self._leaf is None else sum(1 for _ in self)
        return Transcript(
            id=session.id,
            title=title,
            cwd=str(header.get("cwd") or ""),
            created=parse_timestamp(header.get("timestamp")),
            entries=self,
            entry_count=count,
            leaf=self._leaf or session.leaf_id,
            labels=self._redacted(dict(session.get_labels()), "labels"),
            gaps=[Gap(after, self._redacted(message, "damage")) for after, message in session.get_gaps()],
            depth=depth,
            notes=(*notes, *self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self._redactor is not None:
            total = sum(found.count for found in self.report if not found.kept)
            kept = sum(found.kept for found in self.report)
            yield f"{total} secrets were replaced by placeholders" if total else "no secrets were found; best effort"
            if kept:
                yield f"{kept} that looked like secrets were kept on purpose"
        if not self._images:
            yield "images were left out"

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the session as a native session file."""
        raw = self._session._header_line()
        header: Body = decode(raw)
        redacted = self._redacted(header, "header")
        yield (raw if redacted is header else encode_plain(redacted)) + b"\n"
        for entry in self._entries():
            changed = self._redacted(self._body(entry), f"entry {entry.id}")
            yield (entry.raw if changed is entry.stored else encode_plain(changed)) + b"\n"

    def artifacts(self, fs: Filesystem) -> Iterator[tuple[str, bytes | None]]:
        """Yield the artifacts of the session. Links are not followed.

        Args:
            fs: The filesystem of the session's store.

        Yields:
            The name below the artifacts folder, and the content as `artifact` returns it.

        Raises:
            Refused: A name leads out of the folder.
        """
        folder = self._session.artifacts
        for path, _ in files_below(fs, folder):
            if path == folder:
                return  # a file with the name of the folder
            name = path.removeprefix(f"{folder}/")
            if not {"", ".", ".."}.isdisjoint(name.split("/")):  # possible in a database
                raise Refused(
                    "the name of an artifact leads out of its folder", path=path, hint="remove it, then export again"
                )
            with storage_failures(path, "read an artifact"):
                content = read_all(fs, path)
            yield name, self.artifact(name, content)

    def artifact(self, name: str, content: bytes) -> bytes | None:
        """Return an artifact with its secrets replaced; `None` if it is not text, so that it cannot be searched."""
        if self._redactor is None:
            return content
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        redacted = self._redactor.redact(text, f"artifact {name}")
        return content if redacted == text else redacted.encode()

    def written(
        self, form: str, depth: Depth = "tools", notes: tuple[str, ...] = (), *, keep: Keep | None = None
    ) -> Iterator[bytes]:
        """Return the exported file, in pieces.

        Args:
            form: "html", "md", "txt" or "jsonl".
            depth: How much of each entry to show.
            notes: Remarks for the reader.
            keep: Stores the images of a Markdown export and returns their names; without it they are described in words.

        Raises:
            Unsupported: The form is unknown.
        """
        if form not in FORMS:
            raise Unsupported(f"cannot export as {form!r}", hint=f"use one of {', '.join(FORMS)}")
        self._expect(_TIMES[form])
        return FORMS[form](self, depth, notes, keep)


def _html(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    from sessile.render.page import html_page

    return (piece.encode("utf-8", "replace") for piece in html_page(export.transcript(depth, notes)))


def _markdown(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    from sessile.render.markdown import markdown

    return (piece.encode("utf-8", "replace") for piece in markdown(export.transcript(depth, notes), keep))


def _text(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    from sessile.render.terminal import text_export

    return (piece.encode("utf-8", "replace") for piece in text_export(export.transcript(depth, notes)))


def _jsonl(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    return export.lines()


FORMS: dict[str, Callable[[Export, Depth, tuple[str, ...], Keep | None], Iterator[bytes]]] = {
    "html": _html,
    "md": _markdown,
    "txt": _text,
    "jsonl": _jsonl,
}
_TIMES = {"html": 2, "md": 1, "txt": 1, "jsonl": 1}  # how often a form reads everything


def _is_marker(entry: Entry) -> bool:
    return b'"sessile.' in entry.raw and entry.stored.get("customType") in MARKERS


def _without_images(value: Any) -> Any:
    """The value with a text in place of each image. Parts without images are shared, not copied."""
    if isinstance(value, dict):
        if value.get("type") == "image":
            return {"type": "text", "text": OMITTED}
        new = {name: _without_images(item) for name, item in value.items()}
        return value if all(new[name] is item for name, item in value.items()) else new
    if isinstance(value, list):
        items = [_without_images(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


# -- reviewing


class Reviewed(NamedTuple):
    """One secret that an export would replace.

    Attributes:
        id: The name of the finding: rule and number, such as "e-mail#1".
        rule: The rule that found it.
        length: Its length in characters.
        times: How often it occurs.
        excerpt: The text around its first occurrence, with all secrets replaced.
        places: Where it occurs.
        kept: Whether it is kept on purpose.
    """

    id: str
    rule: str
    length: int
    times: int
    excerpt: str | None
    places: tuple[str, ...]
    kept: bool


class Review(NamedTuple):
    """What an export would replace.

    Attributes:
        findings: The secrets.
        images: The number of images, which are not searched.
        report: The report of the redactor.
    """

    findings: list[Reviewed]
    images: int
    report: Sequence[Redaction]


def share_redactor(*, personal: bool = False, home: str | None = None, keep: Collection[str] = ()) -> Redactor:
    """Return a redactor for sharing.

    Args:
        personal: Also replace personal data, such as e-mail addresses.
        home: The home folder, which is personal data.
        keep: Names of findings, or placeholders, that are not replaced.
    """
    kept = [name if name.startswith("[") else _PLACEHOLDER.format(name) for name in keep]
    known = {home: "home-folder"} if personal and home else {}
    return Redactor(groups=(SECRET, PERSONAL) if personal else (SECRET,), known=known, keep=kept)


def review_export(session: SessionView, *, leaf: str | None, redactor: Redactor) -> Review:
    """Find what an export of a session, or of the path to `leaf`, would replace."""
    report = Export(session, leaf=leaf, redactor=redactor).report
    findings = [
        Reviewed(
            found.placeholder.removeprefix("[REDACTED:").removesuffix("]"),
            found.rule,
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
    """Return what was replaced, as a document for the person sharing. It contains no secrets."""
    return {"schema": "sessile.share-report/1", "session": session_id, "items": report}


def _excerpt(session: SessionView, redactor: Redactor, found: Redaction) -> str | None:
    """The redacted text around the first occurrence of a finding; `None` if it is not in a text."""
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
    """The value that a place of the report refers to: an entry, the labels or the header."""
    if where.startswith(_ENTRY):
        entry_id = where[len(_ENTRY) :].partition("/")[0]
        return None if session.get_entry(entry_id) is None else session.get_full_entry(entry_id)
    return dict(session.get_labels()) if where.startswith("labels") else session.header


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value."""
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
    return sum(_images_in(entry.stored) for entry in entries if _IMAGE in entry.raw)


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
