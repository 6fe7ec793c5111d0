"""After any sequence of operations, a session shows the content of its file, and no line is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import assistant, said, user
from figures import measured
from sessile import Session, Store, build_session_context
from sessile.core import large
from sessile.discovery import load_entries_from_file
from sessile.errors import InvalidEntry
from sessions import CWD, append_raw, lines_of, numbered, store_at
from strategies import as_javascript, names, scalars

IMAGE = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}
MARKER = "sessile.leaf"

Lines = list[bytes]


class Run:
    """A session under test, with the lines of its file before the last step."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.store = store_at(root)
        self.session = self.store.create(CWD, publish=True)
        self.foreign = 0
        self.overtaken = False

    @property
    def lines(self) -> Lines:
        return lines_of(self.session.path)

    def pick(self, number: int) -> str | None:
        """Return the id of an entry, or `None` in an empty session."""
        ids = [entry.id for entry in self.session.get_entries()]
        return ids[number % len(ids)] if ids else None

    def step(self, name: str, number: int) -> Lines:
        """Run one operation and return the lines that it may have changed."""
        before = self.lines
        changed = getattr(self, name)(number)
        ours = len(self.lines) > len(before) and name != "garbage"
        self.overtaken = name in OTHERS or (self.overtaken and not ours)
        return changed or []

    # -- appending

    def say(self, number: int) -> None:
        self.session.append_message(user(f"text {number}"))

    def answer(self, number: int) -> None:
        self.session.append_message(assistant(f"answer {number}", model=f"m{number % 3}"))

    def settings(self, number: int) -> None:
        session = self.session
        verbs = (
            lambda: session.append_model_change(f"p/m{number}", (None, "smol")[number % 2]),
            lambda: session.append_thinking_level_change((None, "high")[number % 2]),
            lambda: session.append_mode_change(("none", "plan")[number % 2], {"n": number}),
            lambda: session.append_ttsr_injection([f"r{number}"]),
            lambda: session.append_custom_entry("x", {"f": 1.0, "text": "\ud83d", "n": number}),
        )
        verbs[number % len(verbs)]()

    def batch(self, number: int) -> None:
        messages = (user("q"), assistant("a"))
        self.session.append_many([{"type": "message", "message": m} for m in messages], key=f"k{number % 3}")

    def expect(self, number: int) -> None:
        moved: Any = ("branch", "follow")[number % 2]
        self.session.append_many([{"type": "message", "message": user("x")}], self.pick(number), on_leaf_moved=moved)

    def image(self, number: int) -> None:
        self.session.append_message({"role": "user", "content": [IMAGE, {"type": "text", "text": "t" * number}]})

    def compact(self, number: int) -> None:
        self.session.append_compaction(f"sum {number}", self.pick(number), number)

    def reset(self, number: int) -> None:
        self.session.append_reset_boundary()

    def note(self, number: int) -> None:
        self.session.append_custom_message_entry("c", f"note {number}", display=bool(number % 2))

    def label(self, number: int) -> None:
        if target := self.pick(number):
            self.session.append_label_change(target, (None, f"l{number}")[number % 2])

    def edit(self, number: int) -> None:
        if target := self.pick(number):
            self.session.append_context_edit(target, (None, "edited")[number % 2])

    # -- moving

    def branch(self, number: int) -> None:
        if target := self.pick(number):
            self.session.branch(target, durable=number % 3 == 0)

    def to_root(self, number: int) -> None:
        self.session.reset_leaf(durable=number % 3 == 0)

    def summarize(self, number: int) -> None:
        self.session.branch_with_summary(self.pick(number) if number % 4 else None, f"learned {number}")

    # -- rewriting

    def rename(self, number: int) -> Lines:
        header = self.lines[0]
        self.session.set_session_name(f"name {number}", ("user", "auto")[number % 2])
        return [header]

    def rewrite(self, number: int) -> Lines:
        target = self.pick(number)
        changed = [entry.raw for entry in self.session.get_entries() if entry.id == target]
        self.session.rewrite_entries(lambda entry: {**entry, "n": number} if entry.id == target else None)
        return changed

    # -- other writers

    def elsewhere(self, number: int) -> None:
        """Append from another process with its own handle."""
        self.foreign += 1
        with store_at(self.root, random=numbered(f"other {self.foreign}")).open(self.session.path) as other:
            other.append_message(user(f"other {number}"))

    def pi(self, number: int) -> None:
        """Append an entry below the last line, which may be our marker, as another program does."""
        self.foreign += 1
        records = load_entries_from_file(self.session.path)[1:]
        append_raw(self.session.path, said(f"pi{self.foreign}", records[-1]["id"] if records else None))

    def garbage(self, number: int) -> None:
        append_raw(self.session.path, "not json " + "x" * number)

    def reopen(self, number: int) -> None:
        """Close and reopen: the leaf is the same unless others have appended."""
        leaf = self.session.leaf_id
        self.session.close()
        self.foreign += 1
        self.session = store_at(self.root, random=numbered(f"again {self.foreign}")).open(self.session.path)
        if not self.overtaken:
            assert self.session.leaf_id == leaf


