"""Lines and files of extreme size are read in bounded memory, reported, and can be appended to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faults.ledger import CWD, message
from figures import measured
from sessile import Session, Store

MIB = 1 << 20
LONG = pytest.mark.long

READ = """
import json, resource, sys
from sessile import Store
root, path = sys.argv[1:3]
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = used()
session = Store(root, durability="process").open(path)
told = {"entries": session.count_entries(), "leaf": session.leaf_id, "title": session.title}
told["findings"] = [[found.code, found.length] for found in session.findings]
told["heads"] = len(session.get_heads()) if len(sys.argv) > 3 else None
receipt = session.append_message({"role": "user", "content": "after"})
told["after"] = [receipt.parent_id, session.get_entry(receipt.id)["message"]["content"]]
session.close()
told["memory"] = (used() - before) // (1 if sys.platform != "darwin" else 1024)
print(json.dumps(told))
"""


def read_within_a_gibibyte(session: Session, *, heads: bool = False) -> dict[str, Any]:
    """Return the report of a process that may use at most 1 GiB of address space; `memory` is its usage in KiB."""
    root = str(session._store.layout.root)
    command = [sys.executable, "-c", READ, root, session.path, *(["heads"] if heads else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def begun(root: Path) -> tuple[Session, str]:
    session = Store(root, durability="process").create(CWD, publish=True)
    first = session.append_message(message("first")).id
    session.close()
    return session, first


@pytest.mark.promise("P25")
@pytest.mark.parametrize("letter", ["nul", "a"])
@pytest.mark.parametrize("size", [64 * MIB, pytest.param(1024 * MIB, marks=LONG)])
def test_a_line_of_any_size_is_told_and_not_held(tmp_path: Path, size: int, letter: str) -> None:
    """Entries before and after a giant line are read, the line is one finding of its full length, and memory is bounded."""
    session, first = begun(tmp_path)
    behind = {"type": "message", "id": "behind", "parentId": first, "message": message("behind")}
    with open(session.path, "ab") as file:
        if letter == "nul":
            file.truncate(file.tell() + size)  # a hole, as after a power cut
            file.seek(0, 2)
        else:
            for _ in range(size // MIB):
                file.write(b"a" * MIB)
        file.write(b"\n" + json.dumps(behind).encode() + b"\n")
    told = read_within_a_gibibyte(session)
    assert [length for _, length in told["findings"]] == [size]
    assert told["entries"] == 2
    assert told["after"] == ["behind", "after"]
    assert told["memory"] < 128 * 1024
    measured("P25", "giant lines", lines=1, mebibytes=size // MIB, lost=0)


@pytest.mark.promise("P25")
@pytest.mark.parametrize("number", [20_000, pytest.param(1_000_000, marks=LONG)])
def test_a_session_of_any_length_and_depth_is_read_in_bounded_memory(tmp_path: Path, number: int) -> None:
    """In a single chain the tree is as deep as it is long; nothing recurses."""
    session, parent = begun(tmp_path)
    with open(session.path, "ab") as file:
        for n in range(number):
            entry = {"type": "message", "id": f"e{n:07}", "parentId": parent, "message": message("x" * 60)}
            file.write(json.dumps(entry).encode() + b"\n")
            parent = str(entry["id"])
    told = read_within_a_gibibyte(session, heads=True)
    assert told["entries"] == number + 1
    assert told["findings"] == []
    assert told["heads"] == 1
    assert told["after"] == [parent, "after"]
    assert told["memory"] < 700 * 1024
    measured("P25", "giant sessions", sessions=1, entries=number, lost=0)
