"""The pages of a node's HTTP port.

Nobody is asked who he is, so no page of these changes anything; the console has rules of its own. A page may
be read by any program on a machine, but not through a browser by a site of somebody else: where the port is
bound to loopback, requests that name another host than this one are refused, as after a site has had its
own name point to 127.0.0.1. Elsewhere only the console, which shows what is in topics, asks for a name of its
host.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kwire.broker.net.running import RunningNode
from kwire.broker.observe.exposition import CONTENT_TYPE, Exposition
from kwire.broker.observe.health import why_not_alive, why_not_ready
from kwire.broker.observe.metrics import metrics
from kwire.broker.raft.endpoints import broker_endpoints

SERVICE_UNAVAILABLE = 503
MISDIRECTED_REQUEST = 421


CONSOLE: Final = "/console"
NOT_LOCAL: Final = (
    "this port is for this machine: ask for it as 127.0.0.1 or localhost, or have kwire serve it on another "
    "address with --http HOST:PORT\n"
)
NOT_OURS: Final = (
    "ask for this console by an address of its machine, or by a host that its broker advertises\n"
)


def pages(running: RunningNode, *, only_local_names: bool, console: ASGIApp | None = None) -> ASGIApp:
    """The application. With `only_local_names` requests to another name than a local one are refused.

    `console` answers what is asked of it.
    """

    async def healthz(request: Request) -> Response:
        return _verdict(await why_not_alive(running))

    async def readyz(request: Request) -> Response:
        return _verdict(why_not_ready(running))

    async def metrics_page(request: Request) -> Response:
        out = Exposition()
        for _ in metrics(running, out):
            await trio.lowlevel.checkpoint()
        return Response(out.text(), headers={"content-type": CONTENT_TYPE})

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics_page)]
    listed = "".join(f"{route.path}\n" for route in routes)
    mounts: list[BaseRoute] = []
    if console is not None:
        listed += f"{CONSOLE}/\n"
        own_names = {socket.gethostname(), *(each.host for each in broker_endpoints(running.node.config))}
        mounts.append(
            Mount(CONSOLE, _OfThisHost(console, lambda host: is_name_of(host, own_names), NOT_OURS))
        )

    async def index(request: Request) -> Response:
        return PlainTextResponse(listed)

    async def failed(request: Request, error: Exception) -> Response:
        running.loop.logger("kwire.http").error("%s failed", request.url.path, exc_info=error)
        return PlainTextResponse("this page failed, and the log says how\n", 500)

    app = Starlette(routes=[Route("/", index), *routes, *mounts], exception_handlers={Exception: failed})
    return _OfThisHost(app, is_local_name, NOT_LOCAL) if only_local_names else app


def _verdict(reason: str) -> Response:
    if reason:
        return PlainTextResponse(f"{reason}\n", SERVICE_UNAVAILABLE)
    return PlainTextResponse("ok\n")


def is_local_name(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine from within."""
    name = _name_of(host)
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def is_name_of(host: str, names: Collection[str]) -> bool:
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


class _OfThisHost:
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
