"""Make the files of earlier releases: `python tests/released.py` writes `tests/fixtures/released/NAME.tar.gz`.

The code of each release is taken from the history of the repository and run with the present interpreter on an empty root. The
files are what a user of that release had: sessions, blobs, trash, prompt history, conversations, waiting turns and caches. Every
form of a cache that was ever written is in at least one of them; `FORMS` says which. A new form needs a row here, with files that
were made before the form changed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "fixtures" / "released"


class Form(NamedTuple):
    """The commit whose code made the files, and the numbers of its index and catalog (0: it had no catalog)."""

    commit: str
    of_index: int
    of_catalog: int


FORMS = {
    "index-1": Form("d3802cb^", 1, 0),
    "index-2": Form("e1909bb^", 2, 0),
    "index-3": Form("c73e964^", 3, 0),
    "catalog-1": Form("1471dc0", 4, 1),
    "catalog-2": Form("b09cd98", 5, 2),
    "catalog-3": Form("7c942ed", 5, 3),
    "catalog-4": Form("e71b593", 5, 4),
    "0.1.0": Form("c2700d7^", 6, 5),
    "0.2.0": Form("d5effdd", 6, 5),
    "catalog-6": Form("dc9b6d4", 7, 6),
}

# Runs with the code of the release. Names that it does not have are left out.
_MAKE = """
import os, sys
root = sys.argv[1]
from sessile import Store
from sessile.storage.history import HistoryStorage

os.environ["HOME"] = root + "-home"
store = Store(root)
for number in range(3):
    session = store.create("/work/app")
    for turn in range(6):
        first = session.append_message({"role": "user", "content": f"question {turn} of session {number}"})
        session.append_message({"role": "assistant", "provider": "p", "model": "m", "content": [
            {"type": "text", "text": f"answer {turn}"}], "usage": {"input": 3, "output": 5}})
    session.append_model_change("p/other") if hasattr(session, "append_model_change") else None
    session.append_label_change(first.id, "marked") if hasattr(session, "append_label_change") else None
    session.append_message({"role": "user", "content": "x" * 600_000 if number == 0 else "the end"})
    session.close()
long = store.create("/work/app", publish=True)  # large enough for an index
long.append_many([{"type": "message", "message": {"role": "user", "content": f"line {number}"}} for number in range(120)])
long.close()
with store.open(long.path) as again:
    again.context()
deleted = store.create("/work/app", publish=True)
deleted.append_message({"role": "user", "content": "in the trash"})
deleted.close()
store.delete(deleted.path)
with HistoryStorage(root + "/history.db") as history:
    for number in range(5):
        history.add(f"prompt {number}", cwd="/work/app")
try:
    from sessile.library import Library
except ImportError:
    try:
        from sessile.storage.catalog import Catalog
    except ImportError:
        pass
    else:
        with Catalog(store.fs, store.layout.cache) as catalog:
            catalog.catch_up([store.layout.sessions], depth="index")
else:
    with Library(store, cache=store.layout.cache) as library:
        library.catch_up()
        library.list()
        list(library.search("question").hits)
try:
    from sessile.gateway.conversations.registry import Conversations
except ImportError:
    try:
        from sessile.conversations.conversations import Conversations
    except ImportError:
        Conversations = None
if Conversations is not None:
    with Conversations(store, workspace=lambda agent: "/work/app") as conversations:
        conversations.resolve("telegram:group:42") if hasattr(conversations, "resolve") else None
try:
    from sessile.storage.turn_log import TurnLog
except ImportError:
    TurnLog = None
if TurnLog is not None:
    log = TurnLog(store.fs, root)
    log.note("running", {"turn": 1, "message": "was running"})
    log.keep("waiting", {"turn": 2, "message": "is waiting"})
print("made", sorted(os.listdir(root)))
"""


def make(name: str, form: Form) -> None:
    """Write the files of one release."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", form.commit, "src"], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        root = Path(folder) / "root"
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src", "HOME": folder, "SESSILE_CACHE": f"{folder}/cache"}
        subprocess.run([sys.executable, "-c", _MAKE, str(root)], env=environment, check=True, cwd=folder)
        with tarfile.open(FOLDER / f"{name}.tar.gz", "w:gz", compresslevel=9) as packed:
            packed.add(root, "root")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or FORMS:
        make(name, FORMS[name])
