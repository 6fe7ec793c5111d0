"""Run programs at the same moment, each in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_HEAD = """
import sys
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.names import PostgresFilesystem
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.schema import migrate

url, arguments = sys.argv[1], sys.argv[2:]
def gate():
    print("ready", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def program(script: str, url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program and wait until it has reached `gate()`. It is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HEAD + script, url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise AssertionError(process.communicate()[1])
            yield process
        finally:
            process.kill()


def pass_gate(process: subprocess.Popen[str]) -> None:
    """Let a program pass the gate."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def run_at_once(script: str, url: str, *arguments: str, number: int = 4) -> list[str]:
    """Let several programs pass the gate together. Return their outputs."""
    with ExitStack() as stack:
        running = [stack.enter_context(program(script, url, *arguments)) for _ in range(number)]
        for process in running:
            pass_gate(process)
        printed = []
        for process in running:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            printed.append(out.strip())
        return printed
