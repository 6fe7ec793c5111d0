"""Baselines: the bare loops that show the limits of the machine."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from .corpus import Corpus
from .scale import Scale

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_CHUNK = 1 << 20
_READ_SCAN = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t size = 1 << 20, lines = 0;
    char *buffer = malloc(size);
    int fd = open(argv[argc - 1], O_RDONLY);
    ssize_t got;
    if (fd < 0 || !buffer) return 1;
    while ((got = read(fd, buffer, size)) > 0)
        for (char *at = buffer, *end = buffer + got; (at = memchr(at, '\n', end - at)); at++) lines++;
    printf("%zu\n", lines);
    return got < 0;
}
"""


def read_scan(scale: Scale) -> tuple[str, Callable[[str], object]]:
    """Return a function that reads a file and finds its newlines, in C if there is a compiler, and its name."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return "Python read+count (no gcc)", _read_and_count
    folder = Path(scale.folder)
    folder.mkdir(parents=True, exist_ok=True)
    program, source = folder / "read_scan", folder / "read_scan.c"
    if not program.exists() or not source.exists() or source.read_text("ascii") != _READ_SCAN:
        source.write_text(_READ_SCAN, "ascii")
        made = subprocess.run([compiler, "-O2", "-o", str(program), str(source)], capture_output=True)
        if made.returncode != 0:
            return f"Python read+count ({compiler} failed)", _read_and_count
    return "C read+memchr", lambda path: subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL)


def _read_and_count(path: str) -> int:
    lines = 0
    buffer = bytearray(_CHUNK)
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            lines += buffer.count(b"\n", 0, got)
    return lines


def read_and_decode_live(made: Corpus) -> None:
    """Read and decode the lines and images of the context at known offsets."""
    decode = msgspec.json.decode
    fd = os.open(made.path, os.O_RDONLY | os.O_CLOEXEC)
    values = [decode(os.pread(fd, length, offset)) for offset, length in made.live]
    os.close(fd)
    for digest in made.live_blobs:
        fd = os.open(made.blob(digest), os.O_RDONLY | os.O_CLOEXEC)
        values.append(base64.b64encode(os.read(fd, os.fstat(fd).st_size)).decode("ascii"))
        os.close(fd)


def bare_appends(path: Path, lines: Sequence[bytes], count: int, *, sync: bool = False) -> Callable[[], None]:
    """Run a loop of `os.write` on a new file, each optionally followed by a sync."""
    fd = os.open(path, _FLAGS, 0o600)
    write, fdatasync = os.write, getattr(os, "fdatasync", os.fsync)

    def run() -> None:
        total = len(lines)
        for number in range(count):
            write(fd, lines[number % total])
            if sync:
                fdatasync(fd)
        os.close(fd)

    return run


def synced_append(fd: int, line: bytes) -> None:
    """Run one `os.write` and the sync that makes it durable."""
    os.write(fd, line)
    getattr(os, "fdatasync", os.fsync)(fd)


def locked_appends(path: str, lines: Sequence[bytes], count: int) -> None:
    """Run the same loop with the file locked for each write."""
    fd = os.open(path, _FLAGS, 0o600)
    total = len(lines)
    for number in range(count):
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, lines[number % total])
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
