"""Detection of libraries that replace what a broker needs in the process of a test.

Most libraries do not affect a broker in a thread of this process: it uses clocks, files and sockets that they
do not find (`kwire.host.second_instance`). But it needs threads, and epoll or kqueue, which gevent and
eventlet replace for the complete process. And its modules must not be imported while a test replaces what
they import.
"""

from __future__ import annotations

import _thread
import json
import queue
import random
import select
import sys
import threading
from collections.abc import Iterator
from typing import Final

from kwire.host.platform import check_platform
from kwire.wire.named_tuple import NamedTuple

REMEDY: Final = (
    'use Broker(..., process="child"), or set kwire_process = child in the configuration of pytest'
)
LAST_IMPORTED: Final = "kwire.broker.net.running_node"
"""The module that imports all others of a broker."""
C_MODULES: Final = {"_queue": "queue", "_thread": "threading"}
"""Modules in C, and the modules in Python that have their names, too."""


class Subject(NamedTuple):
    """A broker or proxy that runs in a thread of the process of the test."""

    name: str
    last_imported: str
    """The module that imports all others of the subject."""
    remedy: str


BROKER: Final = Subject("broker", LAST_IMPORTED, REMEDY)


def check_doubles(subject: Subject = BROKER) -> None:
    """Raise RuntimeError if a broker cannot start or run, because a library has replaced what it needs.

    Raises UnsupportedPlatform on systems without a broker.
    """
    check_platform()
    are_imported = subject.last_imported in sys.modules
    for replaced in (*_replaced_threads(), *(() if are_imported else _replaced_names())):
        raise RuntimeError(_explain(subject, replaced))


def explain_failure(error: BaseException, subject: Subject = BROKER) -> None:
    """Raise RuntimeError if a library is the likely cause of the error of a broker that did not start."""
    for replaced in _replaced_names():
        raise RuntimeError(_explain(subject, replaced)) from error


def _explain(subject: Subject, replaced: str) -> str:
    return f"{replaced}, so a {subject.name} cannot run in the process of the test: {subject.remedy}"


def _replaced_threads() -> Iterator[str]:
    # The class of the main thread has the method of the real Thread, also while a test replaces that name.
    for found in (_thread.start_new_thread, type(threading.main_thread()).start):
        yield from _describe("threading", found, "threads")
    poller = "epoll" if sys.platform == "linux" else "kqueue"
    yield from _describe("select", getattr(select, poller, None), f"select.{poller}")


def _replaced_names() -> Iterator[str]:
    for module, names in (
        (threading, ("Thread", "Event", "Lock")),
        (queue, ("SimpleQueue",)),
        (random, ("Random", "SystemRandom")),
        (json, ("dumps", "loads")),
    ):
        for name in names:
            yield from _describe(module.__name__, getattr(module, name, None), f"{module.__name__}.{name}")


def _describe(module: str, found: object, name: str) -> Iterator[str]:
    """Yield the library that has replaced a function or class, if it is not from its module."""
    home = str(getattr(found, "__module__", None) or type(found).__module__)
    if C_MODULES.get(home, home) != module:
        library = (
            "A library" if found is None else home if home == "unittest.mock" else home.partition(".")[0]
        )
        yield f"{library} has replaced {name}"
