"""Checks of the Host header, against DNS rebinding: a foreign site whose name resolves to this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MISDIRECTED_REQUEST: Final = 421
NOT_LOCAL_MESSAGE: Final = (
    "this port is only for this machine: use 127.0.0.1 or localhost, or serve another address with "
    "kwire serve --http HOST:PORT\n"
)


def is_local_name(host: str) -> bool:
    """Return whether a Host header, with or without a port, is a loopback name or address."""
    name = _name_of(host)
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def is_known_name(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header is localhost, an IP address, or one of `names`.

    A foreign site needs a host name of its own, so it can have none of these.
    """
    name = _name_of(host)
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost" or name in {each.lower() for each in names}
    return True


def _name_of(host: str) -> str:
    name, _, port = host.rpartition(":")
    if not name or port.endswith("]"):
        name = host  # without a port
    return name.removeprefix("[").removesuffix("]").lower()


class HostFilter:
    """ASGI middleware that rejects requests for unknown hosts, with status 421 and the text `refusal`."""

    def __init__(self, app: ASGIApp, is_known: Callable[[str], bool], refusal: str) -> None:
        self._app = app
        self._is_known = is_known
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            named = [value for name, value in scope["headers"] if name == b"host"]
            if len(named) != 1 or not self._is_known(named[0].decode("latin-1")):
                await PlainTextResponse(self._refusal, MISDIRECTED_REQUEST)(scope, receive, send)
                return
        await self._app(scope, receive, send)
