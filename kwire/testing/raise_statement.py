"""Errors that a `raise` statement of kwire has raised: those of a wrong call or setting. Others are bugs."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator
from dis import opmap
from types import TracebackType
from typing import Final

KWIRE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The directory of the package kwire."""


def is_raised_by_kwire(error: BaseException) -> bool:
    """Return whether a `raise` statement in the package kwire has raised an error.

    An `assert` statement does not count.
    """
    last = None
    for last in entries_of(error.__traceback__):  # noqa: B007
        pass
    if last is None:
        return False
    code = last.tb_frame.f_code
    if not code.co_filename.startswith(KWIRE) or code.co_code[last.tb_lasti] != opmap["RAISE_VARARGS"]:
        return False
    line = linecache.getline(code.co_filename, last.tb_lineno) if isinstance(error, AssertionError) else ""
    return not line.lstrip().startswith("assert")


def entries_of(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, from the outermost call on."""
    while trace is not None:
        yield trace
        trace = trace.tb_next
