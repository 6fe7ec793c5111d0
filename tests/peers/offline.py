"""Run a program beside a scripted model, in a network namespace that has only a loopback; see `programs.py`."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from model_server import serving

_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_UP_AND_RUNNING = 0x1 | 0x40


def _raise_loopback() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP_AND_RUNNING))


def main() -> None:
    """Read an order from stdin and print the result, both as JSON."""
    order = json.load(sys.stdin)
    _raise_loopback()
    with serving(order["port"]) as model:
        model.say(order["say"])
        process = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=order["within"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
        asked = [{"path": one.path, "body": one.body} for one in model.asked]
    json.dump({"code": process.returncode, "printed": printed[-4000:], "asked": asked}, sys.stdout)


main()
