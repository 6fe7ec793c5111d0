"""Write actions of the page: names, labels, pins, tags, branches and forks."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from builders import user
from http_rig import Json
from view_rig import CLAUDE, Household, furnished, page

pytestmark = pytest.mark.anyio

WRITING: dict[str, Json] = {
    "rename": {"title": "New name"},
    "label": {"number": 0, "label": "here"},
    "tag": {"tag": "drawer"},
    "branch": {"number": 0},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def own_id(home: Household) -> str:
    """Return the id of the native session."""
    return home.own.list_all()[0].id


async def test_a_session_is_renamed_and_the_list_shows_it_at_once(tmp_path: Path) -> None:
    """A renamed session is listed with its new name at once; an empty name is rejected."""
    home = furnished(tmp_path)
    async with page(home) as client:
        await client.get("/v1/view/sessions")
        done = await client.post("/v1/view/session/rename", id=own_id(home), title="  Retries,\n again ")
        assert done["title"] == "Retries, again"
        titles = [card["title"] for card in (await client.get("/v1/view/sessions"))["rows"]]
        assert "Retries, again" in titles
        body = {"id": own_id(home), "title": " \n "}
        assert (await client.refusal("POST", "/v1/view/session/rename", body=body))[0] == 400


async def test_an_entry_is_labelled_by_number_or_id_and_the_label_is_taken_away(tmp_path: Path) -> None:
    """A label is set by entry number or id and can be removed."""
    home = furnished(tmp_path)
    one = own_id(home)

    def labels() -> list[str]:
        with home.own.open(one, readonly=True) as session:
            return list(session.get_labels().values())

    with home.own.open(one, readonly=True) as session:
        rows = [entry.id for entry in session.iter_lines()]
    async with page(home) as client:
        await client.post("/v1/view/session/label", id=one, number=1, label="by number")
        await client.post("/v1/view/session/label", id=one, entry=rows[2], label="by id")
        assert labels() == ["dead end", "by number", "by id"]
        await client.post("/v1/view/session/label", id=one, number=1, label=None)
        assert labels() == ["dead end", "by id"]
        for wrong in ({}, {"number": 1, "entry": rows[1]}):
            refused = await client.refusal("POST", "/v1/view/session/label", body={"id": one, "label": "x", **wrong})
            assert refused[0] == 400
        body = {"id": one, "number": 10_000, "label": "x"}
        assert (await client.refusal("POST", "/v1/view/session/label", body=body))[0] == 404


async def test_the_leaf_moves_to_an_earlier_entry_and_stays_there(tmp_path: Path) -> None:
    """The leaf moves without removing entries, and a summary is appended as an entry."""
    home = furnished(tmp_path)
    one = own_id(home)
    with home.own.open(one, readonly=True) as session:
        rows = [entry.id for entry in session.iter_lines()]
        entries = session.count_entries()
    async with page(home) as client:
        assert (await client.post("/v1/view/session/branch", id=one, number=1))["leaf"] == rows[1]
        done = await client.post("/v1/view/session/branch", id=one, entry="dead end", summary="It was A")
    with home.own.open(one, readonly=True) as session:
        assert session.leaf_id == done["leaf"]
        assert [entry.get("summary") for entry in session.get_branch()][-1] == "It was A"
        assert session.count_entries() == entries + 1


async def test_a_session_is_tagged_and_pinned(tmp_path: Path) -> None:
    """Tags are stored in the session; pins are stored separately and work for other agents' sessions too."""
    home = furnished(tmp_path)
    before = home.write_claude("Why?", "So.").read_bytes()
    async with page(home) as client:
        await client.get("/v1/view/sessions")
        assert (await client.post("/v1/view/session/tag", id=own_id(home), tag="payments"))["tag"] == "payments"
        tags = {card["agent"]: card["tag"] for card in (await client.get("/v1/view/sessions"))["rows"]}
        assert tags == {"sessile": "payments", "pi": None, "claude": None}
        assert (await client.post("/v1/view/session/tag", id=own_id(home), tag=None))["tag"] is None
        assert (await client.post("/v1/view/session/pin", id=CLAUDE))["pinned"]
        cards = {card["id"]: card for card in (await client.get("/v1/view/sessions"))["rows"]}
        assert cards[CLAUDE]["pinned"] and not cards[own_id(home)]["pinned"]
        assert not (await client.post("/v1/view/session/pin", id=CLAUDE, pinned=False))["pinned"]
    assert (home.projects / "-work-web" / f"{CLAUDE}.jsonl").read_bytes() == before


