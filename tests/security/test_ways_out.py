"""Known shapes of secrets, in any surroundings and any place of a session, leave by no way out.

The ways: the four exports, sharing on the page with its review, the tools of the MCP server, `show --redact` in its three
forms, the report of `secrets`, error messages, and the log of a server.
"""

from __future__ import annotations

import base64
import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.conftest import Command, home, sessile
from figures import measured
from http_rig import http
from leaks import SHAPES, SURROUNDINGS, Detector, Written, jpeg, png, written
from mcp_server.mcp_rig import Asking, ask
from sessile import Store
from sessile.cli import servers
from sessile.core.redact import Redactor
from sessile.errors import SessileError
from sessile.export import Export, share_report
from sessions import begun, say, store_at

pytestmark = pytest.mark.promise("P29")
__all__ = ["home", "sessile"]  # fixtures

FORMS = ("html", "md", "txt", "jsonl")
SHARE = 40  # one of so many combinations in the short form


class Poisoned(NamedTuple):
    """A store with a session full of secrets, and the detector that knows them."""

    store: Store
    id: str
    detector: Detector
    secrets: int

    def check(self, way: str, output: str) -> None:
        """Fail if a part of a secret can be read in an output."""
        leaked = sorted(self.detector.leaks(output))
        assert leaked == [], (way, len(leaked), leaked[:10])
        measured("P29", "shapes in surroundings through every way out", secrets=self.secrets, leaks=0)


