"""L1: a LangGraph graph with three hundred turns of two kilobytes per side: storage size and time per turn.

Both savers run in their own processes; the limit is the size of the messages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from .measure import Rival, Row
from .peers import PEERS, Answer, Failure, ask
from .scale import Scale

_TURNS = 300
_MESSAGE = 2048
_MOST_MB = 4.0  # with our saver
_MEGA = 1e6


def keeping_graphs(scale: Scale) -> list[Row]:
    """Compare the storage size and the time per turn of our saver and LangGraph's own."""
    turns = _TURNS if scale.rounds > 1 else 5
    with tempfile.TemporaryDirectory(dir=scale.scratch()) as folder:
        ours = _ours(folder, turns)
    said = 2 * turns * _MESSAGE / _MEGA
    stored = ours.stored / _MEGA
    room = Row("L1", f"LangGraph, {turns} turns of 2 × 2 KB: room", stored, "MB", "the messages", said, stored / said)
    room.limit = _MOST_MB / said if turns == _TURNS else None
    time = Row("L1", "… time of a turn", ours.seconds)
    if scale.peers and PEERS["langgraph"].installed:
        with tempfile.TemporaryDirectory(dir=scale.scratch()) as folder:
            try:
                theirs = ask(scale, "langgraph", "turns", folder, str(turns))
            except Failure as failure:
                room.rivals["langgraph"] = time.rivals["langgraph"] = Rival(failed=str(failure))
                return [room, time]
        assert theirs.count == ours.count == 2 * turns
        least = 50 if turns == _TURNS else None
        room.rivals = {"langgraph": Rival(theirs.stored / _MEGA, theirs.stored / ours.stored, least)}
        time.rivals = {"langgraph": Rival(theirs.seconds, theirs.seconds / ours.seconds, None, theirs.memory_mb)}
    return [room, time]


def _ours(folder: str, turns: int) -> Answer:
    command = [sys.executable, "-P", str(Path(__file__).with_name("peer.py")), "our_turns", folder, str(turns)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Answer)
