"""Protection against cross-site requests.

Without an authorizer the console has no authentication, and with one, browsers send the password with each
request. So another site must not be able to use a visitor's browser to read or change anything.
`kwire.http.hosts` rejects unknown host names in URLs. A change also needs same-origin
headers from the browser (Fetch Metadata, Origin), and a token that no other site can read. With logins, each
user has another token (`sessions`).
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
    # With no-referrer, browsers would send the console's own forms with the origin null.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""A second line of defense: templates escape the contents of messages, and these headers forbid scripts."""


class Guarded:
    """ASGI middleware that adds the security headers to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def read_refusal(headers: Mapping[str, str]) -> str:
    """Return why a request from another site is rejected; empty if the request is allowed.

    Other sites may link to pages, but must not load them as resources or from scripts.
    """
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none") and headers.get("sec-fetch-mode") != "navigate":
        return "this request came from another site, not from the console"
    return ""


def write_refusal(headers: Mapping[str, str], token_given: str, token: str) -> str:
    """Return why a change is rejected; empty if the change is allowed.

    `token_given` is the token in the form, which must equal `token`.
    """
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "this form was sent by another site: nothing was changed"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return f"this form was sent by a page of {origin[:80]}: nothing was changed"
    if not hmac.compare_digest(token_given.encode(), token.encode()):
        return "the console was restarted after this form was loaded: reload the form. Nothing was changed"
    return ""
