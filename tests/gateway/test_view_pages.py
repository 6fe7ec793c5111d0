"""The static files of the page: public, and one index file for all page paths."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import sessile
from http_rig import BASE, http
from sessile.core.secret import Secret
from sessile.gateway.http.asgi import make_app

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P35")]

WEB = Path(sessile.__file__).parent / "web"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_every_path_of_the_page_gives_its_first_file(tmp_path: Path) -> None:
    """Every page path returns the index file without a token, for GET and HEAD only."""
    async with http(tmp_path) as gate:
        index = (WEB / "page" / "index.html").read_text()
        transport = httpx.ASGITransport(make_app(gate.gateway, Secret("another")))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            paths = ["/", "/sessions", "/s/6513a0c2", "/s/%40last", "/search?q=a", "/stats", "/share/x-1", "/gateway"]
            for path in paths:
                response = await client.get(path)
                assert (response.status_code, response.text) == (200, index), path
                policy = response.headers["content-security-policy"]
                assert "require-trusted-types-for 'script'; trusted-types sessile" in policy
                assert (await client.head(path)).status_code == 200
                for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                    assert (await client.request(method, path)).status_code == 401
            for path in ("/s", "/s/", "/s/a/b", "/share", "/stats/x", "/sessionsx"):
                assert (await client.get(path)).status_code in (401, 404), path


async def test_every_file_is_given_with_its_type(tmp_path: Path) -> None:
    """Files of the page and the export's style sheet are served with their type; other files are not found."""
    files = [path for path in (WEB / "page").rglob("*") if path.suffix in TYPES]
    assert any(path.parent.name == "session" for path in files)
    async with http(tmp_path) as gate:
        for file in [*files, WEB / "style.css"]:
            response = await gate.client.get(f"/static/{file.relative_to(WEB).as_posix()}")
            assert (response.status_code, response.content) == (200, file.read_bytes())
            assert response.headers["content-type"].startswith(TYPES[file.suffix])
        for path in ("export.js", "page", "page/", "page/%2e%2e/export.js", "gateway/list.js"):
            assert (await gate.client.get(f"/static/{path}")).status_code == 404, path
