"""What commands tell: on standard output, which may be closed or full, and of failures on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

DONE, FAILED = 0, 1


def run_and_flush(command: str, run: Callable[[], int]) -> int:
    """What `run` gives, once all that it prints is written; FAILED, with a sentence, where that cannot be."""
    try:
        if sys.stdout is None:
            return print_error(command, "standard output is closed: leave it open for what is told")
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        status = DONE  # whoever read has seen enough
    except OSError as error:
        status = print_error(command, f"standard output cannot be written: {error.strerror or error}")
    discard_output()
    return status


def discard_output() -> None:
    """Nothing is left of standard output to be flushed when the process ends, which cannot be."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(command: str, sentence: str, status: int = FAILED) -> int:
    """Say in a sentence why a command has failed, and give its exit status."""
    print(f"{command}: {sentence}", file=sys.stderr)
    return status
