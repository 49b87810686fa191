"""Requests and results of pages. A page is a blocking function from a request to a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import describe_api_error
from kwire.client.errors import Disconnected, NoReachableBroker, UnknownPartition
from kwire.client.security import PLAINTEXT, Security
from kwire.console.rates import Rates
from kwire.wire.errors import ApiError, ErrorCode, WireError

if TYPE_CHECKING:
    import ssl

MAX_NUMBER = (1 << 63) - 1
MAX_DIGITS = len(str(MAX_NUMBER))


CLIENT_ID = "kwire-console"


class ListenerAddress(NamedTuple):
    """A listener to which the console connects."""

    servers: str
    """The bootstrap servers."""
    tls: ssl.SSLContext | None = None


class Login(NamedTuple):
    """A way to log in as the user of a request."""

    mechanism: str
    listener: ListenerAddress


class Access(NamedTuple):
    """The listeners for the users of the console if the broker has an authorizer."""

    logins: tuple[Login, ...]
    """The ways to log in, in the order in which the console tries them."""
    anonymous: ListenerAddress | None = None
    """The listener for requests without credentials; None if they get no pages."""


class ConsoleSettings(NamedTuple):
    """Settings of a console process."""

    bootstrap_servers: str
    node_id: int
    """The id of the broker beside which the console runs; -1 without a broker."""
    log_dirs: tuple[str, ...]
    """The broker's log directories, which the console reads."""
    may_write: bool
    """Whether the console may produce and reset offsets."""
    security: Security = PLAINTEXT
    """Security of the console's connections."""
    client_id: str = CLIENT_ID
    """Client id of the console's requests."""
    access: Access | None = None
    """The listeners for the users of the console; None without an authorizer.

    With an authorizer, `security` is not used, and the broker decides about each request of a user.
    """


class PageRequest(NamedTuple):
    """A request for a page."""

    settings: ConsoleSettings
    cluster: CommandClient
    rates: Rates
    path: Mapping[str, Any]
    """Parameters in the path: topic, partition, offset."""
    query: Mapping[str, str]
    form: Mapping[str, str]
    now_ms: int
    may_describe_cluster: Callable[[], bool] = lambda: True
    """Returns whether the user may describe the cluster. Otherwise pages omit requests that need this."""

    @property
    def topic(self) -> str:
        return str(self.path["topic"])

    @property
    def partition(self) -> int:
        return int(self.path["partition"])

    def text(self, name: str) -> str:
        """Return a field of the form or the query; empty if it is missing."""
        return (self.form.get(name) or self.query.get(name) or "").strip()

    def paginate(self, found: Sequence[Any], at_once: int) -> dict[str, Any]:
        """Return up to `at_once` rows of `found` from the index in the field `at` on, as template values.

        Raises UsageError if the field is not a number.
        """
        at = min(self.number("at") or 0, max(0, len(found) - 1))
        return {"rows": found[at : at + at_once], "count": len(found), "at": at, "at_once": at_once}

    def number(self, name: str) -> int | None:
        """Return a field that is a non-negative integer; None if it is empty. Raises UsageError."""
        return number(name, self.text(name))


def number(name: str, text: str) -> int | None:
    """Parse a non-negative integer; None if the text is empty. Raises UsageError."""
    if not text:
        return None
    # Check the length first: Python refuses to parse thousands of digits.
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS or int(text) > MAX_NUMBER:
        raise UsageError(f"{name} is {text[:40]!r}: expected a whole number from 0 to {MAX_NUMBER}")
    return int(text)


class Page(NamedTuple):
    """A page: its template and values."""

    template: str
    values: Mapping[str, Any]


class Redirect(NamedTuple):
    """A redirect to a path below the console's prefix."""

    path: str


PageResult = Page | Redirect
PageFunction = Callable[[PageRequest], PageResult]
"""A page. It may raise any of PAGE_ERRORS."""

NOT_FOUND_CODES = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)
"""Error codes for things that do not exist, with HTTP status 404 instead of 400."""
PAGE_ERRORS = (CommandError, UnknownPartition, ApiError, Disconnected, WireError)
"""Errors whose error page shows their message. All other errors are logged and have a general error page."""


def describe_error(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error."""
    match error:
        case UsageError():
            return 400, str(error)
        case CommandError() | UnknownPartition():
            return 404, str(error)
        case NoReachableBroker():
            return 502, f"no broker is reachable ({error}): check whether the broker is still running"
        case ApiError():
            status = 404 if error.code in NOT_FOUND_CODES else 502 if error.code.retriable else 400
            return status, describe_api_error(error)
    return 502, str(error)
