"""The pages of a node's HTTP port.

Nobody is asked who he is, so no page of these changes anything; the console has rules of its own. A page may
be read by any program on a machine, but not through a browser by a site of somebody else: where the port is
bound to loopback, requests that name another host than this one are refused, as after a site has had its
own name point to 127.0.0.1. Elsewhere only the console, which shows what is in topics, asks for a name of its
host.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kwire.broker.observe.exposition import CONTENT_TYPE, Exposition
from kwire.broker.observe.health import why_not_alive, why_not_ready
from kwire.broker.observe.metrics import metrics
from kwire.broker.observe.ports import RunningNode
from kwire.http.hosts import NOT_LOCAL_MESSAGE, HostFilter, is_local_name

SERVICE_UNAVAILABLE = 503


def pages(running: RunningNode, *, only_local_names: bool, beside: Sequence[str] = ()) -> ASGIApp:
    """The application. With `only_local_names` requests to another name than a local one are refused.

    `beside` are addresses that somebody else answers; they are listed.
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
    listed = "".join(f"{path}\n" for path in (*(route.path for route in routes), *beside))

    async def index(request: Request) -> Response:
        return PlainTextResponse(listed)

    async def failed(request: Request, error: Exception) -> Response:
        return PlainTextResponse("this page failed, and the log says how\n", 500)

    app = Starlette(routes=[Route("/", index), *routes], exception_handlers={Exception: failed})
    return HostFilter(app, is_local_name, NOT_LOCAL_MESSAGE) if only_local_names else app


def _verdict(reason: str) -> Response:
    if reason:
        return PlainTextResponse(f"{reason}\n", SERVICE_UNAVAILABLE)
    return PlainTextResponse("ok\n")
