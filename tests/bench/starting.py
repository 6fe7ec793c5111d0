"""S10 and S1b: the command as a process, against a bare interpreter."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .corpus import corpus
from .listing import store
from .measure import Row, interleaved, median, ratio, timed
from .peers import Challenge, against
from .reading import warm
from .scale import Scale

_BARE = [sys.executable, "-c", "pass"]
_COMMAND = [str(Path(sys.executable).with_name("sessile"))]


def _run(*command: str, cache: str, home: str) -> None:
    places = {"HOME": home, "SESSILE_CACHE": cache, "PI_CODING_AGENT_DIR": f"{home}/agent"}
    # An installed command has compiled bytecode.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | places
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0 and (done.stdout or command[-1] == "pass"), done.stderr


def starting(scale: Scale) -> list[Row]:
    """S10: `--version`, and a warm listing of thousands of sessions."""
    scratch = scale.scratch()
    home, cache = str(scratch / "home"), str(scratch / "cache")
    shutil.rmtree(home, ignore_errors=True)
    os.makedirs(f"{home}/agent")
    os.symlink(store(scale), f"{home}/agent/sessions")
    _run(*_COMMAND, "ls", cache=cache, home=home)
    _run(*_COMMAND, "ls", "--sort", "cost", "-n", "1", cache=cache, home=home)  # sorting by cost counts all sessions
    times = interleaved(
        scale.rounds,
        bare=lambda: timed(lambda: _run(*_BARE, cache=cache, home=home)),
        version=lambda: timed(lambda: _run(*_COMMAND, "--version", cache=cache, home=home)),
        listing=lambda: timed(lambda: _run(*_COMMAND, "ls", "-n", "50", cache=cache, home=home)),
    )
    listing = median(times["listing"])
    return [
        Row(
            "S10",
            "sessile --version",
            median(times["version"]),
            baseline="python -c pass",
            baseline_median=median(times["bare"]),
            ratio=ratio(times["version"], times["bare"]),
            limit=3,
        ),
        Row("S10", "warm sessile ls, ms", listing, ratio=listing * 1000, limit=150),
        Row("S10", "… against python -c pass", listing, ratio=ratio(times["listing"], times["bare"])),
    ]


def resuming_as_a_process(scale: Scale) -> list[Row]:
    """S1b: `sessile context` of a large session with a warm index."""
    made = warm(corpus(scale, scale.large_mb))
    home = str(scale.scratch() / "home-context")
    command = [*_COMMAND, "context", made.path, "--json", "--root", made.root]
    times = interleaved(
        scale.rounds,
        bare=lambda: timed(lambda: _run(*_BARE, cache=made.cache, home=home)),
        context=lambda: timed(lambda: _run(*command, cache=made.cache, home=home)),
    )
    return [
        Row(
            "S1b",
            f"sessile context of {made.size / 1e6:.0f} MB",
            median(times["context"]),
            baseline="python -c pass",
            baseline_median=median(times["bare"]),
            ratio=ratio(times["context"], times["bare"]),
            limit=8,
            rivals=against(
                scale,
                lambda: timed(lambda: _run(*command, cache=made.cache, home=home)),
                Challenge("pi", "resume", [made.path], 40),
                Challenge("oh-my-pi", "resume", [made.path], 40),
            ),
        )
    ]


def context_once(scale: Scale) -> None:
    """Run the command to measure its memory."""
    from sessile.cli.command import run

    made = warm(corpus(scale, scale.large_mb))
    os.environ["SESSILE_CACHE"] = made.cache
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        assert run(["context", made.path, "--json", "--root", made.root]) == 0
