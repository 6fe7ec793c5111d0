"""A real S3 server from a wheel, started once per process, with its data in a temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

START_SECONDS = 60.0  # on a busy machine
_KEY, _SECRET = "key", "secret"
_IDENTITY = {"name": "test", "actions": ["Admin", "Read", "Write", "List", "Tagging"]}


class S3(NamedTuple):
    """A running server."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a client needs."""
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def new_s3() -> Iterator[S3]:
    """Run a separate server for a block."""
    folder = tempfile.mkdtemp(prefix="sessile-s3-")
    try:
        os.mkdir(f"{folder}/data")
        keys = [{"accessKey": _KEY, "secretKey": _SECRET}]
        Path(folder, "s3.json").write_text(json.dumps({"identities": [{**_IDENTITY, "credentials": keys}]}))
        port, *others = _free_ports(4)
        parts = zip(("master", "volume", "filer"), others, strict=True)
        command = [
            *(str(Path(sys.executable).parent / "weed"), "server", "-dir", f"{folder}/data"),
            *("-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-volume.max=8", "-master.volumeSizeLimitMB=64"),
            *("-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-filer", f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"),
            *("-s3", f"-s3.port={port}", f"-s3.config={folder}/s3.json"),
            *(f"-{part}.port={number}" for part, number in parts),
        ]
        with open(f"{folder}/log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield _answering(S3(f"http://127.0.0.1:{port}"), process, folder)
        finally:
            process.kill()  # a clean shutdown takes half a minute, and the data is removed anyway
            process.wait()
            for number in (port, *others):  # it leaves the sockets of its parts behind
                for left in (
                    *Path("/tmp").glob(f"seaweedfs-*-{number}.sock"),
                    *Path("/tmp").glob(f"seaweedfs-*-{number + 10_000}.sock"),
                ):
                    left.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answering(server: S3, process: subprocess.Popen[bytes], folder: str) -> S3:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            httpx.get(server.endpoint)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return server
    raise RuntimeError(f"the S3 server did not start: {Path(folder, 'log').read_text()[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Return free ports; the server also uses each of these plus 10,000."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port < 55_000 and port not in found:
                try:
                    other.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
                found.append(port)
    return found
