"""`sessile serve`: one gateway per store, discoverable by clients, with safe settings and a prompt shutdown."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessile import Store

from .conftest import Command
from .gateways import serving


@pytest.fixture
def root(home: Path) -> Path:
    """Return the root of a new store."""
    return home / "store"


@pytest.mark.mission("Y1")
@pytest.mark.promise("P33")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_can_be_found_while_it_runs_and_tidies_up_when_it_ends(root: Path, number: signal.Signals) -> None:
    """The note with address and process is readable by this user only; a signal ends the gateway and removes it."""
    with serving(root) as gateway:
        note = root / "gateway.json"
        told = json.loads(note.read_text())
        assert (told["url"], told["pid"]) == (gateway.url, gateway.process.pid)
        assert note.stat().st_mode & 0o777 == 0o600
        assert gateway.get("/healthz")[0] == 200
        assert gateway.get("/v1/status")[0] == 401
        assert gateway.get("/v1/status", gateway.token)[0] == 200
        token = gateway.token
        code, out, err = gateway.end(number)
        assert code == 0 and not note.exists()
        assert token not in json.dumps(gateway.told) + out + err


@pytest.mark.promise("P33")
def test_only_a_terminal_is_told_the_token(root: Path) -> None:
    """A terminal gets the token as the fragment of the URL; a pipe gets the path of the token file."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sessile.cli.main", "--root", str(root), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        shown = os.read(ours, 4096).decode()
        process.terminate()
        process.communicate(timeout=15)
        os.close(ours)
    token = (root / "gateway.token").read_text().strip()
    assert shown.startswith("http://127.0.0.1:") and f"/#token={token}" in shown
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=15)
    assert line.startswith("http://127.0.0.1:") and token not in line + err
    assert "gateway.token" in err


@pytest.mark.mission("Y1")
def test_a_store_has_one_gateway(root: Path, sessile: Command) -> None:
    """A second gateway is refused, and the error names the address of the first."""
    with serving(root) as gateway:
        done = sessile("--root", str(root), "serve", "--port", "0")
        assert done.code == 6
        assert gateway.url in done.err and str(gateway.process.pid) in done.err and "hint:" in done.err
        assert gateway.get("/healthz")[0] == 200


def test_a_gateway_that_was_killed_is_noticed_and_leaves_nothing_in_the_way(root: Path, sessile: Command) -> None:
    """The stale note is ignored, the doctor reports it, and the next gateway starts."""
    with serving(root) as gateway:
        gateway.process.kill()
        gateway.process.communicate(timeout=15)
    assert (root / "gateway.json").exists()
    asked = sessile("--root", str(root), "status")
    assert asked.code == 3 and "did not shut down cleanly" in asked.err and f"sessile --root {root} serve" in asked.err
    doctor = sessile("--root", str(root), "doctor", "--json")
    assert doctor.code == 1
    assert [item["where"] for item in doctor.json["items"] if item["kind"] == "gateway"] == [str(root / "gateway.json")]
    with serving(root) as gateway:
        assert sessile("--root", str(root), "status").code == 0