def combinations(share: int) -> Iterator[tuple[str, Written, str]]:
    """Yield a share of all shapes in all surroundings: the name, the secret, and the text with it."""
    every = [(shape, name) for shape in SHAPES for name in SURROUNDINGS]
    for shape, name in random.Random(share).sample(every, len(every) // share):
        key = written(shape, name)
        yield f"{shape.name}: {name}", key, SURROUNDINGS[name](key)


def _call(value: Any) -> dict[str, Any]:
    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": value}
    return {"role": "assistant", "content": [call], "provider": "p", "model": "m"}


def _result(text: str, **members: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {
        "role": "toolResult",
        "toolCallId": "c",
        "toolName": "bash",
        "isError": False,
        "content": content,
        **members,
    }


# A label, a file name of a diff and the like are single lines: a line break in them is shown as a space, as in any editor.
PLACES: tuple[Callable[[Any, str], object], ...] = (
    say,
    lambda session, text: session.append_message(_call({"command": text})),
    lambda session, text: session.append_message(_call({"deep": [{"er": [text, 1]}]})),
    lambda session, text: session.append_message(_call({text: "a name of a member"})),
    lambda session, text: session.append_message(_result(text)),
    lambda session, text: session.append_message(_result("done", details={"diff": f"+{text}"})),
    lambda session, text: session.append_message(
        {"role": "assistant", "content": [{"type": "thinking", "thinking": text}], "provider": "p", "model": "m"}
    ),
    lambda session, text: session.append_message(
        {"role": "assistant", "content": [], "provider": "p", "model": "m", "stopReason": "error", "errorMessage": text}
    ),
    lambda session, text: session.append_custom_entry(
        "notes", {"a": {"type": "file", "data": text}, "signature": text}
    ),
    lambda session, text: session.append_custom_entry("notes", [text]),
    lambda session, text: session.append_custom_message_entry("notes", text, True),
)


def poisoned(root: Path, share: int) -> Poisoned:
    """Return a store with a share of the combinations, each in one of the places in turn."""
    store = store_at(root)
    detector = Detector()
    count = 0
    with begun(store, "/work/app", title=f"my_{written(SHAPES[11], 'title').text}") as session:
        detector.expect("title", written(SHAPES[11], "title").body)
        for number, (name, key, text) in enumerate(combinations(share)):
            detector.expect(name, key.body)
            PLACES[number % len(PLACES)](
                session, f"needle {number} {text}" if PLACES[number % len(PLACES)] is say else text
            )
            count += 1
        for name, data in images(detector):
            image = {"type": "image", "mimeType": f"image/{name}", "data": base64.b64encode(data).decode()}
            session.append_message({"role": "user", "content": [image, {"type": "text", "text": "needle"}]})
            count += 1
        key = written(SHAPES[13], "label")
        detector.expect("label", key.body)
        session.append_label_change(say(session, "needle at the end"), f"my_{key.text}")
        return Poisoned(store, session.id, detector, count + 2)


def images(detector: Detector) -> Iterator[tuple[str, bytes]]:
    """Yield images with a secret in a text chunk, a compressed one, a comment, and behind the image."""
    for number, shape in enumerate(SHAPES[:24]):
        key = written(shape, "image")
        detector.expect(f"{shape.name}: image", key.body)
        makers = (png(key.text), png(key.text, compressed=True), jpeg(key.text), png("x") + key.text.encode())
        yield ("jpeg" if number % 4 == 2 else "png"), makers[number % 4]


@pytest.fixture(params=[SHARE, pytest.param(1, marks=pytest.mark.long)], ids=["short", "all"])
def full(request: pytest.FixtureRequest, home: Path) -> Poisoned:
    """Return the poisoned store in the home folder."""
    return poisoned(home / ".sessile", request.param)


def test_the_detector_reads_what_is_not_redacted(tmp_path: Path) -> None:
    """Every combination that is stored is found in a plain export."""
    full = poisoned(tmp_path, SHARE)
    with full.store.open(full.id, readonly=True) as session:
        seen = full.detector.leaks(b"".join(Export(session).written("jsonl")).decode())
    assert len(seen) == full.secrets


@pytest.mark.parametrize("form", FORMS)
def test_exports(full: Poisoned, form: str) -> None:
    """The file, and the report about it."""
    with full.store.open(full.id, readonly=True) as session:
        export = Export(session, redactor=Redactor())
        text = b"".join(export.written(form, "all")).decode()
        report = str(share_report(session.id, export.report))
    assert text.count("[REDACTED:") > full.secrets // 2
    full.check(form, text)
    full.check("report", report)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sharing_on_the_page(full: Poisoned, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The review with its excerpts, the downloads, and the log meanwhile."""
    with caplog.at_level(logging.DEBUG):
        async with http(home / ".sessile", seconds=600) as gate:
            review = await gate.client.get("/v1/view/share", params={"id": full.id})
            files = [
                await gate.client.get("/v1/view/export", params={"id": full.id, "form": form})
                for form in ("html", "jsonl")
            ]
    assert len(review.json()["findings"]) > 100
    full.check("review", json.dumps(review.json(), ensure_ascii=False))
    for file in files:
        assert file.status_code == 200
        full.check("page", file.text + str(file.headers))
    full.check("log", "\n".join(record.getMessage() for record in caplog.records if record.name != "httpx"))


def test_tools_of_the_mcp_server(full: Poisoned) -> None:
    """Lists, hits and whole sessions."""

    async def scenario(asking: Asking) -> str:
        await asking.call("list_sessions", everything=True)
        await asking.call("search_sessions", **{"query": "needle", "in": ["text", "tool_result"], "limit": 50})
        for depth in ("chat", "all"):
            cursor: str | None = None
            for _ in range(200):
                asked = {"session": full.id, "depth": depth, "max_bytes": 200_000, "start": "beginning"}
                opened = await asking.call("open_session", **({**asked, "cursor": cursor} if cursor else asked))
                cursor = opened["next"]
                if cursor is None:
                    break
        return "".join(asking.heard)

    heard = ask(full.store, scenario)
    assert heard.count("[REDACTED:") > full.secrets // 2
    full.check("mcp", heard)
    full.check("mcp", "\n".join(str(text) for text in _strings(heard)))


def _strings(heard: str) -> Iterator[str]:
    """Yield the texts in JSON documents that follow each other."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(heard):
        value, place = decoder.raw_decode(heard, place)
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                yield from map(str, each)
                waiting += each.values()
            elif isinstance(each, list):
                waiting += each
            elif isinstance(each, str):
                yield each


@pytest.mark.parametrize("how", [(), ("--json",), ("--jsonl",), ("--depth", "all", "--branch", "all")], ids=" ".join)
def test_show_redact(full: Poisoned, sessile: Command, how: tuple[str, ...]) -> None:
    """As text and for programs; without the option the secrets are shown."""
    done = sessile("show", full.id, "--redact", *how)
    assert done.code == 0 and "[REDACTED:" in done.out
    full.check("show", done.out + done.err)
    assert len(full.detector.leaks(sessile("show", full.id, *how).out)) > full.secrets // 4


def test_raw_bytes_cannot_be_redacted(full: Poisoned, sessile: Command) -> None:
    """The error names the way out."""
    done = sessile("show", full.id, "--raw", "--redact")
    assert done.code == 2 and "--raw" in done.err and "--jsonl" in done.err


def test_the_report_of_secrets(full: Poisoned, sessile: Command) -> None:
    """Kind, place, length and count are named; no four characters in a row of a secret are."""
    for how in ((), ("--json",)):
        done = sessile("secrets", full.id, *how)
        assert done.code == 1
        full.check("secrets", done.out + done.err)
    narrow = Redactor()
    key = written(SHAPES[11], "report")
    narrow.redact(key.text)
    assert not any(key.text[at : at + 4] in f"{narrow.report}" for at in range(len(key.text) - 3))


def test_the_log_of_a_server(full: Poisoned) -> None:
    """Whatever a record contains, also a traceback."""
    printed: list[str] = []
    handler = servers._Notes(printed.append)
    logger = logging.getLogger("sessile.test_ways_out")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        for _, _, text in combinations(SHARE):
            try:
                raise SessileError(f"cannot read {text}")
            except SessileError:
                logger.exception("failed with %s", text)
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert len(printed) > 50
    full.check("log", "\n".join(printed))
