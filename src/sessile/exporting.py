"""Sessions on their way out: which entries leave, with their images, and with secrets replaced.

    export = Export(session, redactor=Redactor())
    export.report                   what was replaced, where and how often
    export.written("html")          the file, piece by piece
    export.written("md", keep=…)    the same; pictures go to `keep`, and the file names them
    export.artifacts(store.fs)      what lies beside a session file, to lie beside the copy

Rules:

- The redactor goes through everything once before the first byte leaves: a secret that is recognised late in a session is
  replaced where it stands early, too. Title, project, labels and header are redacted like the entries.
- A line that does not change is written as it is, byte for byte. Without a redactor, nothing changes.
- Entries are read as they are needed; no more of a session is held in memory than the renderer holds.

It does not know where the file goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.codec import decode, encode_plain
from sessile.core.entries import Entry
from sessile.core.kinds import MARKERS
from sessile.core.parts import Depth
from sessile.core.redact import Redaction, Redactor
from sessile.core.text import parse_timestamp
from sessile.core.transcript import Gap, Transcript
from sessile.errors import Refused, Unsupported, storage_failures
from sessile.storage.atomic import read_all
from sessile.storage.base import Filesystem
from sessile.storage.survey import files_below
from sessile.view import SessionView

if TYPE_CHECKING:
    from sessile.render.markdown import Keep

Body = Mapping[str, Any]

OMITTED = "[image omitted]"
_BLOB = b"blob:sha256:"
_LEARNING = 2  # times that the redactor goes through everything


class Passed(NamedTuple):
    """How far an export is: entries that were gone through, and those that there are to go through."""

    done: int
    total: int


class Export:
    """What leaves of a session: all branches, or the path to `leaf`. Without `images`, a text stands in their place.

    `progress` is told of each entry that is gone through.
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
        """Go through everything: first to learn what is secret, then to count it."""
        self._expect(_LEARNING)
        for number in range(_LEARNING):
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
        """The entries that leave, in file order; leaf markers are nobody's words."""
        for entry in self._entries():
            if _is_marker(entry):
                self._markers[entry.id] = self._meant(entry.parent_id)
            else:
                body = self._redacted(self._body(entry), f"entry {entry.id}")
                meant = self._meant(entry.parent_id)
                yield body if body.get("parentId") == meant else {**body, "parentId": meant}

    def _meant(self, parent: str | None) -> str | None:
        return self._markers.get(parent, parent) if parent is not None else None

    def _entries(self) -> Iterator[Entry]:
        session, told = self._session, self._progress
        for entry in session.iter_lines() if self._leaf is None else session.iter_branch(self._leaf):
            yield entry
            if told is not None:
                self._done += 1
                told(Passed(min(self._done, self._total), self._total))

    def _expect(self, times: int) -> None:
        """Everything will be gone through so many times, for all that one can tell."""
        if self._progress is not None:
            self._done, self._total = 0, times * self._session.count_entries()

    def _body(self, entry: Entry) -> Body:
        """The entry as it was appended, or without its images."""
        if _BLOB in entry.raw and not _is_marker(entry):
            body: Body = self._session.get_full_entry(entry.id)
        else:
            body = entry.body
        return body if self._images else _without_images(body)

    def _redacted(self, value: Any, at: str) -> Any:
        return value if self._redactor is None else self._redactor.redact_value(value, at)

    # -- forms

    def transcript(self, depth: Depth = "tools", notes: tuple[str, ...] = ()) -> Transcript:
        """What renderers take."""
        session = self._session
        header = self._redacted(dict(session.header), "header")
        title = self._redacted(session.title, "header")
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
        """The session as a session file."""
        raw = self._session.header_line()
        header: Body = decode(raw)
        redacted = self._redacted(header, "header")
        yield (raw if redacted is header else encode_plain(redacted)) + b"\n"
        for entry in self._entries():
            body = entry.body
            changed = self._redacted(self._body(entry), f"entry {entry.id}")
            yield (entry.raw if changed is body else encode_plain(changed)) + b"\n"

    def artifacts(self, fs: Filesystem) -> Iterator[tuple[str, bytes | None]]:
        """What tools and sub-agents of the session spilled, from the file system of its store, each as `artifact` gives it.

        Names are those below the folder. Links are not followed.
        """
        folder = self._session.artifacts
        for path, _ in files_below(fs, folder):
            if path == folder:
                return  # a file that happens to have the name of the folder
            name = path.removeprefix(f"{folder}/")
            if not {"", ".", ".."}.isdisjoint(name.split("/")):  # a database may hold names that no disk would
                raise Refused(
                    "the name of an artifact leads elsewhere", path=path, hint="take it away, and begin again"
                )
            with storage_failures(path, "read an artifact"):
                content = read_all(fs, path)
            yield name, self.artifact(name, content)

    def artifact(self, name: str, content: bytes) -> bytes | None:
        """A file of the artifacts folder as it leaves; `None` if it is no text, in which nobody could look for secrets."""
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
        """The file in one of the forms of `FORMS`, piece by piece.

        `keep` receives the pictures of a form that holds none itself: Markdown; without it they are words there.
        """
        if form not in FORMS:
            raise Unsupported(f"there is no export as {form!r}", hint=f"there are {', '.join(FORMS)}")
        self._expect(_TIMES[form])
        return FORMS[form](self, depth, notes, keep)


def _html(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    from sessile.render.page import html_page

    return (piece.encode("utf-8", "replace") for piece in html_page(export.transcript(depth, notes)))


def _markdown(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    from sessile.render.markdown import markdown

    return (piece.encode("utf-8", "replace") for piece in markdown(export.transcript(depth, notes), keep))


def _text(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    from sessile.render.text import text_export

    return (piece.encode("utf-8", "replace") for piece in text_export(export.transcript(depth, notes)))


def _jsonl(export: Export, depth: Depth, notes: tuple[str, ...], keep: Keep | None) -> Iterator[bytes]:
    return export.lines()


FORMS: dict[str, Callable[[Export, Depth, tuple[str, ...], Keep | None], Iterator[bytes]]] = {
    "html": _html,
    "md": _markdown,
    "txt": _text,
    "jsonl": _jsonl,
}
_TIMES = {"html": 2, "md": 1, "txt": 1, "jsonl": 1}  # that a form goes through everything


def _is_marker(entry: Entry) -> bool:
    return b'"sessile.' in entry.raw and entry.body.get("customType") in MARKERS


def _without_images(value: Any) -> Any:
    """The value with a text in place of each image; parts that hold none are shared."""
    if isinstance(value, dict):
        if value.get("type") == "image":
            return {"type": "text", "text": OMITTED}
        new = {name: _without_images(item) for name, item in value.items()}
        return value if all(new[name] is item for name, item in value.items()) else new
    if isinstance(value, list):
        items = [_without_images(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value
