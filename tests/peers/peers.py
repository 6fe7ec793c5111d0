"""Real pi packages as oracles, installed below `.cache/peers`; `oracle.mjs` serves each in a node process.

Rules: packages are fetched by name and version only; a machine without node, npm or a network skips with the reason; a
peer sees its own empty home, never the user's; a missing answer is an error after a timeout, not a hang.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "peers"
INSTALL_SECONDS = 600
ANSWER_SECONDS = 30  # pi answers in milliseconds; a parent cycle would keep it busy forever

Message = dict[str, Any]


class PeerError(Exception):
    """The peer answered with an error, or not at all."""


@dataclass(frozen=True)
class Package:
    """An npm package in one version; `scripts` is whether its own installation must run."""

    name: str
    version: str
    scripts: bool = False

    def __str__(self) -> str:
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}"

    def install(self) -> Path:
        """Return the folder of the installed package; skip the test with the reason if it cannot be installed."""
        for tool in ("node", "npm"):
            if shutil.which(tool) is None:
                pytest.skip(f"{self.name}@{self.version} needs {tool}, which is not installed")
        target = CACHE / str(self)
        if not target.exists():
            self._fetch(target)
        return target / "node_modules" / self.name

    def _fetch(self, target: Path) -> None:
        """Install beside `target` and rename, so that an interrupted install is never used."""
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".install-") as folder:
            fresh = Path(folder) / "fresh"
            fresh.mkdir()
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(fresh)]
            if not self.scripts:
                command.append("--ignore-scripts")
            try:
                subprocess.run(
                    [*command, f"{self.name}@{self.version}"],
                    cwd=fresh,
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_SECONDS,
                )
            except subprocess.CalledProcessError as error:
                pytest.skip(f"npm install {self.name}@{self.version} failed: {error.stderr.strip()[-500:]}")
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm install {self.name}@{self.version} took more than {INSTALL_SECONDS} s")
            if not target.exists():  # otherwise another run was faster
                fresh.rename(target)


PI_73 = Package("@mariozechner/pi-coding-agent", "0.73.1")
PI_87 = Package("@earendil-works/pi-coding-agent", "0.87.1")
PACKAGES = (PI_73, PI_87)


@dataclass(frozen=True)
class Context:
    """The context that a peer would send to the model, and its leaf; `model` is "provider/id" or None."""

    messages: list[Message]
    thinking_level: str | None
    model: str | None
    entry_count: int
    leaf_id: str | None


@dataclass(frozen=True)
class Appended:
    """The entries that a peer wrote, and its leaf afterwards."""

    ids: list[str]
    leaf_id: str | None


class Peer:
    """A node process that serves one package; every request opens the file again, as a new pi would."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self._folder = package.install()
        self._home = tempfile.TemporaryDirectory(prefix="sessile-peer-")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its home."""
        self._stop()
        self._home.cleanup()

    def context(self, path: str, leaf: str | EllipsisType | None = ...) -> Context:
        """Return the context at the peer's own leaf, or at `leaf`; None means before the first entry."""
        place = {} if isinstance(leaf, EllipsisType) else {"leaf": leaf}
        answer = self._ask(op="context", path=path, **place)
        model = answer["model"] or {}
        name = f"{model['provider']}/{model['modelId']}" if model.keys() >= {"provider", "modelId"} else None
        return Context(answer["messages"], answer["thinkingLevel"], name, answer["entryCount"], answer["leafId"])

    def append(self, path: str, messages: list[Message], name: str | None = None) -> Appended:
        """Append messages, then a session name if one is given."""
        naming = {} if name is None else {"name": name}
        answer = self._ask(op="append", path=path, messages=messages, **naming)
        return Appended(answer["ids"], answer["leafId"])

    def branch(self, path: str, entry: str | None, messages: list[Message]) -> Appended:
        """Append messages below an earlier entry; None means before the first."""
        answer = self._ask(op="branch", path=path, entry=entry, messages=messages)
        return Appended(answer["ids"], answer["leafId"])

    def call(self, path: str, method: str, *args: Any, at: str | EllipsisType | None = ...) -> Any:
        """Call a public method of the peer's session manager, below the entry `at` if given."""
        place = {} if isinstance(at, EllipsisType) else {"at": at}
        return self._ask(op="call", path=path, method=method, args=args, **place)["result"]

    def compaction(self, function: str, *args: Any) -> Any:
        """Call an exported function of the peer's compaction module."""
        return self._ask(op="compaction", function=function, args=args)["result"]

    def abandoned(self, path: str, old: str, new: str) -> tuple[list[str], str | None]:
        """Return the entries that the peer would summarize when it switches branches, and the common ancestor."""
        answer = self._ask(op="abandoned", path=path, **{"from": old, "to": new})
        return answer["ids"], answer["ancestor"]

    def create(self, folder: str, cwd: str, messages: list[Message]) -> str:
        """Create a session in `folder` and return its path; pi writes the file with the first assistant message."""
        return str(self._ask(op="create", dir=folder, cwd=cwd, messages=messages)["path"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        overdue = threading.Timer(ANSWER_SECONDS, process.kill)
        overdue.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            overdue.cancel()
        if not line:
            self._stop()
            raise PeerError(f"{self.package} gave no answer to {request['op']}: {self._complaints()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.package}: {answer['error']}")
        return answer

    def _start(self) -> subprocess.Popen[str]:
        home = self._home.name
        environment = {"PATH": os.environ["PATH"], "HOME": home, "PI_CODING_AGENT_DIR": os.path.join(home, "agent")}
        with open(os.path.join(home, "stderr"), "wb") as complaints:
            self._process = subprocess.Popen(
                ["node", str(HERE / "oracle.mjs"), str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                encoding="utf-8",
                cwd=home,
                env=environment,
            )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        try:
            process.communicate()  # reaps the process and closes both pipes
        except BrokenPipeError:
            pass  # a request that it never read

    def _complaints(self) -> str:
        text = Path(self._home.name, "stderr").read_text("utf-8", "replace").strip()
        return text[-500:] or f"nothing within {ANSWER_SECONDS} s"
