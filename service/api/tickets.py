"""POST /ws-ticket: how a browser, which cannot set headers on a WebSocket, proves that it has a key."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answers import json_response
from service.api.schemas import TicketOut, problems
from service.api.security import TICKET_SECONDS, Tickets

router = APIRouter(tags=["stream"])


@router.post("/ws-ticket", responses={200: {"model": TicketOut}, **problems(422)})
async def ticket(request: Request) -> Response:
    """Issue a ticket for one WebSocket within the next 30 seconds: send it first, as `{"type":"auth","ticket":…}`."""
    tickets: Tickets = request.app.state.tickets
    return json_response({"ticket": tickets.issue(), "expires_in": TICKET_SECONDS})