def test_a_port_that_is_taken_is_said_so(root: Path, sessile: Command) -> None:
    """The error has a hint, and nothing is left behind."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = sessile("--root", str(root), "serve", "--port", str(port))
    assert done.code == 6 and f"port {port}" in done.err and "--port" in done.err
    assert not (root / "gateway.json").exists()


@pytest.mark.promise("P33")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_other_machines_are_let_in_only_with_a_token_that_somebody_chose(
    root: Path, sessile: Command, host: str
) -> None:
    """An address other than loopback requires a token file in the configuration."""
    done = sessile("--root", str(root), "serve", "--port", "0", "--host", host)
    assert done.code == 2 and "tokenFile" in done.err


@pytest.mark.promise("P33")
def test_a_token_that_others_may_read_is_refused(root: Path, sessile: Command) -> None:
    """The command exits with code 8 and suggests `chmod 600`, without printing the token."""
    root.mkdir()
    (root / "gateway.token").write_text("a" * 43)
    (root / "gateway.token").chmod(0o644)
    done = sessile("--root", str(root), "serve", "--port", "0")
    assert done.code == 8 and "gateway.token" in done.err and "chmod 600" in done.err
    assert "a" * 43 not in done.err


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.toml", "[limits]\nbodyBytes = 'much'", "limits.bodyBytes"),
        ("config.toml", "[limits\n", "line 1"),
        ("config.json", '{"gateway": {"port": 70000}}', "gateway.port"),
        ("config.toml", "[agents.defaults]\nrunner = 'command'", "agents.defaults.command"),
        ("config.toml", "[user]\ntimeZone = 'Mars/Olympus'", "Mars/Olympus"),
        ("config.toml", "[session.reset]\ntimeZone = 'Mars/Olympus'", "session.reset.timeZone"),
        ("config.toml", "[agents.defaults]\nmodel = 'elsewhere/m'", "'elsewhere'"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    root: Path, sessile: Command, name: str, text: str, told: str
) -> None:
    """The error names the key or the line, and nothing is started."""
    root.mkdir()
    (root / name).write_text(text)
    done = sessile("--root", str(root), "serve", "--port", "0")
    assert done.code == 2 and told in done.err and "hint:" in done.err
    assert not (root / "gateway.json").exists()


def test_one_of_two_configurations_is_not_chosen_in_silence(root: Path, sessile: Command) -> None:
    """config.toml together with config.json is refused, and so is a missing file that was named."""
    root.mkdir()
    (root / "config.toml").write_text("")
    (root / "config.json").write_text("{}")
    assert sessile("--root", str(root), "serve").code == 2
    assert sessile("--root", str(root), "serve", "--config", "nowhere.toml").code == 3


def test_keys_that_nobody_knows_are_told_and_have_no_effect(root: Path, tmp_path: Path) -> None:
    """The gateway starts anyway; a configuration file can be named, and its token file is relative to its folder."""
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "the.token").write_text("b" * 43)
    (folder / "the.token").chmod(0o600)
    (folder / "own.toml").write_text("[gateway]\ntokenFile = 'the.token'\n[session]\nmaintainance = 1\n")
    with serving(root, "--config", str(folder / "own.toml")) as gateway:
        assert gateway.get("/v1/status", "b" * 43)[0] == 200
        assert not (root / "gateway.token").exists()
        _, _, err = gateway.end()
    assert "session.maintainance" in err


def test_it_ends_in_time_although_somebody_listens(root: Path) -> None:
    """An open event stream does not delay the shutdown."""
    with serving(root) as gateway:
        connection = http.client.HTTPConnection(*gateway.place, timeout=10)
        connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {gateway.token}"})
        assert connection.getresponse().status == 200
        began = time.monotonic()
        code, _, err = gateway.end()
        connection.close()
        assert code == 0 and time.monotonic() - began < 5
        assert "Traceback" not in err


def test_what_keeps_it_from_starting_is_said_as_it_is(root: Path, sessile: Command) -> None:
    """The error has the storage code and names the file, without a traceback, and nothing is left behind."""
    (root / "gateway").mkdir(parents=True)
    (root / "gateway/turns").write_text("no folder")
    done = sessile("--root", str(root), "serve", "--port", "0")
    assert done.code == 8 and str(root / "gateway/turns") in done.err and "Traceback" not in done.err
    assert not (root / "gateway.json").exists()


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    root: Path, sessile: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's dependencies are an optional extra."""
    monkeypatch.setattr("sessile.cli.servers.find_spec", lambda name: None if name == "uvicorn" else object())
    done = sessile("--root", str(root), "serve")
    assert done.code == 2 and "uvicorn" in done.err and "pip install 'sessile[gateway]'" in done.err


def test_with_nothing_to_see_the_made_up_store_is_served(home: Path, root: Path, sessile: Command) -> None:
    """With --or-demo some demo sessions become conversations, but only if there are no native sessions."""
    with serving(root, "--or-demo") as gateway:
        assert "demo" in gateway.told["root"] and not root.exists()
        rows = sessile("--demo", "sessions", "--json").json["sessions"]
        assert "agent:main:main" in [row["key"] for row in rows] and len(rows) == 5
        for row in rows:
            assert sessile("--demo", "show", row["sessionId"], "--tail", "1").code == 0
    Store(root).create("/work", publish=True).close()
    with serving(root, "--or-demo") as gateway:
        assert gateway.told["root"] == str(root)


def test_a_page_is_opened_without_telling_the_token_to_who_lists_processes(root: Path, tmp_path: Path) -> None:
    """The browser opens a file that only this user can read and that is removed with the gateway."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/opened\ncp {root}/gateway.html {tmp_path}/page\n')
    browser.chmod(0o700)
    with serving(root, "--open", environment={"BROWSER": f"{browser} %s"}) as gateway:
        deadline = time.monotonic() + 5
        while not (tmp_path / "page").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (tmp_path / "opened").read_text().strip() == f"file://{root}/gateway.html"
        assert f"{gateway.url}/#token={gateway.token}" in (tmp_path / "page").read_text()
        assert (root / "gateway.html").stat().st_mode & 0o777 == 0o600
        assert gateway.end()[0] == 0
    assert not (root / "gateway.html").exists()
