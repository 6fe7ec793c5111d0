"""Names and paths: the folders of a store, names of files, ids of terminals.

    <root>/sessions/--<cwd>--/<timestamp>_<session id>.jsonl     beside it, without `.jsonl`, the artifacts folder
    <root>/sessions/--<cwd>--/<timestamp>_<session id>.draft     the same session before the first answer
    <root>/blobs/<sha256>    <root>/terminal-sessions/<terminal>    <root>/history.db
    <root>/originals/    <root>/trash/    <root>/cache/
    <root>/kept/<agent>/     copies of other agents' sessions, with the same paths as below the agent's sessions folder

Names are computed here and nowhere else. Nothing is created or read; the environment is an argument.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from sessile.core.ids import check_session_id, sha256
from sessile.errors import Invalid, InvalidId

JOURNAL = ".jsonl"
GZIP = ".gz"  # after .jsonl: MyAgents' archives
ZSTD = ".zst"  # after .jsonl: rollouts that Codex has not used for a week
LEGACY = ".json"  # MyAgents' sessions before JSONL
LIST = "sessions.json"  # where MyAgents and gateways list their sessions
NAMES = "session_index.jsonl"  # where Codex writes the names of its sessions
ROLLOUT = (
    "rollout-"  # how the names of Codex's files start; one that continues another has `_` and a second id at the end
)
DRAFT = ".draft"  # must not end in .jsonl: the pi family lists every such name, even dot files

_SEPARATORS = re.compile(r"[/\\:\ud800-\udc7f\udd00-\udfff]")  # also lone surrogates, which no file system stores
_NOT_STAMP = re.compile(r"[^0-9A-Za-z+-]")
_MAX_NAME = 255
_MAX_STAMP = 40
_TERMINALS = (
    ("KITTY_WINDOW_ID", "kitty"),
    ("TMUX_PANE", "tmux"),
    ("TERM_SESSION_ID", "apple"),
    ("WT_SESSION", "wt"),
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._%:-]")
_AGENTS_HOMES = ("/.pi/agent", "/.omp/agent", "/.xcsh/agent")


def can_be_named(text: str) -> bool:
    """Return whether text is valid as a name or path of a file."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def encode_cwd(cwd: str) -> str:
    """Return the name of the folder for the sessions of a project."""
    if "\0" in cwd or not cwd:
        raise InvalidId(f"invalid working directory {cwd!r}")
    relative = cwd[1:] if cwd[0] in "/\\" else cwd
    name = f"--{_SEPARATORS.sub('-', relative)}--"
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _MAX_NAME:
        # The pi family fails on such a folder. The hash distinguishes long paths with the same start.
        start = encoded[:200].decode("utf-8", "ignore")
        name = f"{start}-{sha256(encoded).hexdigest()[:16]}--"
    return name


def folder_names(cwd: str, home: str | None, temp: str | None) -> list[str]:
    """Return every name that agents of the pi family use for the sessions of a project, ours first."""
    names = [encode_cwd(cwd)]
    for base, prefix in ((home, "-"), (temp, "-tmp")):
        if base is None:
            continue
        if cwd == base:
            names.append(prefix)
        elif cwd.startswith(base.rstrip("/") + "/"):
            relative = _SEPARATORS.sub("-", cwd[len(base.rstrip("/")) + 1 :])
            names.append(f"{prefix.rstrip('-')}-{relative}")
    return names


def file_name(timestamp: str, session_id: str) -> str:
    """Return the name of a session file, from the header's timestamp and id. Unsafe characters become dashes."""
    stamp = _NOT_STAMP.sub("-", timestamp[:_MAX_STAMP])
    return f"{stamp}_{check_session_id(session_id)}{JOURNAL}"


def artifacts_of(path: str) -> str:
    """Return the folder for files that tools and sub-agents of a session write."""
    return path.removesuffix(JOURNAL).removesuffix(DRAFT) if path.endswith((JOURNAL, DRAFT)) else path + ".artifacts"


class Layout(msgspec.Struct, frozen=True):
    """The paths below one root."""

    root: str
    cache: str

    def __post_init__(self) -> None:
        if not posixpath.isabs(self.root):
            raise Invalid(f"the root must be an absolute path, not {self.root!r}")

    @property
    def sessions(self) -> str:
        return f"{self.root}/sessions"

    @property
    def blobs(self) -> str:
        return f"{self.root}/blobs"

    @property
    def trash(self) -> str:
        return f"{self.root}/trash"

    @property
    def originals(self) -> str:
        return f"{self.root}/originals"

    @property
    def kept(self) -> str:
        return f"{self.root}/kept"

    @property
    def history(self) -> str:
        return f"{self.root}/history.db"

    def folder(self, cwd: str) -> str:
        return f"{self.sessions}/{encode_cwd(cwd)}"

    def breadcrumb(self, terminal: str) -> str:
        return f"{self.root}/terminal-sessions/{_UNSAFE.sub('-', terminal).lstrip('.') or '-'}"

    def index(self, path: str) -> str:
        """Return the cache file for the index of a journal."""
        digest = sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
        return f"{self.cache}/index/{digest[:2]}/{digest[2:32]}"

    @property
    def is_agents(self) -> bool:
        """Whether the root is the home of a program of the pi family, which does not know everything that we write."""
        return self.root.endswith(_AGENTS_HOMES)

    def owns(self, path: str) -> bool:
        """Return whether a path is below the sessions folder of this store."""
        return posixpath.normpath(path).startswith(self.sessions + "/")

    def keeps(self, path: str) -> bool:
        """Return whether a path is among the copies of other agents' sessions."""
        return posixpath.normpath(path).startswith(self.kept + "/")


class Source(NamedTuple):
    """A folder with sessions, and the agent that they belong to."""

    agent: str
    root: str
    sessions: str  # the folder with the session files, or with project folders


def root_of(path: str) -> str | None:
    """Return the root that a session file belongs to, by its path; `None` if it is not in a store."""
    folder = posixpath.dirname(posixpath.dirname(path))
    return posixpath.dirname(folder) if posixpath.basename(folder) == "sessions" else None


def terminal_id(environ: Mapping[str, str], tty: str | None) -> str | None:
    """Return an id for the terminal that a process runs in, from its tty device or its environment."""
    if tty and tty.startswith("/dev/"):
        return tty.removeprefix("/dev/").replace("/", "-")
    found = (f"{prefix}-{environ[name]}" for name, prefix in _TERMINALS if environ.get(name))
    return next(found, None)


def stem_of(path: str) -> str:
    """Return the name of a session file without its suffixes."""
    name = posixpath.basename(path)
    stem, journal, _ = name.partition(JOURNAL)
    return stem if journal else name.removesuffix(LEGACY).removesuffix(DRAFT)


def is_segment(path: str) -> bool:
    """Return whether a file continues a session that has an earlier file: what Codex writes after a rewind."""
    name = posixpath.basename(path)
    return name.startswith(ROLLOUT) and "_" in name and JOURNAL in name


def session_files(names: Sequence[str]) -> list[str]:
    """Return the names in a folder that are session files, published ones and drafts."""
    return [name for name in names if name.endswith((JOURNAL, DRAFT)) and not name.startswith(".")]
