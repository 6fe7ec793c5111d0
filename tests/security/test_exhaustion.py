"""Memory, disk, time and connections used for a file, a text or an unauthorized client are bounded by the input's size."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
import tracemalloc
import zlib
from itertools import product
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from asgi_driver import ask, scope_of
from sessile.agents.claude.listing import LONGEST, first_prompt, is_prompt, trimmed
from sessile.agents.registry import AGENTS
from sessile.config import Limits
from sessile.core.secret import Secret
from sessile.core.summaries import without_blocks
from sessile.gateway.http.guards import Guarding, guarded
from sessile.gateway.http.problems import Receive, Scope, Send
from sessile.render.html import LANGUAGES, MAX_CODE, SLOW_LANGUAGES, code, markdown
from sessile.storage import packed
from sessile.storage.filesystem import PosixFilesystem

MEBIBYTE = 1 << 20
SECONDS = 5.0  # of CPU time; these inputs once took minutes or hours, and now take milliseconds


def spent(began: float) -> float:
    return time.process_time() - began


# -- archives


def zstd_of_nothing_but_a(mebibytes: int) -> bytes:
    """Return a zstd frame of blocks that each repeat one byte 128 KiB times."""
    blocks = [131_072 << 3 | 1 << 1 for _ in range(8 * mebibytes)]
    blocks[-1] |= 1
    return b"\x28\xb5\x2f\xfd\x00\x38" + b"".join(struct.pack("<I", block)[:3] + b"a" for block in blocks)


@pytest.mark.promise("P25")
def test_an_archive_made_to_burst_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen kilobytes that expand to half a gigabyte are abandoned before that much memory is used."""
    monkeypatch.setattr(packed, "ALWAYS", 8 * MEBIBYTE)
    monkeypatch.setattr(packed, "TIMES", 1)
    path = tmp_path / "rollout.jsonl.zst"
    path.write_bytes(zstd_of_nothing_but_a(512))
    fs = PosixFilesystem()
    tracemalloc.start()
    try:
        rows = packed.open_rows(fs, str(path), AGENTS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    fs.close(rows.fd)
    assert rows.damage is not None and rows.size <= 8 * MEBIBYTE
    assert peak < 100 * MEBIBYTE


@pytest.mark.promise("P26")
@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize(("size", "is_whole"), [(2 * MEBIBYTE, True), (2 * MEBIBYTE + 1, False)])
def test_a_small_archive_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, size: int, is_whole: bool
) -> None:
    """An archive may expand to a fixed size or a multiple of its own size; one byte more is reported as damage."""
    monkeypatch.setattr(packed, "ALWAYS", 2 * MEBIBYTE)
    monkeypatch.setattr(packed, "TIMES", 1)
    pack = zstd.compress if suffix == "zst" else (lambda data: zlib.compress(data, wbits=31))
    path = tmp_path / f"rollout.jsonl.{suffix}"
    path.write_bytes(pack(b"a" * size))
    fs = PosixFilesystem()
    rows = packed.open_rows(fs, str(path), AGENTS)
    fs.close(rows.fd)
    assert (not rows.damage, rows.size <= 2 * MEBIBYTE) == (is_whole, True)
    monkeypatch.setattr(packed, "TIMES", 1 << 20)
    rows = packed.open_rows(fs, str(path), AGENTS)
    fs.close(rows.fd)
    assert (rows.damage, rows.size) == ((), size)


