"""Other projects that do the same work on the same files: their versions, installation and calls.

Peers are installed below `.cache/peers` in the versions named here by `PEERS=1`; missing ones are skipped by name. A
peer runs in its own process, whose start does not count, and in an empty home. It returns the time of the work, the
peak memory and the number of results, so that a wrong result is not taken for a fast one.

A slow work is run once, and its time is reused; other works are run up to three times, each after ours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from .measure import Rival, Work, median
from .scale import ROOT, Scale

CACHE = ROOT / ".cache" / "peers"
_HERE = Path(__file__).parent
_INSTALL_SECONDS = 900
_ANSWER_SECONDS = 300
_ROUNDS = 3
_LONG = 2.0  # seconds: a slower answer is reused
_ENOUGH = 8.0  # seconds for one peer at one work: there is no other round then
_HEAP = "--max-old-space-size=8192"


class Answer(msgspec.Struct):
    """The result of a peer."""

    seconds: float
    memory_mb: float
    count: int
    hash: str = ""
    stored: int = 0  # bytes


class Failure(Exception):
    """The peer has no result; the message says why."""


class Package(NamedTuple):
    """A project in one version."""

    name: str
    npm: Sequence[str] = ()
    pip: Sequence[str] = ()
    folder: str = ""
    module: str = ""  # of an npm package: the module of its session manager
    runtime: Sequence[str] = ()  # its command, below the folder; default: `node`

    @property
    def version(self) -> str:
        return (*self.npm, *self.pip)[0].rpartition("@" if self.npm else "==")[2]

    @property
    def place(self) -> Path:
        return CACHE / self.folder

    @property
    def installed(self) -> bool:
        """Return whether it is complete: npm folders are renamed at the end, environments have a marker file."""
        return self.place.exists() if self.npm else (self.place / "ready").exists()

    def command(self) -> list[str]:
        """Return the command that runs a work."""
        if self.pip:
            return [str(self.place / "bin" / "python"), "-P", str(_HERE / "peer.py")]
        runtime = [str(self.place.joinpath(*self.runtime))] if self.runtime else ["node", _HEAP]
        return [*runtime, str(_HERE / "peer.mjs"), str(self.place / "node_modules" / self.module)]

    def install(self) -> str | None:
        """Install it by name and version; return the reason if that fails."""
        try:
            if self.pip:
                self._make_environment()
            elif shutil.which("npm") is None or shutil.which("node") is None:
                return "it needs node and npm"
            else:
                self._fetch()
        except subprocess.CalledProcessError as error:
            return f"it cannot be installed: {error.stderr.strip()[-60:]}"
        except subprocess.TimeoutExpired:
            return f"installing it took more than {_INSTALL_SECONDS} s"
        return None

    def _make_environment(self) -> None:
        _run([sys.executable, "-m", "venv", "--clear", str(self.place)], ROOT)
        _run([str(self.place / "bin" / "python"), "-m", "pip", "install", "--quiet", *self.pip], ROOT)
        (self.place / "ready").touch()

    def _fetch(self) -> None:
        fresh = CACHE / f".{self.folder}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(fresh)]
        _run(["npm", "install", *options, *self.npm], fresh)
        fresh.rename(self.place)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)


PEERS = {
    package.name: package
    for package in (
        Package(
            "pi",
            # the newest version whose packages are all published
            npm=["@earendil-works/pi-coding-agent@0.87.1"],
            folder="earendil-works-pi-coding-agent-0.87.1",
            module="@earendil-works/pi-coding-agent/dist/core/session-manager.js",
        ),
        Package(
            "oh-my-pi",
            npm=["@oh-my-pi/pi-coding-agent@18.2.3", "bun@1.4.4"],
            folder="oh-my-pi-pi-coding-agent-18.2.3",
            module="@oh-my-pi/pi-coding-agent/src/session/session-manager.ts",
            runtime=["node_modules", "@oven", "bun-linux-x64", "bin", "bun"],
        ),
        Package("claude-sdk", pip=["claude-agent-sdk==0.2.182"], folder="claude-agent-sdk-0.2.182"),
        Package("openai", pip=["openai-agents==0.24.0"], folder="openai-agents-0.24.0"),
        Package(
            "langgraph",
            pip=["langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2"],
            folder="langgraph-checkpoint-sqlite-3.1.2",
        ),
    )
}


def install_missing(names: Sequence[str] = tuple(PEERS)) -> dict[str, str]:
    """Install what is missing and return the reasons of failures."""
    reasons = {}
    for name in names:
        reason = None if PEERS[name].installed else PEERS[name].install()
        if reason is not None:
            reasons[name] = reason
    return reasons


def ask(scale: Scale, name: str, work: str, *arguments: str, anew: bool = False) -> Answer:
    """Run a work of a peer; a slow result is reused for the rest of the run."""
    kept = scale.scratch() / f"answer-{hashlib.sha256(repr((name, work, arguments)).encode()).hexdigest()[:16]}"
    if kept.exists() and not anew:
        return msgspec.json.decode(kept.read_bytes(), type=Answer)
    command = [*PEERS[name].command(), work, *arguments]
    with tempfile.TemporaryDirectory(dir=scale.scratch()) as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "PI_CODING_AGENT_DIR": f"{home}/agent"}
        try:
            done = subprocess.run(
                command, cwd=home, env=environment, check=True, capture_output=True, timeout=_ANSWER_SECONDS
            )
        except subprocess.CalledProcessError as error:
            raise Failure(_last_words(error.stderr.decode("utf-8", "replace"))) from error
        except subprocess.TimeoutExpired as error:
            raise Failure(f"no answer within {_ANSWER_SECONDS} s") from error
    answer = msgspec.json.decode(done.stdout, type=Answer)
    if answer.seconds > _LONG:
        kept.write_bytes(done.stdout)
    return answer


def _last_words(text: str) -> str:
    """Return the line that names the error, or the last line, without folders of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    named = [line for line in lines if "Error" in line]
    return (named or lines)[-1].replace(str(ROOT), "…")[:100]


class Challenge(NamedTuple):
    """A work of a peer, its minimum ratio to ours, and the expected number of results."""

    peer: str
    work: str
    arguments: Sequence[str]
    least: float | None = None
    found: int | None = None
    as_process: bool = False  # includes the start of the process, as for a command


def against(scale: Scale, ours: Work, *challenges: Challenge) -> dict[str, Rival]:
    """Run the work with all installed peers; ours is repeated before each."""
    found: dict[str, Rival] = {}
    for challenge in challenges:
        if scale.peers and PEERS[challenge.peer].installed:
            found[challenge.peer] = _against(scale, ours, challenge)
    return found


def _against(scale: Scale, ours: Work, challenge: Challenge) -> Rival:
    times: list[float] = []
    ratios: list[float] = []
    memory = 0.0
    try:
        end = time.monotonic() + _ENOUGH
        while len(times) < min(_ROUNDS, scale.heavy_rounds) and (not times or time.monotonic() < end):
            own = ours()
            start = time.perf_counter()
            answer = ask(scale, challenge.peer, challenge.work, *challenge.arguments, anew=challenge.as_process)
            taken = time.perf_counter() - start if challenge.as_process else answer.seconds
            if challenge.found is not None and answer.count != challenge.found:
                raise Failure(f"it found {answer.count}, not {challenge.found}")
            times.append(taken)
            ratios.append(taken / own)
            memory = max(memory, answer.memory_mb)
    except Failure as failure:
        return Rival(failed=str(failure), limit=challenge.least)
    return Rival(median(times), median(ratios), challenge.least, memory)