@pytest.mark.parametrize("verb", WRITING)
async def test_sessions_of_other_agents_are_not_written_and_the_hint_is_to_fork(tmp_path: Path, verb: str) -> None:
    """Sessions of other agents cannot be changed, and the hint is to fork them."""
    home = furnished(tmp_path)
    pi = home.pi.list_all()[0]
    before = {path: path.read_bytes() for path in (Path(pi.path), home.write_claude("Why?", "So."))}
    async with page(home) as client:
        for name in (pi.id, CLAUDE):
            body = {"id": name, **WRITING[verb]}
            told = await client.ask("POST", f"/v1/view/session/{verb}", body=body, status=409)
            assert "fork" in told["hint"] and "are read-only" in told["detail"]
    assert {path: path.read_bytes() for path in before} == before


async def test_a_fork_of_any_session_is_ones_own(tmp_path: Path) -> None:
    """A fork of any session, or of a part of it, is writable, and the original does not change."""
    home = furnished(tmp_path)
    theirs = home.write_claude("Why?", "Because.")
    before = theirs.read_bytes()
    async with page(home) as client:
        whole = await client.post("/v1/view/session/fork", id=CLAUDE)
        part = await client.post("/v1/view/session/fork", id=own_id(home), number=1, cwd="/work/elsewhere")
        cards = {card["id"]: card for card in (await client.get("/v1/view/sessions"))["rows"]}
        renamed = await client.post("/v1/view/session/rename", id=whole["id"], title="Mine")
    assert whole["from"] == CLAUDE and renamed["title"] == "Mine"
    assert cards[whole["id"]]["writable"] and cards[whole["id"]]["messages"] == 2
    assert cards[part["id"]]["cwd"] == "/work/elsewhere" and cards[part["id"]]["messages"] == 2
    assert theirs.read_bytes() == before


@pytest.mark.parametrize("verb", WRITING)
async def test_nothing_is_written_into_a_session_in_which_a_turn_runs(tmp_path: Path, verb: str) -> None:
    """Writing is refused while a turn runs, and works after it."""
    home = Household(tmp_path)
    async with page(home) as client:
        client.runner.gate = anyio.Event()
        sent = await client.ask("POST", "/v1/chat/send", body={"message": "hello", "key": "main"}, status=202)
        with anyio.fail_after(10):
            while not client.runner.running:
                await anyio.sleep(0.01)
        body = {"id": sent["sessionId"], **WRITING[verb]}
        status, detail = await client.refusal("POST", f"/v1/view/session/{verb}", body=body)
        assert (status, detail) == (409, "a turn is running in this session")
        client.runner.gate.set()
        with anyio.fail_after(10):
            while (await client.get("/v1/chat/turn", turn=sent["turn"], key="main"))["state"] != "done":
                await anyio.sleep(0.01)
        await client.ask("POST", f"/v1/view/session/{verb}", body=body)


async def test_a_name_that_means_several_sessions_or_none_is_told(tmp_path: Path) -> None:
    """An ambiguous id returns 409; an unknown id and a file outside the store return 404."""
    home = furnished(tmp_path)
    for number in (1, 2):
        with home.begin(home.own, "Twin", session_id=f"abcd0000-{number}") as session:
            session.append_message(user("hello"))
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(Path(home.own.list_all()[0].path).read_bytes())
    async with page(home) as client:
        for verb in ("share", "export"):
            status, detail = await client.refusal("GET", f"/v1/view/{verb}", {"id": "abcd0000"})
            assert status == 409 and "ambiguous (2)" in detail
            assert (await client.refusal("GET", f"/v1/view/{verb}", {"id": "ffff1111"}))[0] == 404
            assert (await client.refusal("GET", f"/v1/view/{verb}", {"id": str(outside)}))[0] == 404
        body = {"id": "abcd0000", "title": "x"}
        assert (await client.refusal("POST", "/v1/view/session/rename", body=body))[0] == 409
        assert (await client.refusal("POST", "/v1/view/session/rename", body={**body, "id": "ffff1111"}))[0] == 404
