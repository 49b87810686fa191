"""Tracebacks of errors that kwire raises because of a test, without kwire's own frames.

An error is the test's if a `raise` statement of kwire has raised it: the message says what is wrong with a
call, a mark or a setting. Any other exception in kwire is a bug of kwire, whose frames are kept.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from types import FunctionType, TracebackType
from typing import Any, Final

import pytest

from kwire.testing.raise_statement import KWIRE, entries_of, is_raised_by_kwire

LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""The directories of Python's own modules and of installed packages, such as pytest."""
PLUGIN: Final = os.path.join(KWIRE, "testing", "plugin.py")
MAX_CAUSES: Final = 20
PLAIN_ERRORS: Final = (
    "ConfigError",
    "MarkError",
    "ValueError",
    "TypeError",
    "RuntimeError",
    "LookupError",
    "UnexpectedError",
)
"""Classes of errors whose names add nothing to their messages."""


def explained(
    item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]
) -> pytest.ExceptionInfo[BaseException]:
    """Return the error of a test without kwire's frames, or unchanged if it is no error of `raise` in kwire.

    An error without a frame of the user, such as that of a mark or a fixture, becomes a failure without a
    traceback. Its message has the test's line, and the mark or setting at fault.
    """
    error, path = excinfo.value, str(item.path)
    is_wrong_setting = is_raised_by_kwire(error) and not _has_frame_of_the_test(error, path)
    if not is_wrong_setting:
        _remove_kwire_frames(error)
    else:
        line = (item.location[1] or 0) + 1
        failure = pytest.fail.Exception(_message(item, error, line), pytrace=False)
        error = _raised_at(failure, path, line)
    return pytest.ExceptionInfo.from_exc_info((type(error), error, error.__traceback__))  # type: ignore[arg-type]


def _message(item: pytest.Item, error: BaseException, line: int) -> str:
    """Return the message of the error of a fixture or mark, and on the next line what is at fault."""
    name = type(error).__name__
    text = str(error) or name
    if name not in PLAIN_ERRORS:
        text = f"{name}: {text}"
    at = f"{item.location[0]}:{line}"
    fixture, variables = "", dict[str, Any]()
    for function, found in _frame_locals(error, PLUGIN):
        if function.startswith("kwire"):
            fixture, variables = function, found
    if not fixture:
        return f"{text}\nat {at}"
    marker = item.get_closest_marker(fixture)
    configs = marker.args[0] if marker is not None and marker.args else {}
    options = {} if marker is None else marker.kwargs
    if any(str(key) in text for key in configs) or any(f"{key}=" in text for key in options):
        return f"{text}\nat {at}, set by @pytest.mark.{fixture}"
    if any(str(key) in text for key in variables.get("kwire_config") or ()):
        return f"{text}\nat {at}, set by the fixture kwire_config"
    return f"{text}\nat {at}, in the fixture {fixture}"


def _remove_kwire_frames(error: BaseException) -> None:
    """Remove kwire's frames from an error that `raise` in kwire has raised, and from its causes."""
    is_wrong_call, cause = False, error
    for _ in range(MAX_CAUSES):
        is_wrong_call = is_wrong_call or is_raised_by_kwire(cause)
        if is_wrong_call:
            cause.__traceback__ = _without_kwire(cause.__traceback__)
        next_cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        if next_cause is None:
            return
        cause = next_cause


def _has_frame_of_the_test(error: BaseException, path: str) -> bool:
    """Return whether the traceback has a frame of the test's module `path`, or another one of the user."""
    for entry in entries_of(error.__traceback__):
        name = entry.tb_frame.f_code.co_filename
        if name == path or not (name.startswith((KWIRE, *LIBRARIES, "<")) or _is_pytest(name)):
            return True
    return False


def _frame_locals(error: BaseException, path: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the name of each function of the module `path` in the traceback, with its local variables."""
    for entry in entries_of(error.__traceback__):
        if entry.tb_frame.f_code.co_filename == path:
            yield entry.tb_frame.f_code.co_name, entry.tb_frame.f_locals


def _raised_at(error: BaseException, path: str, line: int) -> BaseException:
    """Return the error with a traceback whose only frame is at a line of a file."""
    code = _raise.__code__.replace(co_filename=path, co_firstlineno=line - 1)
    error.__traceback__ = None
    try:
        FunctionType(code, {})(error)
    except BaseException as raised:
        here = raised.__traceback__
        raised.__traceback__ = None if here is None else here.tb_next
    return error


def _raise(error: BaseException) -> None:
    raise error


def _without_kwire(trace: TracebackType | None) -> TracebackType | None:
    kept = [entry for entry in entries_of(trace) if not entry.tb_frame.f_code.co_filename.startswith(KWIRE)]
    shortened: TracebackType | None = None
    for entry in reversed(kept):
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shortened


def _is_pytest(name: str) -> bool:
    return f"{os.sep}_pytest{os.sep}" in name or f"{os.sep}pluggy{os.sep}" in name
