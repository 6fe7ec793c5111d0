"""A second program that speaks MyAgents' lock protocol by itself: `python myagents_peer.py ROOT 1|2 ID TIMES`.

It knows nothing of Sessile. As the first versions do, it takes the lock with mkdir, writes the index in place and releases with
rmdir; as the later ones do, it writes an owner into the lock, puts the index in place by a rename, and releases only what is
still its own. Each turn adds one to the `count` of its own row; it prints how many turns it had.
"""

from __future__ import annotations

import json
import os
import sys
import time


def take(lock: str, version: int, token: str, patience: float) -> bool:
    """Take the lock, the first versions within 30 ms, the later ones within 5 s."""
    end = time.monotonic() + patience
    while True:
        try:
            os.mkdir(lock)
        except FileExistsError:
            if time.monotonic() > end:
                return False
            time.sleep(0.010 if version == 1 else 0.050)
            continue
        if version > 1:
            with open(f"{lock}/owner", "w") as file:
                file.write(token)
        return True


def release(lock: str, version: int, token: str) -> None:
    if version > 1:
        with open(f"{lock}/owner") as file:
            if file.read() != token:
                raise SystemExit("somebody has taken the lock away")
        os.unlink(f"{lock}/owner")
    os.rmdir(lock)


def turn(root: str, version: int, name: str) -> None:
    """Read, change and write the index."""
    index = f"{root}/sessions.json"
    with open(index) as file:
        rows = json.load(file)
    for row in rows:
        if row["id"] == name:
            row["count"] = row.get("count", 0) + 1
    text = json.dumps(rows, indent=2)
    if version == 1:
        with open(index, "w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            file.write(text[len(text) // 2 :])
    else:
        with open(f"{index}.tmp", "w") as file:
            file.write(text)
        os.rename(f"{index}.tmp", index)


def main() -> None:
    root, version, name, times = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    lock = f"{root}/sessions.lock"
    token = f"node:{os.getpid()}:{time.time_ns() // 1_000_000}"
    done = 0
    for _ in range(times):
        if take(lock, version, token, 0.030 if version == 1 else 5.0):
            turn(root, version, name)
            release(lock, version, token)
            done += 1
        time.sleep(0.001)
    print(done)


if __name__ == "__main__":
    main()
