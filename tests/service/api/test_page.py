"""The page, its files and the API documentation."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.service.api.conftest import World


@pytest.fixture
def static(world: World, tmp_path: Path) -> Path:
    world.static = tmp_path
    (tmp_path / "index.html").write_text("<!doctype html><title>Livewick</title>")
    (tmp_path / "app.js").write_text("export {};")
    return tmp_path


@pytest.mark.usefixtures("static")
async def test_the_page_and_its_files_are_served(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    script = await client.get("/static/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert (page.headers["cache-control"], script.headers["cache-control"]) == ("no-cache", "no-cache")
    again = await client.get("/static/app.js", headers={"If-None-Match": script.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.usefixtures("static")
async def test_the_page_is_confined_to_its_own_origin(client: httpx.AsyncClient) -> None:
    headers = (await client.get("/")).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("path", ["/static/../secret", "/static/%2e%2e/secret", "/static/none.js", "/static/a%00b"])
async def test_nothing_outside_the_folder_is_served(client: httpx.AsyncClient, path: str, static: Path) -> None:
    (static.parent / "secret").write_text("secret")
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.usefixtures("static")
async def test_docs_need_no_cdn_and_no_inline_script(client: httpx.AsyncClient, static: Path) -> None:
    plain = (await client.get("/docs")).text
    assert "POST /predict" in plain
    folder = static / "vendor" / "swagger-ui"
    folder.mkdir(parents=True)
    (folder / "swagger-ui-bundle.js").write_text("")
    swagger = (await client.get("/docs")).text
    for html in (plain, swagger):
        assert "http://" not in html
        assert "https://" not in html
        assert "<script>" not in html
    assert (await client.get("/docs/start.js")).headers["content-type"].startswith("text/javascript")


async def test_without_an_installed_page_the_api_still_answers(client: httpx.AsyncClient, world: World) -> None:
    world.static = Path("nowhere")
    assert (await client.get("/")).status_code == 404
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/favicon.ico")).status_code == 204


async def test_the_openapi_document_has_every_call_and_the_version(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["info"]["version"] == "1.2.3"
    assert {"/predict", "/candles", "/series", "/score", "/model/rollback", "/ws-ticket", "/metrics"} <= set(
        document["paths"]
    )
    assert set(document["paths"]["/predict"]) == {"get", "post"}
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert document["paths"]["/predict"]["get"]["summary"] == "Tell the latest prediction of the live learner"


async def test_every_documented_error_is_a_problem(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    for calls in document["paths"].values():
        for call in calls.values():
            errors = {status: answer for status, answer in call["responses"].items() if status != "200"}
            assert {"401", "413", "429", "500"} <= set(errors)
            assert all(list(answer["content"]) == ["application/problem+json"] for answer in errors.values())