OTHERS = ("elsewhere", "pi")
STEPS = [name for name in vars(Run) if not name.startswith("_") and name not in ("lines", "pick", "step")]


def resolved(store: Store, path: str) -> list[dict[str, Any]]:
    """Return the entries of a file as a session decodes them, with images restored."""
    return [large.resolve(entry, store.blobs.get, lambda _: None) for entry in load_entries_from_file(path)[1:]]


def check_context(run: Run) -> None:
    session = run.session
    entries = resolved(run.store, session.path)
    expected = build_session_context(entries, leaf_id=session.leaf_id)
    assert session.context() == expected
    with Store(run.root).open(session.path, readonly=True) as fresh:
        assert fresh.context(session.leaf_id) == expected
        assert fresh.get_entries() == session.get_entries()
        assert [entry.id for entry in fresh.get_heads()] == [entry.id for entry in session.get_heads()]


def check_lines(before: Lines, after: Lines, changed: Lines) -> None:
    """Assert that all lines are unchanged and in order, except those that the step may change."""
    assert len(after) >= len(before)
    for old, new in zip(before, after, strict=False):
        assert new == old or old in changed


def check_markers(session: Session) -> None:
    """Assert that markers are hidden and that none of our entries is a child of one."""
    records = load_entries_from_file(session.path)[1:]
    markers = {record["id"] for record in records if record.get("customType") == MARKER}
    assert session.leaf_id not in markers
    assert markers.isdisjoint(entry.id for entry in session.get_entries())
    ours = [record for record in records if not record["id"].startswith("pi")]
    assert markers.isdisjoint(record["parentId"] for record in ours)


@pytest.mark.mission("X9")
@pytest.mark.mission("X12")
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), min_size=1, max_size=14))
def test_a_session_shows_what_its_file_says_after_any_steps(steps: list[tuple[str, int]]) -> None:
    """The incremental context equals the one built from the file and that of a new handle; other lines are unchanged."""
    with tempfile.TemporaryDirectory() as root:
        run = Run(root)
        run.session.context()
        for name, number in steps:
            before = run.lines
            changed = run.step(name, number)
            check_lines(before, run.lines, changed)
            check_context(run)
            check_markers(run.session)
        run.session.close()
        assert not list(Path(root).rglob("*.tmp"))


# -- values of any Python type

foreign = st.one_of(
    st.binary(max_size=4),
    st.builds(bytearray, st.binary(max_size=4)),
    st.sets(st.integers(), max_size=2),
    st.frozensets(st.text(max_size=2), max_size=2),
    st.datetimes(),
    st.dates(),
    st.decimals(),
    st.uuids(),
    st.fractions(),
    st.complex_numbers(),
    st.just(float("nan")),
    st.builds(Path, st.just("/x")),
)
any_value: st.SearchStrategy[Any] = st.recursive(
    scalars | scalars | scalars | foreign,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(names, inner, max_size=3)
        | st.dictionaries(names | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.promise("P50")
def test_whatever_append_accepts_comes_back_equal() -> None:
    """Values of any Python type are stored and read back equal, or refused; a refusal changes nothing."""
    counts = {"accepted": 0, "refused": 0, "differences": 0}

    with tempfile.TemporaryDirectory() as root:
        store = store_at(root)
        with store.create(CWD, publish=True) as session:
            session.append_message(user("begin"))

        @given(any_value)
        def check(value: Any) -> None:
            with store.open(session.path) as writer:
                before = Path(session.path).read_bytes()
                try:
                    receipt = writer.append_custom_entry("x", {"value": value})
                except InvalidEntry as error:
                    counts["refused"] += 1
                    assert error.path == session.path
                    assert "data.value" in error.message
                    assert Path(session.path).read_bytes() == before
                    return
                shown = writer.get_entry(receipt.id)
            with store.open(session.path, readonly=True) as reader:
                stored = reader.get_entry(receipt.id)
            assert shown is not None and stored is not None
            counts["accepted"] += 1
            equal = (
                as_javascript(stored["data"]["value"]) == as_javascript(value) == as_javascript(shown["data"]["value"])
            )
            counts["differences"] += not equal
            assert equal

        check()
    assert counts["accepted"] and counts["refused"]
    measured("P50", "values of any type appended and read back", **counts)
