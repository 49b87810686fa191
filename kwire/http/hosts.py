"""For whom a Host header asks: no site of somebody else may have its own name point here (DNS rebinding)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MISDIRECTED_REQUEST: Final = 421
NOT_LOCAL_MESSAGE: Final = (
    "this port is for this machine: ask for it as 127.0.0.1 or localhost, or have kwire serve it on another "
    "address with --http HOST:PORT\n"
)


def is_local_name(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine from within."""
    name = _name_of(host)
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def is_known_name(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names a machine of these names, or an address: no site has one for its name."""
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
    """Refuses requests to other names."""

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
