"""Maintenance in a gateway: report only by default, archive before removal, and undo."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateways import Clock
from http_rig import NEVER, Json, http
from sessile.errors import StorageFailure
from sessile.gateway.conversations.maintenance import Maintained

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y2")]

DAY = 86_400.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def rules(mode: str) -> Json:
    return {"session": NEVER["session"] | {"maintenance": {"mode": mode, "pruneAfter": "30d"}}}


async def old_conversation(root: Path) -> Clock:
    """Create a conversation that was last used 40 days ago, and return the clock."""
    clock = Clock()
    async with http(root, clock=clock) as client:
        await client.say("hello", key="hook:old")
        await client.say("hello")
    clock.now += 40 * DAY
    return clock


async def test_by_default_old_conversations_are_only_told(tmp_path: Path) -> None:
    """In "warn" mode, old conversations are reported but not removed, also at startup."""
    clock = await old_conversation(tmp_path)
    async with http(tmp_path, rules("warn"), clock=clock) as client:
        plan = await client.get("/v1/maintenance")
        assert [(one["key"], one["why"]) for one in plan["going"]] == [("agent:main:hook:old", "old")]
        assert (plan["mode"], plan["staying"]) == ("warn", 1) and plan["told"]
        done = await client.post("/v1/maintenance")
        assert (done["removed"], done["token"]) == ([], None)
        assert (await client.get("/v1/sessions"))["count"] == 2


async def test_where_it_was_asked_for_they_are_archived_and_come_back(tmp_path: Path) -> None:
    """In "enforce" mode, old conversations are archived before they are removed, and undo restores them."""
    clock = await old_conversation(tmp_path)
    async with http(tmp_path, clock=clock) as client:
        path = client.gateway.conversations.path_of("hook:old")
    async with http(tmp_path, rules("enforce"), clock=clock) as client:
        with_it = await client.post("/v1/maintenance")  # maintenance may already have run at startup
        keys = [row["key"] for row in (await client.get("/v1/sessions"))["sessions"]]
        assert keys == ["agent:main:main"]
        archives = list((tmp_path / "agents" / "main" / "sessions").glob("sessions.archived.*.json"))
        assert len(archives) == 1 and path is not None and Path(path).exists()
        token = with_it["token"] or archives[0].name.removeprefix("sessions.archived.").removesuffix(".json")
        back = await client.post("/v1/maintenance/undo", token=token)
        assert back["keys"] == ["agent:main:hook:old"]
        assert (await client.get("/v1/sessions"))["count"] == 2


async def test_what_somebody_has_pinned_stays(tmp_path: Path) -> None:
    """A pinned session is kept, even if it was pinned after the plan was made."""
    clock = await old_conversation(tmp_path)
    async with http(tmp_path, rules("warn"), clock=clock) as client:
        pins = client.gateway.store.pins
        found = client.gateway.conversations.get("hook:old")
        assert found is not None and found.session_id is not None
        pins.add(found.session_id)
        assert (await client.get("/v1/maintenance"))["going"] == []
        pins.remove(found.session_id)
        plan = client.gateway.maintenance.plan("main")._replace(mode="enforce")
        pins.add(found.session_id)
        done = client.gateway.maintenance.apply(plan)
        assert (done.removed, done.refused) == ((), (("agent:main:hook:old", "pinned"),))


async def test_why_maintenance_has_stopped_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log contains the reason why maintenance stopped."""
    clock = await old_conversation(tmp_path)
    failure = StorageFailure("the disk is on fire")
    async with http(tmp_path, rules("warn"), clock=clock) as client:
        monkeypatch.setattr(
            "sessile.gateway.conversations.maintenance.apply_maintenance",
            lambda *_, **__: Maintained((), failure=failure),
        )
        await client.gateway.call(client.gateway.maintenance._run_once)
    assert "maintenance of main stopped: the disk is on fire" in caplog.text
