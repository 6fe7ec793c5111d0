"""Names and paths: folders, names of files, homes of the pi family, terminals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sessile import Store, errors
from sessile.agents.registry import AGENTS
from sessile.storage.layout import (
    Layout,
    artifacts_of,
    encode_cwd,
    file_name,
    folder_names,
    root_of,
    session_files,
    terminal_id,
)
from sessions import CWD, Clock, answer, begun, say, store_at

pytestmark = pytest.mark.mission("X3")


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/", "----"),
        ("/srv/pi", "--srv-pi--"),
        ("/home/u/a/b", "--home-u-a-b--"),
        ("/tmp/x y/z:1", "--tmp-x y-z-1--"),
        ("C:\\Users\\u", "--C--Users-u--"),
        ("\\\\host\\share", "---host-share--"),
        ("/a-b/c", "--a-b-c--"),
        ("/日本/語", "--日本-語--"),
        ("relative/path", "--relative-path--"),
        ("..", "--..--"),
        ("/../../etc", "--..-..-etc--"),
    ],
)
def test_a_project_has_the_folder_of_the_documents(cwd: str, name: str) -> None:
    """The first slash is removed, and every other separator becomes a dash."""
    assert encode_cwd(cwd) == name
    assert Layout("/r", "/c").folder(cwd) == f"/r/sessions/{name}"


@pytest.mark.parametrize("cwd", ["", "/a\0b"])
def test_what_is_no_folder_has_none(cwd: str) -> None:
    """It is refused before any file is touched."""
    with pytest.raises(errors.InvalidId):
        encode_cwd(cwd)


def test_a_cwd_too_long_for_a_name_gets_a_short_one_of_its_own(tmp_path: Path) -> None:
    """The pi family fails there; two long paths with the same start get different names."""
    long = "/" + "/".join(["ordner-ä"] * 60)
    first, second = encode_cwd(long + "/a"), encode_cwd(long + "/b")
    assert first != second
    assert max(len(first.encode()), len(second.encode())) <= 255
    assert first == encode_cwd(long + "/a")
    assert first.startswith("--ordner-ä-")
    with begun(store_at(tmp_path), cwd=long) as session:
        say(session, "one")
        assert session.cwd == long
    assert [info.cwd for info in store_at(tmp_path).list(long)] == [long]


@pytest.mark.parametrize(
    ("cwd", "names"),
    [
        ("/home/u", ["--home-u--", "-"]),
        ("/home/u/a/b", ["--home-u-a-b--", "-a-b"]),
        ("/home/user2", ["--home-user2--"]),
        ("/tmp", ["--tmp--", "-tmp"]),
        ("/tmp/x y/z:1", ["--tmp-x y-z-1--", "-tmp-x y-z-1"]),
        ("/srv/pi", ["--srv-pi--"]),
    ],
)
def test_the_short_names_of_newer_members_are_known(cwd: str, names: list[str]) -> None:
    """The native name comes first, then those that xcsh and oh-my-pi use below home and temp."""
    assert folder_names(cwd, "/home/u", "/tmp") == names
    assert folder_names(cwd, "/home/u/", "/tmp/")[0] == names[0]
    assert folder_names(cwd, None, None) == names[:1]


def test_a_session_file_is_named_by_time_and_id(tmp_path: Path) -> None:
    """The time of the header, with dashes, and the documented layout."""
    store = store_at(tmp_path, clock=Clock(1771237230.25), terminal="pts-3")
    with store.create(CWD, session_id="my.id_1") as session:
        image = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}
        session.append_message({"role": "user", "content": [image]})
        answer(session, "yes")
        assert session.path == f"{tmp_path}/sessions/--work-app--/2026-02-16T10-20-30-250Z_my.id_1.jsonl"
        header = json.loads(Path(session.path).read_text().split("\n")[0])
        assert header == {
            "type": "session",
            "version": 3,
            "id": "my.id_1",
            "timestamp": "2026-02-16T10:20:30.250Z",
            "cwd": CWD,
        }
    assert {"sessions", "blobs", "terminal-sessions"} <= set(os.listdir(tmp_path))
    assert store.layout.history == f"{tmp_path}/history.db"
    assert [len(name) for name in os.listdir(tmp_path / "blobs")] == [64]


def test_artifacts_lie_beside_the_session_file() -> None:
    """The path without `.jsonl`; a draft has them where its session will be."""
    assert artifacts_of("/r/sessions/--x--/t_id.jsonl") == "/r/sessions/--x--/t_id"
    assert artifacts_of("/r/sessions/--x--/t_id.draft") == "/r/sessions/--x--/t_id"
    assert artifacts_of("/r/odd") == "/r/odd.artifacts"


@pytest.mark.parametrize("session_id", ["", ".", "..", "a/b", "../x", "a\0", "-a", "a-", "a b", "x" * 129, "ä"])
def test_an_id_that_could_leave_the_folder_names_no_file(session_id: str, tmp_path: Path) -> None:
    """The id is refused in a name and in a search."""
    with pytest.raises(errors.InvalidId):
        file_name("2026-02-16T10:20:30.000Z", session_id)
    if session_id:
        with pytest.raises(errors.InvalidId):
            store_at(tmp_path).find(session_id)
        with pytest.raises(errors.InvalidId):
            store_at(tmp_path).create(CWD, session_id=session_id)
    assert list(tmp_path.iterdir()) == []


def test_a_store_owns_what_lies_below_its_sessions_folder() -> None:
    """Dots in a path do not change that."""
    layout = Layout("/r", "/c")
    assert layout.owns("/r/sessions/--x--/a.jsonl")
    assert not layout.owns("/r/sessions/../blobs/x")
    assert not layout.owns("/r/sessions-2/a.jsonl")
    assert not layout.owns("/r/sessions")
    assert layout.owns("/r/other/../sessions/a.jsonl")


def test_the_root_of_a_session_file_is_known_by_its_place() -> None:
    """The root is known for every agent of the pi family."""
    assert root_of("/home/u/.omp/agent/sessions/-a-b/x.jsonl") == "/home/u/.omp/agent"
    assert root_of("/anywhere/x.jsonl") is None


def test_a_root_is_absolute_and_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative root is relative to the current folder; a link to the root is followed once."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with begun(store_at(tmp_path / "link")) as session:
        assert session.path.startswith(f"{tmp_path}/real/")
    monkeypatch.chdir(tmp_path)
    assert Store("real").layout.root == f"{tmp_path}/real"
    with pytest.raises(errors.Invalid):
        Layout("relative", "/c")


def family(home: str, environ: dict[str, str]) -> list[tuple[str, str]]:
    """The homes of the pi family, by agent."""
    sources = AGENTS.sources(home, environ, lambda folder: ())
    return [(source.agent, source.root) for source in sources if source.agent in ("pi", "omp", "xcsh")]


def test_the_homes_of_the_family_are_found() -> None:
    """Defaults and XDG folders, whether they exist or not."""
    homes = family("/home/u", {})
    assert homes == [
        ("pi", "/home/u/.pi/agent"),
        ("omp", "/home/u/.omp/agent"),
        ("omp", "/home/u/.local/share/omp"),
        ("xcsh", "/home/u/.xcsh/agent"),
        ("xcsh", "/home/u/.local/share/xcsh"),
    ]
    xdg = family("/home/u", {"XDG_DATA_HOME": "/data"})
    assert ("omp", "/data/omp") in xdg
    assert ("xcsh", "/data/xcsh") in xdg


def test_the_environment_moves_the_homes() -> None:
    """`PI_CODING_AGENT_DIR` comes first; `PI_CONFIG_DIR` is for oh-my-pi and xcsh only; no root is named twice."""
    homes = family("/home/u", {"PI_CODING_AGENT_DIR": "~/agent", "PI_CONFIG_DIR": ".mine"})
    assert homes[:2] == [("pi", "/home/u/agent"), ("pi", "/home/u/.pi/agent")]
    assert [root for _, root in homes].count("/home/u/.mine/agent") == 1
    roots = [root for _, root in family("/home/u", {"PI_CODING_AGENT_DIR": "/home/u/.pi/agent"})]
    assert len(roots) == len(set(roots))


@pytest.mark.mission("X4")
@pytest.mark.parametrize(
    ("environ", "tty", "name"),
    [
        ({}, "/dev/pts/3", "pts-3"),
        ({"TMUX_PANE": "%1"}, "/dev/ttys001", "ttys001"),
        ({"KITTY_WINDOW_ID": "7", "TMUX_PANE": "%1"}, None, "kitty-7"),
        ({"TMUX_PANE": "%1", "TERM_SESSION_ID": "x"}, None, "tmux-%1"),
        ({"TERM_SESSION_ID": "w0t0p0:A-B", "WT_SESSION": "g"}, None, "apple-w0t0p0:A-B"),
        ({"WT_SESSION": "g"}, "not a tty", "wt-g"),
        ({"TMUX_PANE": ""}, None, None),
        ({}, None, None),
    ],
)
def test_a_terminal_is_named_by_its_device_or_its_environment(
    environ: dict[str, str], tty: str | None, name: str | None
) -> None:
    """The sources are tried in the documented order."""
    assert terminal_id(environ, tty) == name


@pytest.mark.mission("X4")
@pytest.mark.parametrize(
    ("terminal", "name"),
    [
        ("pts-3", "pts-3"),
        ("tmux-%1", "tmux-%1"),
        ("apple-w0t0p0:A-B", "apple-w0t0p0:A-B"),
        ("../../etc/passwd", "-..-etc-passwd"),
        ("a\0b\nc", "a-b-c"),
        ("..", "-"),
    ],
)
def test_a_terminal_cannot_name_a_file_elsewhere(terminal: str, name: str) -> None:
    """The names that the pi family uses stay as they are."""
    assert Layout("/r", "/c").breadcrumb(terminal) == f"/r/terminal-sessions/{name}"


def test_only_visible_names_that_end_in_jsonl_or_draft_are_sessions() -> None:
    """Temporary files, originals and hidden files are not listed."""
    names = ["a.jsonl", ".a.jsonl.x.tmp", ".hidden.jsonl", "a.draft", "a", "a.jsonl.invalid-1", "A.JSONL"]
    assert session_files([*names, ".b.draft", "b.draft.1"]) == ["a.jsonl", "a.draft"]