# -- texts


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    "tag", ["<bash-input>", "<command-name>", "<command-name>\r", '<pasted_content id="abcd">\n', "\n</pasted_content>"]
)
@pytest.mark.parametrize("begin", ["", '\n</pasted_content id="abcd">'])
def test_a_prompt_full_of_tags_that_never_end_is_read_at_once(tag: str, begin: str) -> None:
    """A listing reads the first prompt of every file, so this must take linear time."""
    row = {"type": "user", "message": {"content": begin + tag * (4 * MEBIBYTE // len(tag))}}
    line = json.dumps(row, separators=(",", ":")).encode()
    began = time.process_time()
    is_prompt(row)
    first_prompt(line)
    first_prompt(line, "python-sdk")
    assert spent(began) < SECONDS


@pytest.mark.promise("P17")
def test_a_prompt_full_of_pastes_of_all_names_is_read_at_once() -> None:
    """Neither closed nor unclosed paste tags slow down the others."""
    names = [f"{number:04x}" for number in range(1 << 16)]
    text = "".join(f'<pasted_content id="{name}">\nx' for name in names) + '\n</pasted_content id="ffff">' * 1000
    began = time.process_time()
    assert is_prompt({"type": "user", "message": {"content": "see " + text}})
    assert spent(began) < SECONDS


@pytest.mark.promise("P17")
@pytest.mark.parametrize("begin", ["", "</read-files></modified-files>"])
def test_a_summary_full_of_lists_that_never_end_is_read_at_once(begin: str) -> None:
    """A summary comes from a model or a file and is not trusted."""
    text = begin + "<read-files>\n" * (4 * MEBIBYTE // 13)
    began = time.process_time()
    assert without_blocks(text) == text.rstrip()
    assert spent(began) < SECONDS


_PASTED = re.compile(
    r'\n{0,2}<pasted_content id="([0-9a-f]{4})">\n(?:</|(.*?)\n</)pasted_content id="\1">\n{0,2}', re.DOTALL
)
_COMMAND = re.compile(r"<command-name>([^\n\r\u2028\u2029]*?)</command-name>")
_SHELL = re.compile(r"<bash-input>(.*?)</bash-input>", re.DOTALL)
_LISTS = re.compile(r"\n{0,2}<(read-files|modified-files)>\n.*?</\1>", re.DOTALL)
_PASTES = [f'{tag} id="{name}">' for tag in ("<pasted_content", "</pasted_content") for name in ("abcd", "0123")]
_TAGS = ["<command-name>", "</command-name>", "<bash-input>", "</bash-input>", "\r", "y", "<"]
_ENDS = ["<read-files>", "</read-files>", "<modified-files>", "</modified-files>", "a", "<"]


def texts_of(units: list[str], most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*units, "\n", "\n"]), max_size=most).map("".join)


@given(texts_of([*_PASTES, "x"], 7) | texts_of(_TAGS, 9))
def test_a_prompt_is_found_as_the_patterns_of_the_sdk_find_it(text: str) -> None:
    """The result equals that of the SDK's patterns, which take quadratic time."""
    one = trimmed(_PASTED.sub(lambda match: match[2] or "", f"z{text}").replace("\n", " "))
    slash, shell = _COMMAND.search(one), _SHELL.search(one)
    wanted = slash[1] or None if slash else f"! {trimmed(shell[1])}" if shell else one
    row = {"type": "user", "message": {"content": f"z{text}"}}
    assert len(one) <= LONGEST and first_prompt(json.dumps(row, separators=(",", ":")).encode()) == wanted


@given(texts_of(_ENDS, 12))
def test_file_lists_are_found_as_a_pattern_finds_them(text: str) -> None:
    """The result equals that of a pattern, for the file lists after a summary."""
    assert without_blocks(text) == _LISTS.sub("", text).rstrip()


@pytest.mark.promise("P36")
@pytest.mark.parametrize(
    "language", ["systemd", "mcschema", "smithy", "scala", "fancy", "markdown", "md", "rst", "http"]
)
def test_code_is_not_coloured_by_what_may_never_end(language: str) -> None:
    """These lexers take cubic time on crafted input, or highlight parts as another language, so they are not used."""
    assert "<span" not in code("[a]\nx = 1 ; /* y */\n", language)
    began = time.process_time()
    markdown(f"```{language}\n[[{' ' * MAX_CODE}\n```")
    assert spent(began) < SECONDS


@pytest.mark.promise("P36")
@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_a_language_that_is_coloured_takes_no_cube_of_the_length(language: str) -> None:
    """Doubling the length takes at most four times as long, which a few hundred characters show."""
    for begin, unit in product(("", '"', "/*", "<a "), ("\n", " ", "a ", "a\n", "(", "-a")):
        began = time.process_time()
        code((begin + unit * 400)[:400], language)
        assert spent(began) < 1.0, (begin, unit)


@pytest.mark.promise("P36")
@pytest.mark.parametrize("language", sorted(SLOW_LANGUAGES))
def test_what_colours_slowly_is_given_less(language: str) -> None:
    """A crafted block in a slow language takes seconds at most, because its limit is lower."""
    assert "<span" in code("x = 1 // y\n", language) and "<span" not in code("x = 1\n" * (MAX_CODE // 20), language)
    began = time.process_time()
    code("<a " + "a\n" * MAX_CODE, language)
    code("\n" * (MAX_CODE // 4), language)
    assert spent(began) < SECONDS


# -- unauthorized clients

TOKEN = "canary-Abcdefghijklmnopqrstuvwxyz0123456789_-Z"
HOST = ("Host", "127.0.0.1")
BEARER = ("Authorization", f"Bearer {TOKEN}")
JSON = ("Content-Type", "application/json")


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


@pytest.mark.promise("P39")
def test_who_asks_without_the_token_takes_nothing_from_who_has_it() -> None:
    """Requests to open paths neither count towards the rate limit nor occupy the connections of authorized clients."""
    limits = Limits(connections=1, requests_per_second=2, body_seconds=60.0)
    app = guarded(answering, Guarding(Secret(TOKEN), limits, clock=lambda: 0.0))

    async def run() -> list[int]:
        headers = (HOST, JSON, ("Content-Length", "9"))
        slow = [asyncio.create_task(ask(app, scope_of("GET", "/healthz", headers), (60.0,))) for _ in range(20)]
        await asyncio.sleep(0)
        told = [(await ask(app, scope_of("GET", "/healthz", (HOST,)), ())).status for _ in range(20)]
        told += [(await ask(app, scope_of("GET", "/v1/sessions", (HOST, BEARER)), ())).status for _ in range(2)]
        for one in slow:
            one.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return told

    assert asyncio.run(run()) == [200] * 22
