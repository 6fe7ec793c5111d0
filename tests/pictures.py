"""Draw docs/explanation/pictures from the tables below: `python tests/pictures.py`.

A test compares the files and checks that every module exists. Each picture is a straight line from top to bottom, or
the stack of layers. They are SVG with a title and a description, follow the reader's light or dark theme, and load
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).parents[1] / "docs" / "explanation" / "pictures"

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .module { font: 600 14px ui-monospace, Menlo, Consolas, monospace }
  .small { font-size: 13px; fill: #59636e }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .pure { fill: #ddf4ff; stroke: #54aeff }
  .disk { fill: #fff8c5; stroke: #d4a72c }
  .line { stroke: #59636e; stroke-width: 1.5; fill: none }
  .tip { fill: #59636e }
  .back { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .box { fill: #151b23; stroke: #656c76 }
    .pure { fill: #0c2d4d; stroke: #4493f8 }
    .disk { fill: #3b2f0b; stroke: #d29922 }
    .line { stroke: #9198a1 }
    .tip { fill: #9198a1 }
    .back { fill: #0d1117 }
  }
"""

WIDTH, EDGE = 860, 16
BOX, HEIGHT, GAP = 250, 44, 22


class Step(NamedTuple):
    """A step of a line: a module, its action, and whether it is pure or touches the disk."""

    module: str
    does: str
    and_also: str = ""
    kind: str = "box"


class Line(NamedTuple):
    """A straight line of steps."""

    title: str
    steps: Sequence[Step]


LINES = {
    "append": Line(
        "An append, from a value to a receipt",
        (
            Step("session", "append_message(…): one method for each kind of entry", "takes the session's thread lock"),
            Step(
                "session", "copies the value and sets id, parent and time", "large texts and images go to blobs first"
            ),
            Step("codec", "encodes one line of JSON, as JavaScript writes it", "NaN, infinity: InvalidEntry", "pure"),
            Step("journal", "flock; same file? catch up; has the leaf moved?", "a torn tail gets a newline", "disk"),
            Step("journal", "one write of the whole line; a short write is undone", "disk full: StorageFull", "disk"),
            Step("journal", "one fdatasync for all waiting writers", "an error poisons the handle: SyncFailed", "disk"),
            Step("session", "Receipt: id, position, durability, diverged", "or an error; never neither"),
        ),
    ),
    "resume": Line(
        "A resume, from a folder to what the model sees",
        (
            Step("store", "continue_recent(cwd): the newest session of a folder", "drafts left by a crash come first"),
            Step("store", "detects agent and format version", "other agents' files are opened read-only"),
            Step(
                "reader", "reads the head of the index and the end of the journal", "the index is only a cache", "disk"
            ),
            Step(
                "lines",
                "scans what was appended since the index was saved",
                "every byte is a line or a finding",
                "pure",
            ),
            Step("session", "follows 28-byte rows from the leaf to the last boundary", "a compaction or a reset"),
            Step("reader", "reads and decodes only those bodies", "nothing grows with the session", "disk"),
            Step("context", "builds messages and state: summary, kept range, the rest", "", "pure"),
        ),
    ),
    "turn": Line(
        "A turn, from a request to the last event",
        (
            Step("guards", "check size, rate, host, origin and token", "refused before the body is read"),
            Step("chat", "POST /v1/chat/send: validates the body", ""),
            Step("admission", "key → conversation → session; resets when due", "same idempotency key: same turn"),
            Step("replies", "makes the message durable", "202: the gateway has it", "disk"),
            Step("lanes", "runs one turn at a time per session; others wait", "on a database: a lease"),
            Step("context_window", "builds the request as the provider takes it", "compacts first if it is too long"),
            Step("runners", "the model, a command or the echo answers", "streamed to every listener"),
            Step("replies", "appends the reply and its usage", "killed here: marked interrupted, once", "disk"),
            Step("events", "delivers every entry once, in order", "also after a reconnect"),
            Step("context_window", "writes notes and compacts when due", ""),
        ),
    ),
}

LAYERS = (
    ("cli · gateway · mcp · adapters · aio", "what people and programs use", "box"),
    ("upkeep", "compaction, checks, pruning, repairs", "box"),
    ("store · session · library · transfer · export", "the verbs, each in one place", "box"),
    ("agents", "one package for each agent: its files read, written and resumed", "box"),
    ("storage", "the only layer that touches files, locks and databases", "disk"),
    ("render · vendors", "text, Markdown and HTML; model vendors", "box"),
    ("core", "bytes and values in, values out: no files, clock or randomness", "pure"),
    ("errors", "every error, with a path and a hint", "pure"),
)


