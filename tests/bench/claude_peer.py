"""Runs in an environment of its own: one call of the Claude Agent SDK, with its seconds, its memory and its answer's hash.

python claude_peer.py list_sessions|get_session_messages HOME [SESSION_ID]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import resource
import sys
import time

import claude_agent_sdk  # type: ignore[import-not-found, unused-ignore]


def main(call: str, home: str, *arguments: str) -> None:
    """Do it, and print the result as JSON."""
    os.environ["CLAUDE_CONFIG_DIR"] = home
    function = getattr(claude_agent_sdk, call)
    start = time.perf_counter()
    answer = function(*arguments)
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    whole = hashlib.sha256()
    for each in answer:
        whole.update(json.dumps(dataclasses.asdict(each), sort_keys=True).encode())
    print(json.dumps({"seconds": seconds, "memory_mb": memory, "count": len(answer), "hash": whole.hexdigest()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
