"""The worktrees of a git repository, asked of git itself.

Rules: outside of a repository nothing is run. A folder within a worktree stands for the same folder in the others. Who has no
git, or one that does not answer in time, is told, and gets none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

_PATIENCE = 2.0  # seconds; git takes a few milliseconds for that
_WORKTREE = b"worktree "


def other_worktrees(folder: str, note: Callable[[str], object]) -> list[str]:
    """The folders in other worktrees that are the same as this one; `note` is told what did not work."""
    here = os.path.realpath(folder)
    if not any(os.path.lexists(os.path.join(parent, ".git")) for parent in _parents(here)):
        return []
    trees = _asked(here, note)
    own = max((tree for tree in trees if here == tree or here.startswith(f"{tree}/")), key=len, default=None)
    if own is None:
        return []
    return [tree + here[len(own) :] for tree in trees if tree != own]


def _parents(folder: str) -> Iterator[str]:
    """A folder and those that it is in."""
    yield folder
    while (parent := os.path.dirname(folder)) != folder:
        yield parent
        folder = parent


def _asked(folder: str, note: Callable[[str], object]) -> Sequence[str]:
    """What git says; a worktree whose folder is gone is still one."""
    import subprocess  # most folders are in no repository, and a listing starts faster without

    command = ["git", "-C", folder, "worktree", "list", "--porcelain"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False)
    except FileNotFoundError:
        note("there is no git here: sessions of other worktrees are left out")
        return ()
    except subprocess.TimeoutExpired:
        note("git did not answer in time: sessions of other worktrees are left out")
        return ()
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        note(f"sessions of other worktrees are left out: git says {said or 'nothing'}")
        return ()
    lines = done.stdout.split(b"\n")
    return [os.fsdecode(line[len(_WORKTREE) :]) for line in lines if line.startswith(_WORKTREE)]
