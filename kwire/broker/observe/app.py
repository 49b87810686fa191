"""The pages of a node's HTTP port: health, readiness and metrics.

No page changes anything. On a node with an authorizer, the metrics need a right (`http_login`); health checks
and the index show no data and are open. The console is another application, with rules of its own.

A web site must not read pages through a browser on the machine (DNS rebinding). So on a loopback port,
requests whose Host header is not a local name are rejected. On other ports only the console checks the Host
header, because the console shows records.
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
from kwire.broker.observe.http_login import PageAccess
from kwire.broker.observe.metrics import metrics
from kwire.broker.observe.ports import RunningNode
from kwire.http.hosts import NOT_LOCAL_MESSAGE, HostFilter, is_local_name
from kwire.http.status import SERVICE_UNAVAILABLE


def pages(
    running: RunningNode, access: PageAccess, *, only_local_names: bool, other_paths: Sequence[str] = ()
) -> ASGIApp:
    """Return the ASGI application with the pages of a node.

    `access` decides who may read the metrics. With `only_local_names`, requests whose Host header is not a
    local name are rejected. `other_paths` are the paths of other applications on the port, for the index.
    """

    async def healthz(request: Request) -> Response:
        return _verdict(await why_not_alive(running))

    async def readyz(request: Request) -> Response:
        return _verdict(why_not_ready(running))

    async def metrics_page(request: Request) -> Response:
        if (refusal := await access.refusal(request)) is not None:
            return refusal
        out = Exposition()
        for _ in metrics(running, out):
            await trio.lowlevel.checkpoint()
        return Response(out.text(), headers={"content-type": CONTENT_TYPE})

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics_page)]
    listed = "".join(f"{path}\n" for path in (*(route.path for route in routes), *other_paths))

    async def index(request: Request) -> Response:
        return PlainTextResponse(listed)

    async def failed(request: Request, error: Exception) -> Response:
        return PlainTextResponse("this page failed; the broker's log has the error\n", 500)

    app = Starlette(routes=[Route("/", index), *routes], exception_handlers={Exception: failed})
    return HostFilter(app, is_local_name, NOT_LOCAL_MESSAGE) if only_local_names else app


def _verdict(reason: str) -> Response:
    if reason:
        return PlainTextResponse(f"{reason}\n", SERVICE_UNAVAILABLE)
    return PlainTextResponse("ok\n")
