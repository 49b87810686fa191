"""Whom the console lets through a browser: its own pages, and people who go there.

Nobody says who he is, so a site of somebody else must not be able to have a browser do what its user may.
Names of other hosts are refused before (`kwire.http.hosts`). Here, whoever changes something
needs two things: a browser's word that a page of the console has asked (Fetch Metadata, Origin), and a token
that no other site can have read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_FIELD: Final = "token"
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer, with which browsers send forms of our own pages from an origin called null.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""What messages and names contain is escaped; should that fail, a browser still runs nothing of it."""


class Guarded:
    """Gives every answer the headers above."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def read_refusal(headers: Mapping[str, str]) -> str:
    """Why a request is not answered at all: what another site embeds; empty where it is."""
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none") and headers.get("sec-fetch-mode") != "navigate":
        return "another site has asked for this, and not a page of the console"
    return ""


def write_refusal(headers: Mapping[str, str], token_given: str, token: str) -> str:
    """Why a request may not change anything, in a sentence; empty where it may."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "another site has sent this form: nothing was changed"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return f"a page of {origin[:80]} has sent this form: nothing was changed"
    if not hmac.compare_digest(token_given.encode(), token.encode()):
        return "this form is from before the console was started: load its page again, nothing was changed"
    return ""
