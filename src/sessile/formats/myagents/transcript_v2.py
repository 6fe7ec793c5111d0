"""Transcripts of later MyAgents versions: a log of operations, of which the committed prefix is read. They are never written.

The first line is a header; each other one is a batch with the SHA-256 of its exact bytes. Batches follow each other by
revision; a baseline counts only when its last line is there. Unlike everywhere else nothing behind a bad line is read: what
comes later would change messages that are not known. From there on all is one finding.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sessile.core.codec import decode, encode_plain
from sessile.core.lines import Finding
from sessile.core.plain import plain
from sessile.formats.myagents.messages import Cut, Item, Row, cut_lines, encode_row
from sessile.formats.myagents.operations import Projection
from sessile.formats.myagents.types import Json

_BATCH = b'{"batch":'
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{64})"\}\s*\Z')
_VERSION = 2


def read_v2(chunks: Iterable[bytes], size: int) -> Iterator[Item]:
    """The messages of a transcript as the rows that the versions before would have, and what is wrong with it."""
    lines = cut_lines(chunks)
    log = _Log()
    damage = None
    for line in lines:
        try:
            log.add(line)
        except ValueError as error:
            code = "torn_tail" if line.torn else "damaged_transcript"
            damage = Finding(code, line.offset, size - line.offset, f"nothing is read from here on: {error}")
            break
    if damage is None and log.waits_for_baseline:
        damage = Finding("damaged_transcript", 0, 0, "the baseline is not complete")
    offset = 0
    for message in log.messages():
        raw = encode_row(message)
        yield Row(offset, raw)
        offset += len(raw) + 1
    if damage is not None:
        yield damage


class _Log:
    """The committed batches so far."""

    def __init__(self) -> None:
        self._header: Json | None = None
        self._revision = 0
        self._baseline: list[Json] = []
        self.waits_for_baseline = False
        self._projection = Projection()

    def add(self, line: Cut) -> None:
        """Take one more line; raises ValueError if it is not the next one."""
        if line.raw is None:
            raise ValueError("a line that is too long")
        if line.torn:
            raise ValueError("a line that is not complete")
        if self._header is None:
            self._begin(decode(line.raw))
            return
        batch = _batch_in(line.raw)
        operations = batch.get("operations")
        if not isinstance(operations, list):
            raise ValueError("a batch without operations")
        if batch.get("mode") == "baseline":
            self._add_baseline(batch, operations)
            return
        first, last = batch.get("fromRevision"), batch.get("revision")
        if self.waits_for_baseline:
            raise ValueError("a batch before the end of the baseline")
        if first != self._revision + 1 or not isinstance(last, int) or last < first:
            raise ValueError(f"revision {first} does not follow {self._revision}")
        self._projection.apply(operations)
        self._revision = last

    def _begin(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("kind") != "session-transcript":
            raise ValueError("this is no transcript")
        if header.get("version") != _VERSION or not isinstance(header.get("baseRevision"), int):
            raise ValueError(f"version {header.get('version')!r} is not known")
        self._header = header
        self._revision = header["baseRevision"]
        self.waits_for_baseline = header.get("baseline") is True

    def _add_baseline(self, batch: Json, operations: list[Json]) -> None:
        if not self.waits_for_baseline or batch.get("fromRevision") != 0 or batch.get("revision") != self._revision:
            raise ValueError("a baseline that does not belong here")
        self._baseline.extend(operations)
        if batch.get("baselineEnd"):
            self._projection.apply(self._baseline)
            self._baseline = []
            self.waits_for_baseline = False

    def messages(self) -> Iterator[Json]:
        """The messages as they are stored otherwise; what a turn used is told by its last answer."""
        told = {turn.get("rootUserMessageId"): turn for turn in self._projection.turns.values()}
        messages = list(self._projection.messages.values())
        turn: Json | None = None
        for at, message in enumerate(messages):
            turn = told.get(message["id"]) if message.get("role") == "user" else turn
            ends = at + 1 == len(messages) or messages[at + 1].get("role") == "user"
            extra = {name: turn[name] for name in ("usage", "durationMs") if turn and name in turn}
            spoken = extra if ends and message.get("role") == "assistant" else {}
            yield spoken | message | {"content": _stored(message.get("content"))}


def _batch_in(raw: bytes) -> Json:
    """The batch of a line whose checksum is right; its bytes are never written anew to verify them."""
    match = _CHECKSUM.search(raw)
    if match is None or not raw.startswith(_BATCH):
        raise ValueError("a line without a batch and its checksum")
    body = raw[len(_BATCH) : match.start()]
    if hashlib.sha256(body).hexdigest().encode("ascii") != match.group(1):
        raise ValueError("a batch that does not match its checksum")
    batch = decode(body)
    if not isinstance(batch, dict):
        raise ValueError("a batch that is not an object")
    return batch


def _stored(content: Any) -> Any:
    """Content as the versions before store it."""
    if not isinstance(content, list):
        return content
    return encode_plain(plain([_with_input(block) for block in content]).value).decode("utf-8")


def _with_input(block: Any) -> Any:
    """A block whose tool has all of its input as text, with that as a value."""
    tool = block.get("tool") if isinstance(block, dict) else None
    if (
        not isinstance(tool, dict)
        or tool.get("inputComplete") is not True
        or not isinstance(tool.get("inputJson"), str)
    ):
        return block
    try:
        given = decode(tool["inputJson"].encode("utf-8", "surrogatepass"))
    except ValueError:
        return block  # the text itself stays readable
    return block | {"tool": tool | {"input": given}}
