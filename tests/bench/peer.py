"""Run one work of a Python project in its own environment; print seconds, memory and number of results as JSON.

    python peer.py list_sessions HOME
    python peer.py get_session_messages HOME SESSION_ID
    python peer.py append FOLDER MESSAGES COUNT BEFORE       openai-agents' SQLiteSession, one item at a time
    python peer.py turns FOLDER COUNT                        a LangGraph graph with SqliteSaver
    python peer.py our_turns FOLDER COUNT                    the same graph with our saver

Imports are local, because no environment has all packages.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_KILOBYTES = 2  # of a question, and of an answer


def list_sessions(home: str) -> dict[str, Any]:
    """Call the Claude Agent SDK's function of that name."""
    return _claude("list_sessions", home)


def get_session_messages(home: str, session_id: str) -> dict[str, Any]:
    """Call the Claude Agent SDK's function of that name."""
    return _claude("get_session_messages", home, session_id)


def _claude(call: str, home: str, *arguments: str) -> dict[str, Any]:
    import claude_agent_sdk

    os.environ["CLAUDE_CONFIG_DIR"] = home
    function = getattr(claude_agent_sdk, call)
    start = time.perf_counter()
    answer = function(*arguments)
    seconds = time.perf_counter() - start
    memory = _memory()
    whole = hashlib.sha256()
    for each in answer:
        whole.update(json.dumps(dataclasses.asdict(each), sort_keys=True).encode())
    return {"seconds": seconds, "memory_mb": memory, "count": len(answer), "hash": whole.hexdigest()}


def append(folder: str, messages: str, count: str, before: str) -> dict[str, Any]:
    """Add items one by one, each durable when the call returns."""
    from agents import SQLiteSession

    items = [json.loads(line) for line in Path(messages).read_text().splitlines()]

    async def run() -> float:
        session = SQLiteSession("bench", Path(folder, "items.db"))
        if int(before):
            await session.add_items([items[number % len(items)] for number in range(int(before))])
        start = time.perf_counter()
        for number in range(int(count)):
            await session.add_items([items[number % len(items)]])
        seconds = time.perf_counter() - start
        session.close()
        return seconds

    return {"seconds": asyncio.run(run()) / int(count), "memory_mb": _memory(), "count": int(count)}


def turns(folder: str, count: str) -> dict[str, Any]:
    """Run turns of a graph with LangGraph's own saver."""
    from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found, unused-ignore]

    with SqliteSaver.from_conn_string(str(Path(folder, "checkpoints.db"))) as saver:
        answer = _turns(saver, int(count))
    return {**answer, "stored": _stored(folder)}


def our_turns(folder: str, count: str) -> dict[str, Any]:
    """Run turns of a graph with our saver."""
    from sessile import Store
    from sessile.adapters.langgraph import SessileSaver

    return {**_turns(SessileSaver(Store(folder)), int(count)), "stored": _stored(folder)}


def _turns(saver: Any, count: int) -> dict[str, Any]:
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(_text(len(state["messages"])))]})
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=saver)
    thread: Any = {"configurable": {"thread_id": "bench"}}
    start = time.perf_counter()
    for number in range(count):
        graph.invoke({"messages": [HumanMessage(_text(number))]}, thread)
    seconds = (time.perf_counter() - start) / count
    said = len(graph.get_state(thread).values["messages"])
    return {"seconds": seconds, "memory_mb": _memory(), "count": said}


def _text(number: int) -> str:
    words = (f"{number * 7919 + place * 104729:x}" for place in range(400))
    return " ".join(words)[: _KILOBYTES * 1024]


def _stored(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _memory() -> float:
    """Return the peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


WORKS: dict[str, Callable[..., dict[str, Any]]] = {
    work.__name__: work for work in (list_sessions, get_session_messages, append, turns, our_turns)
}

if __name__ == "__main__":
    print(json.dumps(WORKS[sys.argv[1]](*sys.argv[2:])))
