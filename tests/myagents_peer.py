"""An independent program with MyAgents' lock protocol: `python myagents_peer.py ROOT 1|2 ID TIMES`.

It does not use Sessile. Version 1 takes the lock with mkdir in at most four attempts 10 ms apart, breaks a lock older
than 30 s with rmdir, writes the index in place and releases with rmdir. Version 2 tries for 5 s, writes an owner into
the lock, breaks the lock of a dead process at once and that of a living one never, replaces the index with a rename,
and releases only its own lock. Each turn adds one to the `count` of its row; the number of turns is printed.
"""

from __future__ import annotations

import json
import os
import sys
import time

STALE = 30.0


def take_as_the_first(lock: str) -> bool:
    """Try four times; breaking a stale lock and finding none each count as an attempt, without a delay."""
    for attempt in range(4):
        try:
            os.mkdir(lock)
            return True
        except FileExistsError:
            pass
        try:
            age = time.time() - os.stat(lock).st_mtime
        except FileNotFoundError:
            continue
        if age > STALE:
            release_as_the_first(lock)
        elif attempt < 3:
            end = time.monotonic() + 0.010
            while time.monotonic() < end:
                pass
    return False


def release_as_the_first(lock: str) -> None:
    try:
        os.rmdir(lock)
    except OSError:
        pass


def take_as_the_later(lock: str, token: str) -> bool:
    """Try for five seconds, 50 ms apart."""
    end = time.monotonic() + 5.0
    while True:
        try:
            os.mkdir(lock)
        except FileExistsError:
            if may_be_broken(lock):
                bury(lock, token)
            elif time.monotonic() > end:
                return False
            else:
                time.sleep(0.050)
            continue
        with open(f"{lock}/owner", "w") as file:
            file.write(token)
        return True


def may_be_broken(lock: str) -> bool:
    """Return whether the owner is dead; without a process id the age decides."""
    try:
        with open(f"{lock}/owner") as file:
            _, pid, _ = file.read().strip().split(":")
        os.kill(int(pid), 0)
        return False
    except ProcessLookupError:
        return True
    except (FileNotFoundError, ValueError):
        pass
    try:
        return time.time() - os.stat(lock).st_mtime > STALE
    except FileNotFoundError:
        return False


def bury(lock: str, token: str) -> None:
    """Rename a stale lock away, so that only one process breaks it."""
    tomb = f"{lock}.{token.replace(':', '-')}"
    try:
        os.rename(lock, tomb)
    except OSError:
        return
    if os.path.exists(f"{tomb}/owner"):
        os.unlink(f"{tomb}/owner")
    os.rmdir(tomb)


def release_as_the_later(lock: str, token: str) -> None:
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
        if take_as_the_first(lock) if version == 1 else take_as_the_later(lock, token):
            turn(root, version, name)
            if version == 1:
                release_as_the_first(lock)
            else:
                release_as_the_later(lock, token)
            done += 1
        time.sleep(0.001)
    print(done)


if __name__ == "__main__":
    main()
