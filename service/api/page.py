"""The page, its static files, and the API documentation, all served from here: no CDN."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from service.api.deps import Deps
from service.api.problem import Problem

router = APIRouter(include_in_schema=False)
REVALIDATE = {"Cache-Control": "no-cache"}
START_SWAGGER = """\
window.addEventListener("load", () => {
  SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
});
"""


class PageFiles(StaticFiles):
    """Static files that a browser asks about again before it uses them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Answer with the file, or 304."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


@router.api_route("/", methods=["GET", "HEAD"])
async def index(deps: Deps) -> Response:
    """Serve the dashboard."""
    path = deps.static / "index.html"
    if not path.is_file():
        raise Problem(404, "No page", "The page is not installed; the API is documented at /docs.")
    return FileResponse(path, headers=REVALIDATE)


@router.api_route("/favicon.ico", methods=["GET", "HEAD"])
async def favicon(deps: Deps) -> Response:
    """Serve the icon, or nothing."""
    path = deps.static / "icon.svg"
    return FileResponse(path, headers=REVALIDATE) if path.is_file() else Response(status_code=204)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request, deps: Deps) -> Response:
    """Serve the API documentation: Swagger UI where it was built in, else a plain list."""
    if (deps.static / "vendor" / "swagger-ui" / "swagger-ui-bundle.js").is_file():
        return HTMLResponse(_swagger())
    return HTMLResponse(_plain(request.app.openapi()))


@router.api_route("/docs/start.js", methods=["GET", "HEAD"])
async def start_swagger() -> Response:
    """Serve the script that starts Swagger UI: the content security policy allows no inline one."""
    return Response(START_SWAGGER, media_type="text/javascript")


def _swagger() -> str:
    vendor = "static/vendor/swagger-ui"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Livewick API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="{vendor}/swagger-ui.css"></head><body><div id="docs"></div>'
        f'<script src="{vendor}/swagger-ui-bundle.js"></script><script src="docs/start.js"></script></body></html>'
    )


def _plain(openapi: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{method.upper()} {escape(path)}</code></td><td>{escape(call.get('description', ''))}</td></tr>"
        for path, calls in openapi["paths"].items()
        for method, call in calls.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Livewick API</title></head><body>'
        f'<h1>Livewick API</h1><p>As OpenAPI: <a href="openapi.json">openapi.json</a></p><table>{rows}</table>'
        "</body></html>"
    )


def mount_page(app: FastAPI, deps: Any) -> None:
    """Add the page's routes and files."""
    app.include_router(router)
    if deps.static.is_dir():
        app.mount("/static", PageFiles(directory=deps.static), name="static")
