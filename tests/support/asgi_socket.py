"""AsgiSocket: one WebSocket client of an ASGI application, without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any


class AsgiSocket:
    """Connects to ``app``; what the server sends waits in ``received`` until it is taken.

    ``room`` is how many frames the client's buffers hold: a server that sends more waits until some are taken.
    """

    def __init__(
        self, app: Any, query: str = "", headers: dict[str, str] | None = None, room: int = 4, path: str = "/ws"
    ) -> None:
        self._app = app
        self._scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8000),
            "subprotocols": [],
            "state": {},
            "extensions": {"websocket.http.response": {}, "livewick.abort": self._abort},
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=room)
        self.status: int | None = None
        self.close_code: int | None = None
        self.aborted = False

    async def open(self) -> None:
        """Start the handshake and let the server answer it."""
        self._incoming.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(self._app(self._scope, self._incoming.get, self._take))
        await settle()

    async def send(self, text: str | None = None, data: bytes | None = None) -> None:
        """Send a frame."""
        self._incoming.put_nowait({"type": "websocket.receive", "text": text, "bytes": data})
        await settle()

    def frames(self) -> list[dict[str, Any]]:
        """Take what has arrived."""
        taken = []
        while not self.received.empty():
            taken.append(json.loads(self.received.get_nowait()["text"]))
        return taken

    async def leave(self) -> None:
        """Close from the client's side and let the server notice."""
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await settle()

    @property
    def over(self) -> bool:
        return self.task.done()

    async def _take(self, message: MutableMapping[str, Any]) -> None:
        match message["type"]:
            case "websocket.send":
                await self.received.put(dict(message))
            case "websocket.close":
                self.close_code = message["code"]
                self._incoming.put_nowait({"type": "websocket.disconnect", "code": message["code"]})
            case "websocket.http.response.start":
                self.status = message["status"]

    def _abort(self) -> None:
        self.aborted = True


async def settle(turns: int = 30) -> None:
    """Let everything that can run do so."""
    for _ in range(turns):
        await asyncio.sleep(0)