def pictures() -> dict[Path, str]:
    """Return the expected pictures."""
    drawn = {name: "\n".join(_line(line)) for name, line in LINES.items()} | {"layers": "\n".join(_layers())}
    return {PICTURES / f"{name}.svg": text + "\n" for name, text in drawn.items()}


def modules() -> Iterator[str]:
    """Return the modules that the pictures name."""
    yield from (step.module for line in LINES.values() for step in line.steps)
    yield from (name for names, _, _ in LAYERS for name in names.split(" · ") if name != "…")


def _line(line: Line) -> Iterator[str]:
    height = EDGE * 2 + len(line.steps) * (HEIGHT + GAP) - GAP
    words = "; then ".join(
        f"{step.module}: {step.does}{', ' + step.and_also if step.and_also else ''}" for step in line.steps
    )
    yield from _begin(height, line.title, words)
    for number, step in enumerate(line.steps):
        top = EDGE + number * (HEIGHT + GAP)
        yield f'  <rect class="{step.kind}" x="{EDGE}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
        yield _text("module", EDGE + BOX / 2, top + HEIGHT / 2 + 5, step.module, "middle")
        place = top + HEIGHT / 2 + (5 if not step.and_also else -3)
        yield _text("", EDGE + BOX + 20, place, step.does)
        if step.and_also:
            yield _text("small", EDGE + BOX + 20, place + 18, step.and_also)
        if number + 1 < len(line.steps):
            yield from _arrow(EDGE + BOX / 2, top + HEIGHT, top + HEIGHT + GAP)
    yield "</svg>"


def _layers() -> Iterator[str]:
    high, gap, wide = 48, 10, 560
    height = EDGE * 2 + len(LAYERS) * (high + gap) - gap
    words = "; ".join(f"{names}: {what}" for names, what, _ in LAYERS)
    yield from _begin(height, "The layers. Each imports only those below it", words)
    for number, (names, what, kind) in enumerate(LAYERS):
        top = EDGE + number * (high + gap)
        yield f'  <rect class="{kind}" x="{EDGE}" y="{top}" width="{wide}" height="{high}" rx="6"/>'
        yield _text("module", EDGE + 16, top + 20, names)
        yield _text("small", EDGE + 16, top + 38, what)
        if kind == "disk":
            left = EDGE + wide + 60
            middle = top + high / 2
            yield f'  <path class="line" d="M{EDGE + wide} {middle} H{left}"/>'
            yield f'  <rect class="disk" x="{left}" y="{top}" width="{WIDTH - EDGE - left}" height="{high}" rx="6"/>'
            yield _text("", left + (WIDTH - EDGE - left) / 2, top + 20, "files · PostgreSQL · S3", "middle")
            yield _text("small", left + (WIDTH - EDGE - left) / 2, top + 38, "or memory, or a failing disk", "middle")
    bottom = EDGE + len(LAYERS) * (high + gap) - gap
    yield from _arrow(EDGE + wide + 30, EDGE, EDGE + 2 * (high + gap) - gap)
    yield _text("small", EDGE + wide + 44, EDGE + high, "imports go down only")
    yield f'  <path class="line" d="M{EDGE + wide + 24} {bottom - 2 * (high + gap) + gap} h6 V{bottom} h-6"/>'
    yield _text("small", EDGE + wide + 44, bottom - high + 6, "pure: the same answer")
    yield _text("small", EDGE + wide + 44, bottom - high + 24, "for the same bytes")
    yield "</svg>"


def _begin(height: float, title: str, words: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title words">'
    )
    yield f'  <title id="title">{escape(title)}</title>'
    yield f'  <desc id="words">{escape(words)}</desc>'
    yield f"  <style>{STYLE}  </style>"
    yield f'  <rect class="back" width="{WIDTH}" height="{height}" rx="8"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor else ""
    return f'  <text{named} x="{x:g}" y="{y:g}"{placed}>{escape(text)}</text>'


def _arrow(x: float, start: float, end: float) -> Iterator[str]:
    yield f'  <path class="line" d="M{x:g} {start:g} V{end - 6:g}"/>'
    yield f'  <path class="tip" d="M{x - 5:g} {end - 8:g} h10 l-5 8 z"/>'


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for path, text in pictures().items():
        path.write_text(text)
