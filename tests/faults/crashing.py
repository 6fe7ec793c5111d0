"""A memory file system that can crash, to test what a kill or a power cut leaves behind.

Rules:
- Synced data survives: content after `sync`, names after `sync_directory`. A file survives only if its name and the names of
  the folders above it do.
- Unsynced data survives as the `CrashModel` allows. Only the caller's random generator decides, so every state can be
  reproduced from its seed.
- A rename is atomic, in one folder or between two. Syncing either folder makes it durable, along with the changes it depends
  on: earlier changes of the same names, and the names of the folders it moves something into. Removing a folder depends on
  every change that emptied it. So a move never loses anything.
- `crash` and `kill` return a new file system and do not change this one: many states can be drawn from one moment.

The callers judge whether a state is good.
"""

from __future__ import annotations

import copy
import enum
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from sessile.storage.memory import Binding, FileNode, FolderNode, MemoryFilesystem, Node, overlay, resize

SECTOR = 512
PAGE = 4096

Names = dict[FolderNode, dict[str, Node]]


class CrashModel(enum.Enum):
    """Which unsynced changes a power cut may lose or reorder."""

    ORDERED = "ordered"
    """Each file keeps a prefix of its unsynced changes, with the last write torn at any byte. Each folder keeps a prefix of its
    unsynced name changes. This is ext4 with `data=ordered`."""

    WEAK = "weak"
    """Each file keeps any subset of the sectors or pages written since the last sync. Gaps read as zeros, and a file may have
    grown without any of its new content. Names behave as in `ORDERED`."""

    ADVERSARIAL = "adversarial"
    """Like `WEAK`, but a lost piece may also hold garbage from any byte on, and changes of different names survive in any
    combination."""


class Write(NamedTuple):
    """An unsynced write."""

    offset: int
    data: bytes


class Resize(NamedTuple):
    """An unsynced truncation or extension."""

    size: int


Change = Write | Resize


@dataclass(slots=True)
class _History:
    """The durable content of a file and its unsynced changes."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)


class _Renaming(NamedTuple):
    """An unsynced atomic change of names, and the numbers of the earlier changes it depends on."""

    number: int
    bindings: tuple[Binding, ...]
    needs: frozenset[int]

    @property
    def folders(self) -> list[FolderNode]:
        return list(dict.fromkeys(binding.folder for binding in self.bindings))


class CrashableFilesystem(MemoryFilesystem):
    """A `MemoryFilesystem` that tracks what was synced, and can be killed or lose power."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock=clock)
        self._histories: defaultdict[FileNode, _History] = defaultdict(_History)
        self._durable_names: defaultdict[FolderNode, dict[str, Node]] = defaultdict(dict)
        self._renamings: list[_Renaming] = []
        self._renamed = 0

    def kill(self) -> CrashableFilesystem:
        """Return the file system after `kill -9`: all content survives, descriptors and locks do not."""
        with self._guard:
            survivor = self._successor()
            survivor._root, survivor._histories, survivor._durable_names, survivor._renamings = copy.deepcopy(
                (self._root, self._histories, self._durable_names, self._renamings)
            )
            return survivor

    def crash(self, rng: Random, model: CrashModel = CrashModel.ORDERED) -> CrashableFilesystem:
        """Return the file system after a power cut, in one of the states that `model` allows."""
        with self._guard:
            names = defaultdict(dict, {folder: dict(names) for folder, names in self._durable_names.items()})
            for renaming in _surviving_renamings(self._renamings, rng, model):
                _apply(renaming, names)
            survivor = self._successor()
            survivor._adopt(self._root, names, lambda file: _surviving_content(self._histories[file], rng, model))
            return survivor

    def drop_unsynced(self, fd: int) -> None:
        """Drop the unsynced changes of an open file, as Linux does after a failed sync.

        As on ext4 and XFS, the pages stay readable but count as clean: later syncs do not write them, and they are gone after a
        power cut.
        """
        with self._guard:
            node = self._opened(fd).node
            if isinstance(node, FileNode):
                self._histories[node].pending.clear()

    # -- recording changes

    def _store(self, file: FileNode, offset: int, data: bytes) -> None:
        self._histories[file].pending.append(Write(offset, bytes(data)))
        super()._store(file, offset, data)

    def _resize(self, file: FileNode, size: int) -> None:
        self._histories[file].pending.append(Resize(size))
        super()._resize(file, size)

    def _rebind(self, *bindings: Binding) -> None:
        self._renamed += 1
        self._renamings.append(_Renaming(self._renamed, bindings, self._needs(bindings)))
        super()._rebind(*bindings)

    def _settle(self, node: Node) -> None:
        if isinstance(node, FileNode):
            history = self._histories[node]
            for change in history.pending:
                _replay(change, history.durable)
            history.pending.clear()
            return
        settled: set[int] = set()
        for renaming in reversed(self._renamings):
            if node in renaming.folders or renaming.number in settled:
                settled |= {renaming.number, *renaming.needs}
        for renaming in self._renamings:
            if renaming.number in settled:
                _apply(renaming, self._durable_names)
        self._renamings = [renaming for renaming in self._renamings if renaming.number not in settled]

    def _needs(self, bindings: tuple[Binding, ...]) -> frozenset[int]:
        """Return the unsynced renamings of the same names, in removed folders, and of the folders that are moved into."""
        slots = {(binding.folder, binding.name) for binding in bindings}
        removed = {binding.folder.names.get(binding.name) for binding in bindings}
        removed -= {binding.node for binding in bindings}
        above: set[Node | None] = set()
        if len({binding.folder for binding in bindings}) > 1:
            folder: FolderNode | None = bindings[-1].folder
            while folder is not None:
                above.add(folder)
                folder = folder.parent
        return frozenset(
            earlier.number
            for earlier in self._renamings
            for binding in earlier.bindings
            if (binding.folder, binding.name) in slots or binding.folder in removed or binding.node in above
        )

    # -- making the surviving file system

    def _successor(self) -> CrashableFilesystem:
        """Return an empty file system that continues this one's counters."""
        survivor = CrashableFilesystem(clock=self._clock)
        survivor._numbers = self._numbers
        survivor._renamed = self._renamed
        return survivor

    def _adopt(self, root: FolderNode, names: Names, content_of: Callable[[FileNode], bytearray]) -> None:
        """Copy everything reachable from `root`, as durable."""
        self._root = FolderNode(root.number, root.modified, links=1)
        files: dict[FileNode, FileNode] = {}
        folders = [(root, self._root)]
        for original, folder in folders:
            for name, node in names[original].items():
                twin: Node
                if isinstance(node, FolderNode):
                    twin = FolderNode(node.number, node.modified, parent=folder)
                    folders.append((node, twin))
                elif node in files:
                    twin = files[node]
                else:
                    twin = files[node] = FileNode(node.number, node.modified, content_of(node))
                    self._histories[twin].durable = bytearray(twin.content)
                twin.links += 1
                folder.names[name] = twin
            self._durable_names[folder] = dict(folder.names)


