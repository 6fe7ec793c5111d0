"""A home with sessions of three agents, as the page sees it: native, pi and Claude Code."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from builders import assistant, user
from http_rig import Http, http
from sessile import Session, Store
from sessile.storage.layout import Source

Json = dict[str, Any]

TOKEN = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z5A"  # looks like a secret, but is not one
CLAUDE = "c1a0de00-0000-4000-8000-000000000001"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
) + bytes(2000)
USAGE = {"input": 100, "output": 10, "cacheRead": 300, "cacheWrite": 0, "totalTokens": 410, "cost": {"total": 0.25}}


def answered(text: str, model: str = "opus", *, priced: bool = True, tool: str | None = None) -> Json:
    """Return an answer with a known or unknown price, which may call a tool."""
    message = assistant(text, "anthropic", model)
    message["usage"] = USAGE if priced else {**USAGE, "cost": {"total": 0}}
    if tool is not None:
        message["content"].append({"type": "toolCall", "id": "call-1", "name": tool, "arguments": {"command": "ls"}})
    return {**message, "stopReason": "stop"}


def printed(text: str, *, failed: bool = False) -> Json:
    """Return a tool result."""
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": "call-1", "toolName": "bash", "content": content, "isError": failed}


class Household:
    """The folders below one path; `own`, `pi` and `claude` write to them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = Store(root / "own", durability="process")
        self.pi = Store(root / "pi", durability="process")
        self.projects = root / "claude" / "projects"
        self.projects.mkdir(parents=True)
        (root / "pi" / "sessions").mkdir(parents=True)

    @property
    def sources(self) -> list[Source]:
        """Return the folders of other agents."""
        claude = str(self.projects.parent)
        return [
            Source("pi", str(self.root / "pi"), str(self.root / "pi" / "sessions")),
            Source("claude", claude, str(self.projects)),
        ]

    def begin(self, store: Store, title: str | None = None, cwd: str = "/work/app", **options: Any) -> Session:
        """Create a session that listings show."""
        session = store.create(cwd, publish=True, **options)
        if title is not None:
            session.set_session_name(title)
        return session

    def write_claude(self, *texts: str, session_id: str = CLAUDE, cwd: str = "/work/web") -> Path:
        """Write a Claude Code transcript with these messages in turn."""
        path = self.projects / cwd.replace("/", "-") / f"{session_id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows: list[Json] = []
        parent = None
        for number, text in enumerate(texts):
            role = "assistant" if number % 2 else "user"
            content: Any = [{"type": "text", "text": text}] if number % 2 else text
            message = {"role": role, "content": content} | ({"id": f"msg_{number}", "model": "m"} if number % 2 else {})
            uuid = f"{number:08d}-0000-4000-8000-{session_id[-12:]}"
            base = {"parentUuid": parent, "sessionId": session_id, "cwd": cwd, "version": "2.1.300"}
            at = f"2026-02-16T10:20:{number:02d}.000Z"
            rows.append({"type": role, "uuid": uuid, **base, "timestamp": at, "message": message})
            parent = uuid
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def age(self, path: str | Path, days: float) -> None:
        """Set the modification time of a file to the given number of days ago."""
        then = self.own.now() / 1000 - days * 24 * 3600
        os.utime(path, (then, then))


def furnished(root: Path) -> Household:
    """Return a home with a session of each agent: the native one has two branches, a failed tool, a secret and a label."""
    home = Household(root)
    with home.begin(home.own, "Webhook retries") as session:
        session.append_message(user("Add retries to the webhook sender"))
        fork = session.append_message(answered("Two ways: A or B", tool="bash")).id
        session.append_message(printed("pytest: zebra failed", failed=True))
        session.append_message(user(f"Approach A with {TOKEN} please"))
        left = session.append_message(answered("Abandoned albatross")).id
        session.append_label_change(left, "dead end")
        session.branch(fork)
        session.append_message(user("Approach B"))
        session.append_message(answered("Active aardvark", "sonnet", priced=False))
    with home.begin(home.pi, "Dotfiles", cwd="/work/app/tools") as session:
        session.append_message(user("Tidy up my dotfiles"))
        session.append_message(answered("All aardvarks are tidy"))
    home.write_claude("Why is the page slow?", "Because of an aardvark")
    return home


@asynccontextmanager
async def page(home: Household, **options: Any) -> AsyncIterator[Http]:
    """Return a gateway on a home, with the folders of all agents."""
    async with http(home.root / "own", store=Store(home.root / "own"), sources=home.sources, **options) as client:
        yield client


async def settled(client: Http) -> None:
    """Wait until everything is counted and indexed."""
    import anyio

    with anyio.fail_after(20):
        while any(each["kind"] == "pending" for each in (await client.get("/v1/view/overview"))["warnings"]):
            await anyio.sleep(0.05)
