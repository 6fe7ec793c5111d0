"""Rig R8: compare a store with a model of lists and dicts, in any order of verbs that Hypothesis generates.

The model knows what every session must hold and the leaf of every handle. Several handles may be open on one session, other
programs append to it without the lock, processes are killed and the power fails.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from faults.crashing import CrashableFilesystem, CrashModel
from faults.ledger import CWD, OTHER, message, store_on, text_of
from figures import measured
from sessile import Receipt, Session
from sessile.errors import SessileError, SessionBusy, SessionNotFound
from sessile.storage.drafts import draft_path, published_path
from sessile.upkeep.check import check, repair

ROOT = "/store"
KINDS = ["model", "thinking", "custom", "mode", "compaction", "reset", "shown", "init", "rules", "edit"]
NUMBERS = st.integers(min_value=0, max_value=10_000)


@dataclass
class Modelled:
    """The expected state of a session."""

    id: str
    cwd: str
    path: str
    parents: dict[str, str | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    title: str | None = None
    resting: str | None = None  # the leaf after reopening
    lines: int = 0  # number of appends by any writer
    rewritten: int = 0
    unsynced: set[str] = field(default_factory=set)
    cut: bool = False  # the power failed while it was in the trash
    draft: bool = False
    talked: bool = False
    deleted: str | None = None

    def append(self, entry_id: str, parent_id: str | None, text: str) -> None:
        self.parents[entry_id] = parent_id
        self.texts[entry_id] = text
        self.resting = entry_id
        self.lines += 1

    def children(self, entry_id: str | None) -> list[str]:
        return [child for child, parent in self.parents.items() if parent == entry_id]


@dataclass
class Handle:
    """An open Session object, its leaf, and the state of the session at its last write."""

    session: Session
    model: Modelled
    leaf: str | None
    seen: int
    rewritten: int
    mine: set[str] = field(default_factory=set)

    @property
    def alone(self) -> bool:
        return (self.seen, self.rewritten) == (self.model.lines, self.model.rewritten)

    @property
    def fresh(self) -> bool:
        """Return whether the file was not replaced since the handle opened it: a read-only handle keeps the old one."""
        return self.rewritten == self.model.rewritten

    def wrote(self) -> None:
        self.seen, self.rewritten = self.model.lines, self.model.rewritten


class StoreMachine(RuleBasedStateMachine):
    """Every rule changes the store and the model; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.fs = CrashableFilesystem()
        self.fs.mkdir(ROOT)
        self.fs.sync_directory("/")
        self.generation = 0
        self.begin()
        self.models: dict[str, Modelled] = {}
        self.counter = 0

    def begin(self) -> None:
        """Start a new process with an empty state."""
        self.generation += 1
        self.store = store_on(self.fs, ROOT, self.generation)
        self.handles: list[Handle] = []

    def text(self) -> str:
        self.counter += 1
        return f"text {self.counter}"

    def handle(self, number: int) -> Handle:
        return self.handles[number % len(self.handles)]

    def public(self) -> list[Modelled]:
        return [model for model in self.models.values() if not model.draft and model.deleted is None]

    def drafts(self) -> list[Modelled]:
        """Return the drafts that listings show: one without entries is removed when it is closed."""
        return [m for m in self.models.values() if m.draft and m.deleted is None and m.parents]

    def held(self) -> set[str]:
        return {handle.model.id for handle in self.handles}

    def opened(self, session: Session, model: Modelled) -> None:
        assert session.id == model.id
        assert session.leaf_id == model.resting
        self.handles.append(Handle(session, model, model.resting, model.lines, model.rewritten))

    def wrote(self, handle: Handle, receipt: Receipt, text: str) -> None:
        """Apply a receipt to the model, after checking what it reports about other writers."""
        model = handle.model
        siblings = model.children(handle.leaf)
        assert receipt.parent_id == handle.leaf
        assert not receipt.repeated
        assert not receipt.diverged or siblings
        if handle.alone:
            assert not receipt.diverged
        model.append(receipt.id, handle.leaf, text)
        model.unsynced.clear()
        handle.leaf = receipt.id
        handle.mine.add(receipt.id)
        handle.wrote()

    def recover_drafts(self, cwd: str) -> None:
        """Publish the project's drafts that have messages and no holder, as a new session does."""
        for model in self.drafts():
            if model.cwd == cwd and model.talked and model.id not in self.held():
                model.draft = False

    def close(self, handle: Handle) -> None:
        model = handle.model
        handle.session.close()
        self.handles.remove(handle)
        moved = handle.leaf != model.resting
        if handle.alone and moved:
            model.resting = handle.leaf
            model.lines += 1
        elif moved and model.deleted is None and (model.parents or not model.draft):
            # Other writers appended, or the file was rewritten: the marker may be written or not.
            session = self.store.open(model.path, readonly=True)
            assert session.leaf_id in (handle.leaf, model.resting)
            model.lines += session.leaf_id != model.resting
            model.resting = session.leaf_id
            session.close()
        if model.draft and not model.parents:
            del self.models[model.id]  # an empty draft may stay in the folder, but is not listed

    # -- creating and opening

    @precondition(lambda self: len(self.handles) < 6)
    @rule(cwd=st.sampled_from([CWD, OTHER]), publish=st.booleans())
    def create(self, cwd: str, publish: bool) -> None:
        self.recover_drafts(cwd)
        session = self.store.create(cwd, publish=publish)
        assert session.id not in self.models
        assert session.is_draft != publish
        model = self.models[session.id] = Modelled(session.id, cwd, published_path(session.path), draft=not publish)
        self.opened(session, model)

    @precondition(lambda self: len(self.handles) < 6)
    @rule(cwd=st.sampled_from([CWD, OTHER]))
    def continue_recent(self, cwd: str) -> None:
        self.recover_drafts(cwd)
        here = [model for model in self.public() if model.cwd == cwd]
        session = self.store.continue_recent(cwd)
        assert session.is_draft == (not here)
        if not here:
            self.models[session.id] = Modelled(session.id, cwd, published_path(session.path), draft=True)
        assert self.models[session.id].cwd == cwd
        self.opened(session, self.models[session.id])

    @precondition(lambda self: len(self.handles) < 6 and self.public())
    @rule(number=NUMBERS, by_path=st.booleans())
    def second_handle(self, number: int, by_path: bool) -> None:
        model = self.public()[number % len(self.public())]
        self.opened(self.store.open(model.path if by_path else model.id), model)

    @precondition(lambda self: len(self.handles) < 6 and self.drafts())
    @rule(number=NUMBERS, how=st.sampled_from(["id", "path", "published path"]))
    def open_draft(self, number: int, how: str) -> None:
        model = self.drafts()[number % len(self.drafts())]
        ref = {"id": model.id, "path": draft_path(model.path), "published path": model.path}[how]
        if model.id in self.held():
            with pytest.raises(SessionBusy):
                self.store.open(ref)
        else:
            model.draft = False
            self.opened(self.store.open(ref), model)

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def close_one(self, number: int) -> None:
        self.close(self.handle(number))

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def reopen(self, number: int) -> None:
        handle = self.handle(number)
        handle.session.reopen()
        handle.leaf = handle.model.resting
        handle.wrote()

    # -- appending

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, role=st.sampled_from(["user", "assistant"]))
    def say(self, number: int, role: str) -> None:
        handle, text = self.handle(number), self.text()
        self.wrote(handle, handle.session.append_message(message(text, role)), text)
        handle.model.talked = True
        if role == "assistant":
            handle.model.draft = False

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, kind=st.sampled_from(KINDS))
    def append_other(self, number: int, kind: str) -> None:
        handle = self.handle(number)
        session = handle.session
        if kind == "model":
            receipt, text = session.append_model_change("p/m"), "model_change"
        elif kind == "thinking":
            receipt, text = session.append_thinking_level_change("high"), "thinking_level_change"
        elif kind == "custom":
            receipt, text = session.append_custom_entry("note", {"n": number}), "custom"
        elif kind == "mode":
            receipt, text = session.append_mode_change("plan"), "mode_change"
        elif kind == "compaction":
            receipt, text = session.append_compaction("short", handle.leaf, 100), "compaction"
            handle.model.talked = True
        elif kind == "shown":
            receipt, text = session.append_custom_message_entry("note", "shown"), "custom_message"
            handle.model.talked = True
        elif kind == "init":
            receipt, text = session.append_session_init("prompt", "task", ["read"]), "session_init"
        elif kind == "rules":
            receipt, text = session.append_ttsr_injection(["a rule"]), "ttsr_injection"
        elif kind == "edit" and handle.leaf is not None and handle.fresh:
            receipt, text = session.append_context_edit(handle.leaf, None), "context_edit"
        else:
            receipt, text = session.append_reset_boundary(), "reset_boundary"
        self.wrote(handle, receipt, text)

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, key=st.sampled_from(["a", "b"]))
    def append_once(self, number: int, key: str) -> None:
        handle = self.handle(number)
        model = handle.model
        text = f"once {key} in {model.id}"
        payload = {"type": "message", "message": message(text)}
        (receipt,) = handle.session.append_many([payload], key=key)
        assert receipt.repeated == (receipt.id in model.parents)
        if not receipt.repeated:
            self.wrote(handle, receipt, text)
            model.talked = True
        assert list(model.texts.values()).count(text) == 1

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, policy=st.sampled_from(["follow", "fail"]))
    def append_by_policy(self, number: int, policy: str) -> None:
        handle, text = self.handle(number), self.text()
        payload = {"type": "message", "message": message(text)}
        before = handle.model.children(handle.leaf)
        try:
            (receipt,) = handle.session.append_many([payload], on_leaf_moved=policy)  # type: ignore[arg-type]
        except SessileError:
            assert policy == "fail"
            assert before
            return
        assert not receipt.diverged
        if receipt.parent_id != handle.leaf:
            assert policy == "follow"
            assert before
            handle.leaf = receipt.parent_id
            handle.seen = -1
        self.wrote(handle, receipt, text)
        handle.model.talked = True

    @precondition(lambda self: self.public())
    @rule(number=NUMBERS, torn=st.booleans())
    def foreign_append(self, number: int, torn: bool) -> None:
        """Another program appends a line or a part of one."""
        model = self.public()[number % len(self.public())]
        text = self.text()
        entry_id = f"foreign-{self.counter}"
        parent = model.resting
        entry = {"type": "message", "id": entry_id, "parentId": parent, "message": message(text)}
        line = json.dumps(entry).encode() + b"\n"
        fd = self.fs.open(model.path, os.O_RDWR | os.O_APPEND)
        size = self.fs.fstat(fd).st_size
        if self.fs.read(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        self.fs.write(fd, line[: len(line) // 2] if torn else line)
        self.fs.close(fd)
        if torn:
            model.lines += 1
        else:
            model.append(entry_id, parent, text)
            model.unsynced.add(entry_id)

    # -- the leaf, labels, names

    @precondition(lambda self: any(handle.model.parents for handle in self.handles))
    @rule(number=NUMBERS, place=NUMBERS, durable=st.booleans())
    def branch(self, number: int, place: int, durable: bool) -> None:
        handle = self.handle(number)
        model = handle.model
        if model.parents and handle.fresh:
            target = list(model.parents)[place % len(model.parents)]
            alone, resting = handle.alone, model.resting
            handle.session.branch(target, durable=durable)
            handle.leaf = target
            if durable and alone and target != resting:
                model.resting = target
                model.lines += 1
                model.unsynced.clear()
                handle.wrote()
            elif durable:
                self.reconcile_resting(handle)

    def reconcile_resting(self, handle: Handle) -> None:
        """After other writers appended, the leaf may be stored or not: take over which."""
        model = handle.model
        session = self.store.open(handle.session.path, readonly=True)
        assert session.leaf_id in (handle.leaf, model.resting)
        if session.leaf_id != model.resting:
            model.resting = session.leaf_id
            model.lines += 1
            handle.wrote()
        session.close()

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def reset_leaf(self, number: int) -> None:
        handle = self.handle(number)
        handle.session.reset_leaf()
        handle.leaf = None

    @precondition(lambda self: any(handle.model.parents for handle in self.handles))
    @rule(number=NUMBERS, place=NUMBERS, label=st.sampled_from(["keep", "todo", None]))
    def label(self, number: int, place: int, label: str | None) -> None:
        handle = self.handle(number)
        model = handle.model
        if model.parents and handle.fresh:
            target = list(model.parents)[place % len(model.parents)]
            self.wrote(handle, handle.session.append_label_change(target, label), "label")
            model.labels.pop(target, None)
            if label is not None:
                model.labels[target] = label

    @precondition(lambda self: any(handle.model.parents for handle in self.handles))
    @rule(number=NUMBERS, place=NUMBERS)
    def branch_with_summary(self, number: int, place: int) -> None:
        handle = self.handle(number)
        model = handle.model
        if model.parents and handle.fresh:
            handle.leaf = list(model.parents)[place % len(model.parents)]
            receipt = handle.session.branch_with_summary(handle.leaf, "what was learned")
            model.append(receipt.id, handle.leaf, "branch_summary")
            model.unsynced.clear()
            model.talked = True
            handle.leaf = receipt.id
            handle.wrote()

    @precondition(lambda self: any(handle.model.parents for handle in self.handles))
    @rule(number=NUMBERS, place=NUMBERS)
    def rewrite(self, number: int, place: int) -> None:
        handle = self.handle(number)
        model = handle.model
        said = [entry_id for entry_id, text in model.texts.items() if text.startswith("text ")]
        if said and handle.fresh:
            target, text = said[place % len(said)], self.text()
            handle.session.rewrite_entries(
                lambda entry: {**entry.body, "message": message(text)} if entry.id == target else None
            )
            model.texts[target] = text
            model.unsynced.clear()
            model.rewritten += 1
            handle.rewritten = model.rewritten

    @precondition(lambda self: self.public())
    @rule(
        number=NUMBERS, garbage=st.sampled_from([b"\0\0\0\n", b"garbage\n", b'{"type":"message","id":"half', b"\xff\n"])
    )
    def damage(self, number: int, garbage: bytes) -> None:
        """Write bytes that are not an entry into the file."""
        model = self.public()[number % len(self.public())]
        fd = self.fs.open(model.path, os.O_RDWR | os.O_APPEND)
        self.fs.write(fd, b"\n" + garbage)
        self.fs.close(fd)
        model.lines += 1

    @precondition(lambda self: self.public())
    @rule(number=NUMBERS)
    def repair(self, number: int) -> None:
        model = self.public()[number % len(self.public())]
        done = repair(self.store, model.path)
        assert done.kept_entries >= len(model.parents)
        if done.original is not None:
            model.rewritten += 1
            model.unsynced.clear()
        assert check(self.store, model.path).ok

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, cwd=st.sampled_from([CWD, OTHER]))
    def move(self, number: int, cwd: str) -> None:
        handle = self.handle(number)
        model = handle.model
        if handle.fresh and cwd != model.cwd and [h.model for h in self.handles].count(model) == 1:
            handle.session.move_to(cwd)
            model.cwd, model.path = cwd, published_path(handle.session.path)
            model.rewritten += 1
            model.unsynced.clear()
            handle.rewritten = model.rewritten

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, name=st.sampled_from(["Plan", "Later"]))
    def name(self, number: int, name: str) -> None:
        handle = self.handle(number)
        model = handle.model
        parent = handle.leaf
        assert handle.session.set_session_name(name)
        model.title = name
        entry_id = handle.session.leaf_id
        assert entry_id is not None
        model.append(entry_id, parent, "session_info")
        model.unsynced.clear()
        model.rewritten += 1
        handle.leaf = entry_id
        handle.wrote()

    # -- copies, the trash

    @precondition(lambda self: 0 < len(self.handles) < 6)
    @rule(number=NUMBERS)
    def fork(self, number: int) -> None:
        handle = self.handle(number)
        source = handle.model
        if not handle.fresh:
            return
        session = handle.session.fork()
        assert session.id not in self.models
        model = Modelled(session.id, source.cwd, session.path, title=source.title, talked=source.talked)
        model.parents, model.texts, model.labels = dict(source.parents), dict(source.texts), dict(source.labels)
        model.resting = source.resting
        self.models[session.id] = model
        assert session.leaf_id == handle.leaf
        self.handles.append(Handle(session, model, handle.leaf, model.lines, model.rewritten))

    @precondition(lambda self: 0 < len(self.handles) < 6)
    @rule(number=NUMBERS, place=NUMBERS)
    def branch_off(self, number: int, place: int) -> None:
        handle = self.handle(number)
        source = handle.model
        if source.parents and handle.fresh:
            target = list(source.parents)[place % len(source.parents)]
            path = [entry.id for entry in handle.session.get_branch(target)]
            session = handle.session.create_branched_session(target)
            entries = session.get_entries()
            kept = [entry.id for entry in entries if entry.id in source.texts]
            assert kept == [entry_id for entry_id in path if source.texts[entry_id] != "label"]
            assert all(entry.type == "label" for entry in entries if entry.id not in source.texts)
            names = [entry["name"] for entry in entries if entry.type == "session_info"]
            title = names[-1] if names else source.title
            model = Modelled(session.id, source.cwd, session.path, title=title, talked=source.talked)
            for entry in entries:
                model.append(entry.id, entry.parent_id, text_of(entry))
            model.labels = {key: value for key, value in source.labels.items() if key in kept}
            self.models[session.id] = model
            self.opened(session, model)

    @precondition(lambda self: self.drafts())
    @rule(number=NUMBERS)
    def delete_draft(self, number: int) -> None:
        model = self.drafts()[number % len(self.drafts())]
        if model.id in self.held():
            with pytest.raises(SessionBusy):
                self.store.delete(model.id)
        else:
            model.deleted = self.store.delete(model.id).token

    @precondition(lambda self: self.public())
    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        model = self.public()[number % len(self.public())]
        model.deleted = self.store.delete(model.id).token
        for handle in [handle for handle in self.handles if handle.model is model]:
            for _ in range(2):
                with pytest.raises(SessionNotFound):
                    handle.session.append_message(message("nowhere"))
            with pytest.raises(SessionNotFound):
                handle.session.close()
            self.handles.remove(handle)

    @precondition(lambda self: any(model.deleted for model in self.models.values()))
    @rule(number=NUMBERS)
    def undo(self, number: int) -> None:
        deleted = [model for model in self.models.values() if model.deleted]
        model = deleted[number % len(deleted)]
        assert self.store.undo(model.deleted or "").token == model.deleted
        model.deleted = None
        if model.cut:
            self.forget_unsynced(model)

    # -- kills and power cuts

    @rule(seed=NUMBERS, how=st.sampled_from(["kill", *CrashModel]))
    def crash(self, seed: int, how: str | CrashModel) -> None:
        held = {handle.model.id for handle in self.handles}
        self.fs = self.fs.crash(Random(seed), how) if isinstance(how, CrashModel) else self.fs.kill()
        self.begin()
        for model in list(self.models.values()):
            if model.draft and not model.parents:
                del self.models[model.id]
            elif model.unsynced and model.deleted:
                model.cut = True  # the surviving entries are read when it is restored
            elif model.unsynced:
                self.forget_unsynced(model)
            elif model.id in held:
                model.lines += 1

    def forget_unsynced(self, model: Modelled) -> None:
        """Forget the entries of other programs that a power cut has removed."""
        session = self.store.open(model.path, readonly=True)
        present = {entry.id for entry in session.get_entries()}
        for entry_id in model.unsynced - present:
            del model.parents[entry_id], model.texts[entry_id]
        model.unsynced &= present
        model.cut = False
        model.resting = session.leaf_id
        session.close()

    # -- what must hold after every step

    @invariant()
    def steps_are_counted(self) -> None:
        STEPS.append(len(self.models))

    @invariant()
    def listings_show_exactly_what_is_there(self) -> None:
        shown = {info.id: info.draft for info in self.store.list_all()}
        assert shown == {model.id: model.draft for model in (*self.public(), *self.drafts())}
        assert sorted(deletion.token for deletion in self.store.deletions()) == sorted(
            model.deleted for model in self.models.values() if model.deleted
        )

    @invariant()
    def files_hold_what_the_model_holds(self) -> None:
        for model in (*self.public(), *self.drafts()):
            session = self.store.open(model.path, readonly=True)
            assert session.is_draft == model.draft
            self.compare(session, model)
            assert session.leaf_id == model.resting
            session.close()

    @invariant()
    def handles_show_what_the_files_hold(self) -> None:
        for handle in self.handles:
            assert handle.session.leaf_id == handle.leaf
            if not handle.fresh:
                continue
            self.compare(handle.session, handle.model)
            assert handle.session.is_draft == handle.model.draft
            path = [entry.id for entry in handle.session.get_branch()]
            assert path == self.path(handle.model, handle.leaf)

    def compare(self, session: Session, model: Modelled) -> None:
        assert session.id == model.id
        assert {entry.id: entry.parent_id for entry in session.get_entries()} == model.parents
        assert {entry.id: text_of(entry) for entry in session.get_entries()} == model.texts
        assert session.title == model.title
        for entry_id in model.parents:
            assert session.get_label(entry_id) == model.labels.get(entry_id)
        heads = {entry.id for entry in session.get_heads()}
        assert heads == model.parents.keys() - set(model.parents.values())

    def path(self, model: Modelled, entry_id: str | None) -> list[str]:
        path: list[str] = []
        while entry_id is not None and entry_id in model.parents:
            path.insert(0, entry_id)
            entry_id = model.parents[entry_id]
        return path


STEPS: list[int] = []  # number of sessions after each step


def run(examples: int, steps: int) -> None:
    STEPS.clear()
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=checks,
        ),
    )
    for promise in ("P15", "P22"):
        measured(promise, "a store against its model", steps=len(STEPS), differences=0)


@pytest.mark.promise("P22")
@pytest.mark.promise("P15")
def test_a_store_behaves_like_its_model() -> None:
    """After any sequence of verbs, every session holds what was appended to it and nothing else."""
    run(examples=15, steps=30)


@pytest.mark.promise("P22")
@pytest.mark.promise("P15")
@pytest.mark.long
def test_a_store_behaves_like_its_model_for_long() -> None:
    """The long form has more and longer runs."""
    run(examples=600, steps=60)
