"""The pages of a node's HTTP port.

Nobody is asked who he is, so no page changes anything. A page may be read by any program on a machine, but
not through a browser by a site of somebody else: where the port is bound to loopback, requests that name
another host than this one are refused, as after a site has had its own name point to 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kwire.broker.net.serve import RunningNode
from kwire.broker.observe.exposition import CONTENT_TYPE, Exposition
from kwire.broker.observe.health import why_not_alive, why_not_ready
from kwire.broker.observe.metrics import metrics

SERVICE_UNAVAILABLE = 503
MISDIRECTED_REQUEST = 421


def pages(running: RunningNode, *, only_local_names: bool) -> ASGIApp:
    """The application. With `only_local_names` requests to another name than a local one are refused."""

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

    async def index(request: Request) -> Response:
        return PlainTextResponse(listed)

    async def failed(request: Request, error: Exception) -> Response:
        running.loop.logger("kwire.http").error("%s failed", request.url.path, exc_info=error)
        return PlainTextResponse("this page failed, and the log says how\n", 500)

    app = Starlette(routes=[Route("/", index), *routes], exception_handlers={Exception: failed})
    return _OfThisHost(app, is_local_name) if only_local_names else app


def _verdict(reason: str) -> Response:
    if reason:
        return PlainTextResponse(f"{reason}\n", SERVICE_UNAVAILABLE)
    return PlainTextResponse("ok\n")


def is_local_name(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine from within."""
    name, _, port = host.rpartition(":")
    if not name or port.endswith("]"):
        name = host  # without a port
    name = name.removeprefix("[").removesuffix("]").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class _OfThisHost:
    """Refuses requests to other names."""

    def __init__(self, app: ASGIApp, is_known: Callable[[str], bool]) -> None:
        self._app = app
        self._is_known = is_known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            named = [value for name, value in scope["headers"] if name == b"host"]
            if len(named) != 1 or not self._is_known(named[0].decode("latin-1")):
                refusal = PlainTextResponse(
                    "this port is for this machine: ask for it as 127.0.0.1 or localhost, or have kwire "
                    "serve it on another address with --http HOST:PORT\n",
                    MISDIRECTED_REQUEST,
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
