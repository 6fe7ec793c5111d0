"""The secret review, exports and images."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from builders import user
from http_rig import Http, check_problem
from sessile import BlobStore, Store
from view_rig import CLAUDE, PNG, TOKEN, Household, furnished, page

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def own_id(home: Household) -> str:
    """Return the id of the native session."""
    return home.own.list_all()[0].id


async def test_a_review_names_what_would_be_replaced_and_never_the_secret(tmp_path: Path) -> None:
    """A finding has a name, a place and a redacted excerpt; the secret is never in the response."""
    home = furnished(tmp_path)
    async with page(home) as client:
        response = await client.client.get("/v1/view/share", params={"id": own_id(home)})
    assert TOKEN not in response.text
    found = response.json()
    (secret,) = found["findings"]
    assert (secret["id"], secret["rule"], secret["count"]) == ("github-token#1", "github-token", 1)
    assert secret["length"] == len(TOKEN) and not any(
        TOKEN[at : at + 4] in response.text for at in range(len(TOKEN) - 3)
    )
    assert secret["excerpt"] == "Approach A with [REDACTED:github-token#1] please"
    (place,) = secret["places"]
    assert place["at"] == "message/content" and place["entry"]
    assert found["images"] == 0
    assert found["report"]["schema"] == "sessile.share-report/1"
    assert found["report"]["items"][0]["placeholder"] == "[REDACTED:github-token#1]"


async def test_a_review_can_be_of_one_branch_and_of_personal_things(tmp_path: Path) -> None:
    """A review can be limited to a branch, and can include personal data."""
    home = furnished(tmp_path)
    with home.own.open(own_id(home)) as session:
        active = session.append_message(user("write to ana@payments-demo.dev")).id
    async with page(home) as client:

        async def rules(**query: object) -> list[str]:
            found = await client.get("/v1/view/share", id=own_id(home), **query)
            return [finding["rule"] for finding in found["findings"]]

        assert await rules(branch=active) == []
        assert await rules(branch="dead end") == ["github-token"]
        assert sorted(await rules(personal="true")) == ["email", "github-token"]
        assert (await client.refusal("GET", "/v1/view/share", {"id": own_id(home), "branch": "luck"}))[0] == 404


async def exported(client: Http, session_id: str, **query: str) -> str:
    """Return the text of an export."""
    response = await client.client.get("/v1/view/export", params={"id": session_id, **query})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"
    return response.text


async def test_an_export_replaces_secrets_unless_told_otherwise(tmp_path: Path) -> None:
    """An export redacts secrets unless they are kept or redaction is off."""
    home = furnished(tmp_path)
    async with page(home) as client:
        one = own_id(home)
        for form in ("html", "md", "txt", "jsonl"):
            text = await exported(client, one, form=form)
            assert TOKEN not in text and "[REDACTED:github-token#1]" in text, form
            assert TOKEN in await exported(client, one, form=form, keep="github-token#1")
            assert TOKEN in await exported(client, one, form=form, redact="off")
        path = home.own.find(one)
        assert path is not None
        assert await exported(client, one, form="jsonl", redact="off") == Path(path).read_text()
        assert "albatross" not in await exported(client, one, form="md", branch="8")
        assert "albatross" in await exported(client, one, form="md", branch="dead end")
        assert "aardvark" in await exported(client, CLAUDE, form="md")


async def test_an_export_has_a_name_that_is_safe_everywhere(tmp_path: Path) -> None:
    """The file name has no path, header or secret, and supports any script."""
    home = Household(tmp_path)
    names = {}
    for title in ('../../etc/"x"\r\nSet-Cookie: a=b', "购物车", f"key {TOKEN}", "..."):
        with home.begin(home.own, title) as session:
            session.append_message(user("hello"))
            names[title] = session.id
    async with page(home) as client:
        told = {}
        for title, session_id in names.items():
            response = await client.client.get("/v1/view/export", params={"id": session_id, "form": "md"})
            assert "set-cookie" not in response.headers
            told[title] = response.headers["content-disposition"]
    assert all(name.startswith('attachment; filename="') and "/" not in name for name in told.values())
    assert "%E8%B4%AD%E7%89%A9%E8%BD%A6.md" in told["购物车"] and 'filename="session.md"' in told["购物车"]
    assert TOKEN not in told[f"key {TOKEN}"] and "REDACTED" in told[f"key {TOKEN}"]
    assert 'filename="session.md"' in told["..."]


async def test_an_export_of_what_is_not_there_is_a_problem(tmp_path: Path) -> None:
    """An unknown session or branch returns 404, and an unknown format 400."""
    home = furnished(tmp_path)
    async with page(home) as client:
        assert (await client.refusal("GET", "/v1/view/export", {"id": "ffffffff"}))[0] == 404
        assert (await client.refusal("GET", "/v1/view/export", {"id": own_id(home), "form": "exe"}))[0] == 400
        assert (await client.refusal("GET", "/v1/view/export", {"id": own_id(home), "branch": "luck"}))[0] == 404
        response = await client.client.head("/v1/view/export", params={"id": own_id(home)})
        assert response.status_code == 200 and response.content == b""


async def test_stored_text_cannot_leave_an_exported_page_as_markup(tmp_path: Path) -> None:
    """Stored text is escaped in an exported page."""
    home = Household(tmp_path)
    with home.begin(home.own, "<script>alert(1)</script>") as session:
        session.append_message(user("<script>alert(2)</script>"))
    async with page(home) as client:
        text = await exported(client, own_id(home))
    assert "<script>alert" not in text


# -- images


def pictured(home: Household, *blobs: bytes) -> tuple[str, list[str]]:
    """Create a session with an image, and return its id and the hashes of the blobs."""
    with home.begin(home.own, "Pictures") as session:
        image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
        session.append_message({"role": "user", "content": [{"type": "text", "text": "see"}, image]})
        line = json.loads(Path(session.path).read_bytes().splitlines()[-1])
        digest = line["message"]["content"][1]["data"].removeprefix("blob:sha256:")
        session_id = session.id
    store = Store(home.root / "own")
    kept = BlobStore(store.layout.blobs)
    return session_id, [digest, *(kept.put(blob).hash for blob in blobs)]


async def test_a_picture_comes_as_what_its_first_bytes_say(tmp_path: Path) -> None:
    """The content type is detected from the data, and only images of known types are served."""
    home = Household(tmp_path)
    gif, page_of = b"GIF89a" + bytes(20), b"<html><script>alert(1)</script>"
    one, (png, animated, markup, svg) = pictured(home, gif, page_of, b"<svg xmlns='x' onload='alert(1)'/>")
    async with page(home) as client:
        response = await client.client.get("/v1/view/blob", params={"id": one, "digest": png})
        assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
        assert response.content == PNG
        assert response.headers["content-disposition"].startswith("inline; ")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        other = await client.client.get("/v1/view/blob", params={"id": one, "digest": animated})
        assert other.headers["content-type"] == "image/gif"
        for digest in (markup, svg):
            refused = await client.client.get("/v1/view/blob", params={"id": one, "digest": digest})
            check_problem(refused)
            assert refused.status_code == 415
        review = await client.get("/v1/view/share", id=one)
        assert review["images"] == 1


async def test_a_picture_that_is_gone_or_damaged_is_not_found(tmp_path: Path) -> None:
    """A missing or damaged image returns 404, and an invalid hash 400."""
    home = Household(tmp_path)
    one, (png,) = pictured(home)
    async with page(home) as client:
        missing = {"id": one, "digest": "0" * 64}
        assert (await client.refusal("GET", "/v1/view/blob", missing))[0] == 404
        assert (await client.refusal("GET", "/v1/view/blob", {"id": one, "digest": "../../etc/passwd"}))[0] == 400
        blob = Path(home.own.layout.blobs) / png
        blob.chmod(0o600)
        blob.write_bytes(PNG + b"!")
        assert (await client.refusal("GET", "/v1/view/blob", {"id": one, "digest": png}))[0] == 404