def _apply(renaming: _Renaming, names: Names) -> None:
    for folder, name, node in renaming.bindings:
        if node is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = node


def _replay(change: Change, content: bytearray) -> None:
    if isinstance(change, Write):
        overlay(content, change.offset, change.data)
    else:
        resize(content, change.size)


def _surviving_renamings(renamings: list[_Renaming], rng: Random, model: CrashModel) -> Iterator[_Renaming]:
    """Choose renamings whose dependencies survive too; a prefix for each folder, unless the model is adversarial."""
    numbers: defaultdict[FolderNode, list[float]] = defaultdict(list)
    for renaming in renamings:
        for folder in renaming.folders:
            numbers[folder].append(renaming.number)
    ends = {folder: rng.choice([*choices, math.inf]) for folder, choices in numbers.items()}
    odds = _odds(rng)
    lost: set[int] = set()
    for renaming in renamings:
        if model is CrashModel.ADVERSARIAL:
            survives = rng.random() < odds
        else:
            survives = all(renaming.number < ends[folder] for folder in renaming.folders)
        if survives and lost.isdisjoint(renaming.needs):
            yield renaming
        else:
            lost.add(renaming.number)
            ends.update(dict.fromkeys(renaming.folders, renaming.number))


def _surviving_content(history: _History, rng: Random, model: CrashModel) -> bytearray:
    content = bytearray(history.durable)
    if model is CrashModel.ORDERED:
        kept = rng.randint(0, len(history.pending))
        for change in history.pending[:kept]:
            _replay(change, content)
        for change in history.pending[kept : kept + 1]:
            if isinstance(change, Write):
                overlay(content, change.offset, change.data[: rng.randrange(len(change.data))])
        return content
    unit, odds, growth = rng.choice((SECTOR, PAGE)), _odds(rng), _odds(rng)
    for change in history.pending:
        if isinstance(change, Resize):
            if rng.random() < odds:
                resize(content, change.size)
            continue
        if rng.random() < growth:
            resize(content, max(len(content), change.offset + len(change.data)))
        for piece in _pieces(change, unit):
            if rng.random() < odds:
                _replay(piece, content)
            elif model is CrashModel.ADVERSARIAL and rng.random() < 0.5:
                cut = rng.randint(0, len(piece.data))
                overlay(content, piece.offset, piece.data[:cut] + rng.randbytes(len(piece.data) - cut))
    return content


def _pieces(write: Write, unit: int) -> Iterator[Write]:
    """Split a write at the boundaries of sectors or pages."""
    position = 0
    while position < len(write.data):
        end = position + unit - (write.offset + position) % unit
        yield Write(write.offset + position, write.data[position:end])
        position = end


def _odds(rng: Random) -> float:
    """Return the survival probability for one state; 0 and 1 are included because most bugs show there."""
    return rng.choice((0.0, 0.5, 0.9, 1.0))
