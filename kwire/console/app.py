"""The console's ASGI application: routes, forms and error pages.

Pages are blocking functions (`kwire.console.page`), which run in a few threads.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote

import trio
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from kwire.cli.shared.output import format_size, format_time
from kwire.console.configs import configs_page
from kwire.console.console_client import ConsoleClient
from kwire.console.denials import denial
from kwire.console.display import visible
from kwire.console.groups import group_page, groups_page, reset
from kwire.console.guard import TOKEN_FIELD, Guarded, read_refusal, write_refusal
from kwire.console.live import MAX_TAILS, Events, Tail, live_page, partitions_of, require_read
from kwire.console.messages import message_page, messages_page
from kwire.console.nodes import cluster_page
from kwire.console.page import (
    PAGE_ERRORS,
    ConsoleSettings,
    Page,
    PageFunction,
    PageRequest,
    PageResult,
    Redirect,
    describe_error,
    number,
)
from kwire.console.partition_log import log_page
from kwire.console.producing import produce
from kwire.console.rates import Rates
from kwire.console.sessions import (
    LOG_IN,
    WRONG_PASSWORD,
    LoginNeeded,
    NoListener,
    Sessions,
    TooManyLogins,
    UserSession,
    is_wrong_password,
)
from kwire.console.topic_search import find_key
from kwire.console.topics import topic_page, topics_page
from kwire.console.transactions import transaction_page, transactions_page
from kwire.host.loggers import NodeLogger, node_name
from kwire.host.peer_log_limit import PeerLogLimit
from kwire.http.basic_auth import (
    CHALLENGE,
    UNAUTHORIZED,
    BasicCredentials,
    MalformedAuthorization,
    basic_credentials,
)
from kwire.wire.errors import ApiError
from kwire.wire.plural import plural

PREFIX: Final = "/console"
HERE: Final = Path(__file__).parent
LOGIN_ERRORS: Final = (LoginNeeded, NoListener, TooManyLogins)
MAX_PAGES_AT_ONCE: Final = 8
MAX_FORM_BYTES: Final = 1024 * 1024
MAX_FIELDS: Final = 50
EXPIRY_SECONDS: Final = 10.0
"""The interval between two checks for expired sessions."""
FORM_SECONDS: Final = 30.0
"""Time within which a form must arrive."""

GET: Final[Mapping[str, PageFunction]] = {
    "/": topics_page,
    "/topics/{topic}": topic_page,
    "/topics/{topic}/key": find_key,
    "/topics/{topic}/live": live_page,
    "/topics/{topic}/{partition:int}": messages_page,
    "/topics/{topic}/{partition:int}/log": log_page,
    "/topics/{topic}/{partition:int}/{offset:int}": message_page,
    "/groups": groups_page,
    "/group": group_page,
    "/transactions": transactions_page,
    "/transaction": transaction_page,
    "/configs": configs_page,
    "/cluster": cluster_page,
}
POST: Final[Mapping[str, PageFunction]] = {
    "/topics/{topic}/messages": produce,
    "/group/offsets": reset,
}


class Console:
    """The application of one console, with its connections to the cluster."""

    def __init__(self, settings: ConsoleSettings, token: str) -> None:
        """Create the application; `token` is a secret from which those in forms are derived."""
        self.settings = settings
        self._sessions = Sessions(settings, token)
        self._rates = Rates(time.monotonic)
        self._threads = trio.CapacityLimiter(MAX_PAGES_AT_ONCE)
        self._tail_threads = trio.CapacityLimiter(MAX_TAILS)
        self._tails = 0
        self._log_limit = PeerLogLimit()
        self._logging = threading.Lock()
        self._logger = NodeLogger("kwire.http", node_name(settings.node_id))
        self._templates = _templates()
        self._templates.globals |= {"settings": settings, "prefix": PREFIX}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions.close()

    async def expire_sessions(self) -> None:
        """Drop the passwords of users who view no pages, also while the console gets no requests."""
        while True:
            await trio.sleep(EXPIRY_SECONDS)
            self._sessions.expire()

    def app(self) -> ASGIApp:
        """Return the ASGI application, with security headers in each response."""
        routes: list[Route | Mount] = [
            _Route(path, self._endpoint(page), methods=["GET"]) for path, page in GET.items()
        ]
        routes += [Route(path, self._endpoint(page), methods=["POST"]) for path, page in POST.items()]
        routes.append(Route("/login", self._login, methods=["GET"]))
        routes.append(Route("/topics/{topic}/live/events", self._events, methods=["GET"]))
        routes.append(Mount("/static", StaticFiles(directory=HERE / "static")))
        app = Starlette(
            routes=[
                Route(PREFIX, lambda request: RedirectResponse(f"{PREFIX}/")),
                Mount(PREFIX, routes=routes),
            ],
            exception_handlers={HTTPException: self._http_error, Exception: self._unexpected_error},
        )
        return Guarded(app)

    def _endpoint(self, page: PageFunction) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if reason := read_refusal(request.headers):
                return self._error_page(403, reason)
            try:
                given = self._credentials(request)
            except MalformedAuthorization as error:
                return self._login_page(str(error))
            form: dict[str, str] = {}
            if request.method == "POST":
                form = await _form(request)
                if not self.settings.may_write:
                    return self._error_page(
                        403, "this console is read-only: use --console-writes to allow changes"
                    )
                token = self._sessions.token(given)
                if reason := write_refusal(request.headers, form.get(TOKEN_FIELD, ""), token):
                    return self._error_page(403, reason)
            work = functools.partial(
                self._handle,
                page,
                given,
                _ip(request),
                request.path_params,
                dict(request.query_params),
                form,
                request.method,
            )
            return await trio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)

        return endpoint

    def _credentials(self, request: Request) -> BasicCredentials | None:
        """Return the user and the password of a request; None if it has none, or without an authorizer.

        Raises MalformedAuthorization.
        """
        return None if self.settings.access is None else basic_credentials(request.headers.raw)

    async def _login(self, request: Request) -> Response:
        """Redirect to the start page after a login. Without credentials, the browser shows its dialog."""
        if self.settings.access is None:
            raise HTTPException(404)
        if self.settings.access.logins and "authorization" not in request.headers:
            return self._login_page(LOG_IN)
        response: Response = await self._endpoint(_start_page)(request)
        return response

    def _handle(
        self,
        page: PageFunction,
        given: BasicCredentials | None,
        ip: str,
        path: Mapping[str, Any],
        query: Mapping[str, str],
        form: Mapping[str, str],
        method: str,
    ) -> Response:
        """Call the page's function and return the page, a redirect or an error page. Runs in a thread."""
        session: UserSession | None = None
        last_client: ConsoleClient | None = None

        def render(cluster: ConsoleClient) -> PageResult:
            nonlocal last_client
            assert session is not None
            last_client = cluster
            now_ms = time.time_ns() // 1_000_000
            may_describe = functools.partial(session.may_describe_cluster, cluster)
            return page(
                PageRequest(self.settings, cluster, self._rates, path, query, form, now_ms, may_describe)
            )

        try:
            session = self._sessions.of(given, ip)
            if method == "POST":  # a change must not be retried
                with session.clients.connect() as cluster:
                    result = render(cluster)
            else:
                try:
                    result = session.clients.run(render)
                except ApiError as error:
                    if given is None or not is_wrong_password(error):
                        raise
                    # The user's credential has changed since the login. It may have another mechanism now.
                    self._sessions.drop(given)
                    session = self._sessions.of(given, ip)
                    result = session.clients.run(render)
        except (*PAGE_ERRORS, *LOGIN_ERRORS) as error:
            return self._failed(error, given, ip, session, last_client, path)
        if isinstance(result, Redirect):
            return RedirectResponse(f"{PREFIX}/{result.path}", 303)
        return self._page(result, session=session)

    def _failed(
        self,
        error: Exception,
        given: BasicCredentials | None,
        ip: str,
        session: UserSession | None,
        cluster: ConsoleClient | None,
        path: Mapping[str, Any],
    ) -> HTMLResponse:
        """Return the page for an error of a page or of a login."""
        if isinstance(error, LoginNeeded):
            if given is not None:
                self._log_failed_login(ip)
            return self._login_page(str(error))
        if isinstance(error, NoListener):
            return self._error_page(403, str(error))
        if isinstance(error, TooManyLogins):
            return self._error_page(503, str(error))
        if given is not None and is_wrong_password(error):
            self._sessions.drop(given)
            self._log_failed_login(ip)
            return self._login_page(WRONG_PASSWORD)
        if session is not None and session.principal:
            request = None if cluster is None else cluster.last_request
            if sentence := denial(error, request, session.principal, str(path.get("topic", ""))):
                return self._error_page(403, sentence, session)
        return self._error_page(*describe_error(error), session)

    def _log_failed_login(self, ip: str) -> None:
        """Log a failed login with the browser's address. The broker's log has that of the console."""
        with self._logging:
            if not self._log_limit.should_log(ip, "console", "login", int(1000 * time.monotonic())):
                return
        self._logger.warning(
            "Failed login%s at the web console: wrong user name or password. Further failed logins from "
            "there are not logged for a minute. If they are not expected, restrict access to the HTTP port",
            f" from {ip}" if ip else " over HTTPS",
        )

    async def _events(self, request: Request) -> Response | Events:
        """Return the event stream of a live tail, or an error page."""
        if reason := read_refusal(request.headers):
            return self._error_page(403, reason)
        topic = request.path_params["topic"]
        tail: Tail | None = None
        session: UserSession | None = None
        cluster: ConsoleClient | None = None
        given: BasicCredentials | None = None
        ip = _ip(request)
        is_counted = False
        try:
            given = self._credentials(request)
            # Before the tail is counted, so that clients without a login cannot take all tails.
            session = await trio.to_thread.run_sync(self._sessions.of, given, ip, limiter=self._threads)
            if self._tails >= MAX_TAILS:
                return self._error_page(503, f"{MAX_TAILS} live tails are already open: close one of them")
            self._tails += 1
            is_counted = True
            partition = number("partition", request.query_params.get("partition", ""))

            def begin() -> Tail:
                nonlocal cluster
                assert session is not None
                cluster = session.clients.connect()
                partitions = partitions_of(cluster, topic, partition)
                if self.settings.access is not None:
                    require_read(cluster, partitions)
                return Tail(cluster, partitions, renews_login=session.has_login)

            tail = await trio.to_thread.run_sync(begin, limiter=self._threads)
            return Events(tail, self._tail_ended, self._tail_threads)
        except MalformedAuthorization as error:
            return self._login_page(str(error))
        except (*PAGE_ERRORS, *LOGIN_ERRORS) as error:
            return self._failed(error, given, ip, session, cluster, request.path_params)
        finally:
            if tail is None:
                if cluster is not None:
                    cluster.close()
                if is_counted:
                    self._tail_ended()

    def _tail_ended(self) -> None:
        self._tails -= 1

    def _page(
        self,
        page: Page,
        status: int = 200,
        session: UserSession | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HTMLResponse:
        values = {
            **page.values,
            "token": "" if session is None else session.token,
            "user": session.principal.partition(":")[2] if session is not None and session.has_login else "",
        }
        source = self._templates.get_template(page.template).render(values)
        return HTMLResponse(source, status, headers)

    def _error_page(self, status: int, sentence: str, session: UserSession | None = None) -> HTMLResponse:
        return self._page(Page("error.html", {"status": status, "sentence": sentence}), status, session)

    def _login_page(self, sentence: str) -> HTMLResponse:
        """Return the page after whose headers a browser shows its login dialog."""
        page = Page("error.html", {"status": UNAUTHORIZED, "sentence": sentence})
        return self._page(page, UNAUTHORIZED, headers=CHALLENGE)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code in (404, 405):  # Starlette's detail is only the name of the status
            return self._error_page(
                error.status_code, f"there is no page {request.url.path} for {request.method}"
            )
        return self._error_page(error.status_code, str(error.detail))

    async def _unexpected_error(self, request: Request, error: Exception) -> Response:
        return self._error_page(500, "this page failed: see the broker's log for details")


def _ip(request: Request) -> str:
    """Return the address of the client; empty behind the broker's TLS, where the peer is a socket pair."""
    return "" if request.client is None else request.client.host


def _start_page(request: PageRequest) -> PageResult:
    """Redirect to the start page, after a request that needs a login."""
    request.cluster.brokers()
    return Redirect("")


class _Route(Route):
    """A route that does not match if a number in the path is too long for Python to parse."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        try:
            return super().matches(scope)
        except ValueError:
            return Match.NONE, {}


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": format_size,
        "time": lambda timestamp_ms: format_time(timestamp_ms) or "none",
        "number": lambda number: f"{number:,}",
        "rate": lambda rate: f"{rate:,.1f}" if rate < 10 else f"{rate:,.0f}",
        "plural": plural,
        "visible": visible,
        "part": lambda text: quote(str(text), safe=""),
    }
    return environment


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; if a name occurs twice, the last field counts.

    Raises HTTPException if the form is too large, too slow or malformed.
    """
    body = b""
    try:
        async with aclosing(request.stream()) as stream:
            with trio.fail_after(FORM_SECONDS):
                async for part in stream:
                    body += part
                    if len(body) > MAX_FORM_BYTES:
                        raise HTTPException(413, f"the form is larger than {MAX_FORM_BYTES} bytes")
    except trio.TooSlowError:
        raise HTTPException(
            408, f"the form did not arrive within {FORM_SECONDS:.0f} s: send it again"
        ) from None
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise HTTPException(400, "this is not a form of the console") from None
