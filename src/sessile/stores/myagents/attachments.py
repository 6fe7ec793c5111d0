"""Attachments of MyAgents' messages: files below `attachments/<session id>/`.

Every path is made from ids that were checked, so none leads out of the folder. The extension comes from a table, never from
the MIME type itself: what a browser would run is stored as something that it does not. Files are 0600.
"""

from __future__ import annotations

from sessile.errors import Conflict, NotFound, UnsafePath, storage_failures
from sessile.formats.myagents.types import Json
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.stores.myagents.places import Places

EXTENSIONS = {
    "application/gzip": "gz",
    "application/json": "json",
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/xml": "xml",
    "application/zip": "zip",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "image/bmp": "bmp",
    "image/gif": "gif",
    "image/heic": "heic",
    "image/jpeg": "jpg",
    "image/jpg": "jpg",
    "image/png": "png",
    "image/tiff": "tiff",
    "image/webp": "webp",
    "text/csv": "csv",
    "text/markdown": "md",
    "text/plain": "txt",
    "video/mp4": "mp4",
    "video/webm": "webm",
}
UNKNOWN = "bin"


def extension_of(mime_type: str) -> str:
    """The extension of a file of some type; parameters behind a semicolon do not count."""
    return EXTENSIONS.get(mime_type.partition(";")[0].strip().lower(), UNKNOWN)


class Attachments:
    """The attachments of one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places) -> None:
        self._fs = fs
        self._places = places

    def save(self, session_id: str, attachment_id: str, name: str, mime_type: str, data: bytes) -> Json:
        """Store a file; gives what the message is to say of it."""
        path = self._places.attachment(session_id, attachment_id, extension_of(mime_type))
        folder = self._places.attachments_of(session_id)
        atomic.make_folders(self._fs, folder, below_links=True)
        with storage_failures(path, "store an attachment"):
            if not atomic.is_folder(self._fs, folder):
                raise UnsafePath("a folder is needed where a file or a link is", path=folder)
            if atomic.exists(self._fs, path) and atomic.read_all(self._fs, path) != data:
                raise Conflict("another attachment has that id", path=path, hint="choose another id")
        atomic.replace(self._fs, path, (data,))
        return {
            "id": attachment_id,
            "name": name,
            "mimeType": mime_type,
            "path": path.removeprefix(f"{self._places.attachments}/"),
        }

    def read(self, relative: str) -> bytes:
        """The content of an attachment, by the path that its message names."""
        path = self._places.attachment_at(relative)
        with storage_failures(path, "read an attachment"):
            try:
                if not atomic.is_folder(self._fs, path.rpartition("/")[0]):
                    raise UnsafePath("attachments are not read through links", path=path)
                return atomic.read_all(self._fs, path)
            except FileNotFoundError as error:
                raise NotFound("there is no such attachment", path=path) from error

    def size(self, relative: str) -> int | None:
        """How large an attachment is; `None` if it is missing."""
        path = self._places.attachment_at(relative)
        with storage_failures(path, "look at an attachment"):
            try:
                return self._fs.lstat(path).st_size
            except FileNotFoundError:
                return None
