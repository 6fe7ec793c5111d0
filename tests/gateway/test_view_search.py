"""Search and statistics across all sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import user
from http_rig import Http, Json
from view_rig import CLAUDE, Household, answered, furnished, page, printed, settled

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def texts(group: Json) -> list[str]:
    """Return the excerpts of a group, with matches in brackets."""
    return [
        "".join(f"[{piece['text']}]" if piece["match"] else piece["text"] for piece in hit["excerpt"])
        for hit in group["hits"]
    ]


async def searched(client: Http, **query: object) -> dict[str, list[str]]:
    """Return the excerpts by agent."""
    found = await client.get("/v1/view/search", **query)
    return {group["session"]["agent"]: texts(group) for group in found["groups"]}


async def test_hits_of_all_agents_come_by_session_with_their_matches(tmp_path: Path) -> None:
    """Hits are grouped by session, mark their matches, and can be filtered by agent and project."""
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        assert await searched(client, q="aardvark") == {
            "claude": ["Because of an [aardvark]"],
            "sessile": ["Active [aardvark]"],
        }
        assert await searched(client, q="aardvark*", agent="pi") == {"pi": ["All [aardvark]s are tidy"]}
        assert await searched(client, q="aardvark", project="web") == {"claude": ["Because of an [aardvark]"]}
        assert await searched(client, q="aardvark*", limit=1) != {}


async def test_a_hit_names_its_entry_by_number_and_its_branch(tmp_path: Path) -> None:
    """A hit has the number of its entry in the file and says whether its branch is active or abandoned."""
    home = furnished(tmp_path)
    async with page(home) as client:
        await settled(client)
        (left,) = (await client.get("/v1/view/search", q="albatross"))["groups"]
        (active,) = (await client.get("/v1/view/search", q="active"))["groups"]
    (gone,), (here,) = left["hits"], active["hits"]
    assert (gone["branch"], here["branch"]) == ("abandoned", "active")
    with home.own.open(left["session"]["id"], readonly=True) as session:
        rows = [entry.id for entry in session.iter_lines()]
    assert [rows[hit["number"]] for hit in (gone, here)] == [gone["entry"], here["entry"]]


@pytest.mark.promise("P49")
async def test_few_hits_are_followed_by_those_in_other_fields(tmp_path: Path) -> None:
    """Tool results and other data are searched by themselves if there are few hits, and exactly the given fields on request."""
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        few = await client.get("/v1/view/search", q="zebra")
        assert few["matches"] == {"text": 0, "thinking": 0, "tool_input": 0, "tool_result": 1, "other": 0}
        ((hit,),) = [group["hits"] for group in few["groups"]]
        assert hit["field"] == "tool_result" and few["unscanned"] == 0
        only = await client.get("/v1/view/search", q="zebra", **{"in": "text"})
        assert only["groups"] == [] and only["matches"]["tool_result"] == 1
        assert await searched(client, q="zebra", **{"in": "tool_result"}) == {"sessile": ["pytest: [zebra] failed"]}
        assert await searched(client, q="bash", **{"in": "tool_input"}) == {"sessile": ["[bash]\nls"]}
        assert await searched(client, q="zebra", **{"in": "all"}) == {"sessile": ["pytest: [zebra] failed"]}
        away = await client.get("/v1/view/search", q="zebra", agent="pi")
        assert away["groups"] == [] and away["excluded"] == 1


async def test_the_time_for_reading_is_limited_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time for reading is up, the answer says how many sessions were not read."""
    monkeypatch.setattr("sessile.gateway.pages.library_view._SCANNING", -1.0)
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        for query in ({"q": "zebra", "in": "tool_result"}, {"q": "zebra"}):
            found = await client.get("/v1/view/search", **query)
            assert found["unscanned"] == 3 and found["groups"] == []


async def test_sessions_that_are_named_so_are_told(tmp_path: Path) -> None:
    """Sessions with a matching title are listed separately."""
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        found = await client.get("/v1/view/search", q="dotfiles")
        assert [card["title"] for card in found["titles"]] == ["Dotfiles"]
        assert [group["session"]["agent"] for group in found["groups"]] == ["pi"]


