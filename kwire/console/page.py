"""What a page is asked, and what it answers: plain values, so that a page is a function that blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import describe_api_error
from kwire.client.errors import Disconnected, NoReachableBroker, UnknownPartition
from kwire.client.security import PLAINTEXT, Security
from kwire.console.rates import Rates
from kwire.wire.errors import ApiError, ErrorCode, WireError

MAX_NUMBER = (1 << 63) - 1
MAX_DIGITS = len(str(MAX_NUMBER))


CLIENT_ID = "kwire-console"


class ConsoleSettings(NamedTuple):
    """Where a console stands."""

    bootstrap_servers: str
    node_id: int
    """The broker beside which it runs; -1 where it stands alone."""
    log_dirs: tuple[str, ...]
    """That broker's directories, which the console reads."""
    may_write: bool
    """Whether it produces, and resets offsets."""
    security: Security = PLAINTEXT
    """How it says who it is."""
    client_id: str = CLIENT_ID
    """What brokers know it by."""


class PageRequest(NamedTuple):
    """One request for a page."""

    settings: ConsoleSettings
    cluster: CommandClient
    rates: Rates
    path: Mapping[str, Any]
    """What the path names: topic, partition, offset."""
    query: Mapping[str, str]
    form: Mapping[str, str]
    now_ms: int

    @property
    def topic(self) -> str:
        return str(self.path["topic"])

    @property
    def partition(self) -> int:
        return int(self.path["partition"])

    def text(self, name: str) -> str:
        """A field of the query, or of the form that was sent; empty where it is not there."""
        return (self.form.get(name) or self.query.get(name) or "").strip()

    def paginate(self, found: Sequence[Any], at_once: int) -> dict[str, Any]:
        """A list from where `at` says on, as templates have it. UsageError."""
        at = min(self.number("at") or 0, max(0, len(found) - 1))
        return {"rows": found[at : at + at_once], "count": len(found), "at": at, "at_once": at_once}

    def number(self, name: str) -> int | None:
        """A field that is a whole number from 0 on; None where it is empty. UsageError."""
        return number(name, self.text(name))


def number(name: str, text: str) -> int | None:
    """A whole number from 0 on; None where it is empty. UsageError."""
    if not text:
        return None
    # Digits are counted first: Python refuses to look at thousands of them.
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS or int(text) > MAX_NUMBER:
        raise UsageError(f"{name} is {text[:40]!r}: expected a whole number from 0 to {MAX_NUMBER}")
    return int(text)


class Page(NamedTuple):
    """A page: its template, and what is filled in."""

    template: str
    values: Mapping[str, Any]


class Redirect(NamedTuple):
    """Where what was asked for is to be seen: an address below the console's."""

    path: str


PageResult = Page | Redirect
PageFunction = Callable[[PageRequest], PageResult]

NOT_FOUND_CODES = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)
"""What brokers say of what a page is asked about, and there is not; else it is asked for wrongly."""
PAGE_ERRORS = (CommandError, UnknownPartition, ApiError, Disconnected, WireError)
"""What keeps a page from being made, and is no fault of the console's."""


def describe_error(error: Exception) -> tuple[int, str]:
    """The status of a page that there is not, and a sentence on why."""
    match error:
        case UsageError():
            return 400, str(error)
        case CommandError() | UnknownPartition():
            return 404, str(error)
        case NoReachableBroker():
            return 502, f"no broker answers ({error}): look whether the broker still runs"
        case ApiError():
            status = 404 if error.code in NOT_FOUND_CODES else 502 if error.code.retriable else 400
            return status, describe_api_error(error)
    return 502, str(error)
