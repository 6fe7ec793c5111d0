"""Files that a verb writes for somebody: whole or not at all, and for nobody else to read.

It does not know what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import quote

from sessile.errors import Refused, storage_failures

_FOLDER, _FILE = 0o700, 0o600


def write_file(path: str, pieces: Iterable[bytes], *, force: bool, doing: str = "write the export") -> int:
    """Write beside the target and rename, so that nobody sees half of it; the number of bytes."""
    refuse_existing(path, force=force)
    temporary = f"{path}.{os.getpid()}.tmp"
    size = 0
    with storage_failures(path, doing):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE)
        try:
            with open(fd, "wb") as file:
                for piece in pieces:
                    size += file.write(piece)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return size


def refuse_existing(path: str, *, force: bool) -> None:
    """Do not write over a file, unless somebody wants that; never over a folder."""
    if os.path.isdir(path):
        raise Refused("there is a folder of that name", path=path, hint="say the name of a file")
    if os.path.lexists(path) and not force:
        raise Refused("there is a file of that name already", path=path, hint="choose another name, or say --force")


class Pictures:
    """The folder beside an export that its pictures go to; it is made with the first of them."""

    def __init__(self, export: str) -> None:
        self.folder = f"{os.path.splitext(export)[0]}-images"
        self.count = 0
        self._made: list[str] = []
        self._made_folder = False

    def keep(self, name: str, data: bytes) -> str:
        """Write a picture; where it lies, as the export names it. Its name is that of its content: one is enough."""
        path = f"{self.folder}/{name}"
        with storage_failures(path, "write a picture"):
            if not os.path.isdir(self.folder):
                os.mkdir(self.folder, _FOLDER)
                self._made_folder = True
            if not os.path.isfile(path):
                self._made.append(path)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE), "wb") as file:
                    file.write(data)
        self.count += 1
        return quote(f"{os.path.basename(self.folder)}/{name}")

    def forget(self) -> None:
        """Take back what was written, because the export was not."""
        for path in self._made:
            if os.path.lexists(path):
                os.unlink(path)
        if self._made_folder:
            os.rmdir(self.folder)