async def test_what_cannot_be_searched_is_refused_or_told(tmp_path: Path) -> None:
    """An invalid field or query returns 400, an unknown agent 404, and an ignored term adds a note."""
    async with page(furnished(tmp_path)) as client:
        assert (await client.refusal("GET", "/v1/view/search", {"q": "a", "in": "luck"}))[0] == 400
        assert (await client.refusal("GET", "/v1/view/search", {"q": "a", "agent": "nobody"}))[0] == 404
        assert (await client.refusal("GET", "/v1/view/search", {"q": ""}))[0] == 400
        found = await client.get("/v1/view/search", q="aardvark ???")
        assert "'???' is not a word" in found["notes"][0]


async def test_a_hit_in_a_file_that_is_gone_is_not_an_error(tmp_path: Path) -> None:
    """A hit in a deleted file is not an error."""
    home = furnished(tmp_path)
    path = home.write_claude("Why?", "Because of an aardvark")
    async with page(home) as client:
        await settled(client)
        path.unlink()
        assert "sessile" in await searched(client, q="aardvark")


# -- statistics


async def test_statistics_are_charts_with_tables(tmp_path: Path) -> None:
    """Statistics have a chart with a table for each topic, and a note about missing prices."""
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        found = await client.get("/v1/view/stats", since="7d")
    charts = {chart["name"]: chart for chart in found["charts"]}
    assert list(charts) == ["costs", "tokens", "cache", "tools", "models", "projects", "sessions"]
    assert all(chart["svg"].startswith("<svg ") and len(chart["columns"]) > 1 for chart in charts.values())
    assert charts["tools"]["rows"] == [["bash", 1, 1, 1.0, 1]]
    assert [row[0] for row in charts["models"]["rows"]] == ["anthropic/opus", "anthropic/sonnet"]
    assert charts["models"]["rows"][0][-1] == pytest.approx(0.75)
    assert charts["models"]["rows"][1][-1] is None
    assert found["notes"] == ["1 answer of anthropic/sonnet has no known price: the cost is a lower bound"]
    assert found["by"] == "day"


async def test_statistics_of_a_long_time_are_by_week(tmp_path: Path) -> None:
    """Long periods are grouped by week, with a note unless it was requested."""
    async with page(furnished(tmp_path)) as client:
        long = await client.get("/v1/view/stats", since="5y")
        week = await client.get("/v1/view/stats", since="30d", by="week")
        ever = await client.get("/v1/view/stats", since="90y")
        assert (long["by"], week["by"], ever["by"]) == ("week", "week", "week")
        assert any("by week" in note for note in long["notes"]) and not any("by week" in note for note in week["notes"])
        assert long["charts"][0]["columns"][0] == "week"
        assert len(ever["charts"][0]["svg"]) < 100_000
        assert (await client.refusal("GET", "/v1/view/stats", {"since": "someday"}))[0] == 400
        assert (await client.refusal("GET", "/v1/view/stats", {"by": "luck"}))[0] == 400


async def test_statistics_can_be_of_one_agent_or_project(tmp_path: Path) -> None:
    """Statistics can be filtered by agent."""
    async with page(furnished(tmp_path)) as client:
        await settled(client)
        found = await client.get("/v1/view/stats", agent="pi")
        assert [chart["rows"] for chart in found["charts"] if chart["name"] == "tools"] == [[]]
        assert [row[0] for chart in found["charts"] if chart["name"] == "sessions" for row in chart["rows"]] == [
            "Dotfiles"
        ]


async def test_names_of_models_and_tools_are_no_markup(tmp_path: Path) -> None:
    """Names of models and tools are escaped in charts."""
    home = Household(tmp_path)
    evil = "<script>alert(1)</script>"
    with home.begin(home.own, evil) as session:
        session.append_message(user("hello"))
        session.append_message(answered("hi", evil, tool=evil))
        session.append_message(printed("no", failed=True))
    async with page(home) as client:
        await settled(client)
        found = await client.get("/v1/view/stats")
        seen = await client.get("/v1/view/overview")
    for svg in (*(chart["svg"] for chart in found["charts"]), seen["costs"]["svg"]):
        assert "<script" not in svg
    assert any("&lt;script&gt;" in chart["svg"] for chart in found["charts"])
    assert CLAUDE not in str(found)
