"""Standard streams of commands: output that may be closed or full, and errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

DONE, FAILED = 0, 1


def run_and_flush(command: str, run: Callable[[], int]) -> int:
    """Return the status of `run` after its output is flushed; report output that cannot be written."""
    try:
        if sys.stdout is None:
            return print_error(command, "standard output is closed: leave it open for the command's output")
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        status = DONE  # the reader has read enough
    except OSError as error:
        status = print_error(command, f"standard output cannot be written: {error.strerror or error}")
    discard_output()
    return status


def discard_output() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_errors() -> None:
    """Flush standard error; if it cannot be written, redirect it to /dev/null.

    Otherwise the flush at exit would fail, and change the exit status to 120.
    """
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_error(command: str, sentence: str, status: int = FAILED) -> int:
    """Print why a command failed, and return its exit status."""
    print(f"{command}: {sentence}", file=sys.stderr)
    return status
