"""Lanes: in each session one turn at a time, the others wait behind it.

Rules: whoever enters an empty lane has it, and must leave it, whatever happens; leaving says who is next. A lane with too many
who wait lets nobody else in, except those that had been let in before a restart. Entering is asked on threads, so everything
here is under one lock, and nothing takes long.

It knows nothing of turns but that they can be put in a row.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from sessile.errors import TooMany

Job = TypeVar("Job")


class Lanes(Generic[Job]):
    """The lanes of all sessions that have one; `most` may wait in each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: dict[str, deque[Job]] = {}  # the first one has the lane
        self._lock = threading.Lock()

    def enter(self, session_id: str, job: Job, *, first: bool = False, limited: bool = True) -> bool:
        """Put a job behind the others, or right behind the one that runs; whether the lane is its own now."""
        with self._lock:
            lane = self._lanes.setdefault(session_id, deque())
            if limited and len(lane) > self._most:
                raise TooMany(f"{self._most} messages wait in this session already", hint="wait for an answer")
            if first and lane:
                lane.insert(1, job)
            else:
                lane.append(job)
            return len(lane) == 1

    def try_enter(self, session_id: str, job: Job) -> bool:
        """Take an empty lane; one that is taken is left as it is."""
        with self._lock:
            if session_id in self._lanes:
                return False
            self._lanes[session_id] = deque([job])
            return True

    def leave(self, session_id: str) -> Job | None:
        """The one who has the lane is done; whose it is now, if anybody waits."""
        with self._lock:
            lane = self._lanes[session_id]
            lane.popleft()
            if lane:
                return lane[0]
            del self._lanes[session_id]
            return None

    def withdraw(self, session_id: str, job: Job) -> bool:
        """Take a job out that waits; whether it still did."""
        with self._lock:
            lane = self._lanes.get(session_id, deque())
            if job not in lane or lane[0] is job:
                return False
            lane.remove(job)
            return True

    def of(self, session_id: str) -> list[Job]:
        """Who has the lane of a session, and who waits."""
        with self._lock:
            return list(self._lanes.get(session_id, ()))

    def all(self) -> list[Job]:
        """Everybody in any lane."""
        with self._lock:
            return [job for lane in self._lanes.values() for job in lane]
