"""Regular expressions of subscriptions. KIP-848.

Kafka uses RE2/J and this module uses RE2. Neither backtracks, so no expression can block the broker. If
RE2 and RE2/J differ, this module behaves like RE2/J, with one exception: it refuses nested repetitions of
more than a thousand in total. RE2/J accepts them, and needs memory for each repetition. Python's own `re`
backtracks, so it does not replace RE2 on brokers that lack RE2 (docs/decisions/0032).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import re2

FAULTS: Final = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid character class range": "invalid character class range",
    "invalid escape sequence": "invalid escape sequence",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
    "unexpected )": "regexp/syntax: internal error",
}
"""RE2's error messages, without the colon and the position, and RE2/J's messages for the same errors."""

TOKEN: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)"
    r"|(?P<single_byte>\\C)"
    r"|\\."
    r"|\[\^?\]?(?:\[:\^?\w*:\]|\\.|[^\]\\])*\]"
    r"|\(\?P?<(?P<name>[^>]*)>"
    r"|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}",
    re.DOTALL,
)
"""Matches the tokens that `check` must inspect or skip in an expression that RE2 accepts."""


def check(pattern: str) -> None:
    """Check that a regular expression is valid. Raises ApiError INVALID_REGULAR_EXPRESSION.

    Without RE2, every expression is invalid.
    """
    try:
        _compiled(pattern)
    except ImportError:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` cannot be used: the broker lacks the package google-re2. Run "
            f"pip install 'kwire[regex]' in the broker's environment.",
        ) from None
    except _error() as error:
        message: Any = error.args[0]
        text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
        fault = next((FAULTS[known] for known in FAULTS if text.startswith(known)), text)
        raise _invalid(pattern, fault) from None
    names: set[str] = set()
    for token in TOKEN.finditer(pattern):
        name = token["name"]
        # RE2 treats numbers beyond 32 bits as literal text.
        if any(len(number) > 9 for number in (token["least"], token["most"]) if number):
            raise _invalid(pattern, "invalid repeat count")
        if token["single_byte"]:
            raise _invalid(pattern, "invalid escape sequence")
        if name is not None:
            if not re.fullmatch(r"\w+", name, re.ASCII):
                raise _invalid(pattern, "invalid named capture")
            if name in names:
                raise _invalid(pattern, "duplicate capture group name")
            names.add(name)


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an expression, which `check` has accepted, matches completely."""
    compiled = _compiled(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)


def _compiled(pattern: str) -> re2._Regexp[str]:
    import re2  # saves time and memory in brokers without such subscriptions

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _error() -> type[Exception]:
    import re2

    error: type[Exception] = re2.error
    return error


def _invalid(pattern: str, fault: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {fault}.",
    )
