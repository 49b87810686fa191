"""Loggers that name their node, since several nodes may run in one process.

Node loggers wrap the process's loggers of the same names, so levels and handlers apply to all nodes of a
process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

ROOT: Final = "root"
TRACE: Final = 5
"""The level below DEBUG, as in Log4j."""
PACKAGE: Final = "kwire"
AUDIT_LOGGER: Final = "kafka.authorizer.logger"
LOGGER_NAMES: Final = (
    AUDIT_LOGGER,
    "kwire.cleaner",
    "kwire.config",
    "kwire.coordinator",
    "kwire.dispatch",
    "kwire.groups",
    "kwire.http",
    "kwire.metadata",
    "kwire.net",
    "kwire.node",
    "kwire.partition",
    "kwire.produce",
    "kwire.raft",
    "kwire.security",
    "kwire.storage",
    "kwire.telemetry",
    "kwire.transactions",
)
"""The loggers of a node. The audit log of the authorizer has its name in Apache Kafka."""


class NodeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that prefixes messages with a node's name, and sets the name as `node` in each log record.

    A message about a request has the request's id in `extra`, as `request`.
    """

    def __init__(
        self, name: str, node: str, on_exception: Callable[[str, BaseException], None] | None = None
    ) -> None:
        """`on_exception` is called with the message and the exception of each error that has one."""
        self._on_exception = on_exception
        super().__init__(logging.getLogger(name), {"node": node})
        self._prefix = f"[{node.replace('%', '%%')}] " if node else ""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = kwargs.get("extra")
        kwargs["extra"] = {**extra, **(self.extra or {})} if extra else self.extra
        return f"{self._prefix}{msg}", kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message. If the line cannot be created, it is lost: a log line must not stop a node.

        A handler of `logging` catches its own errors. But a test can replace `time.time` by a function that
        raises an error, and `logging` then cannot create the line.
        """
        if level >= logging.ERROR and self._on_exception is not None and kwargs.get("exc_info"):
            given = kwargs["exc_info"]
            error = given if isinstance(given, BaseException) else sys.exception()
            if error is not None:
                self._on_exception(str(msg) % args if args else str(msg), error)
        if self.isEnabledFor(level):
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the line names the caller of this method
            with suppress(Exception):
                super().log(level, msg, *args, **kwargs)


def escape_unprintable(text: str) -> str:
    """Escape characters with which a peer could forge log lines or control a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def node_name(node_id: int | str) -> str:
    return f"node {node_id}"


STORAGE_LOGGER: Final = NodeLogger("kwire.storage", "")
"""For storage code that runs outside of a node, as in pipeline jobs that write logs."""


def known_loggers() -> dict[str, logging.Logger]:
    """Return the root logger and all loggers of kwire by name, including loggers that have not logged yet."""
    for name in LOGGER_NAMES:
        logging.getLogger(name)
    known = logging.root.manager.loggerDict
    found = {
        name: one
        for name, one in sorted(known.items())
        if name == AUDIT_LOGGER or name.partition(".")[0] == PACKAGE
    }
    return {
        ROOT: logging.root,
        **{name: one for name, one in found.items() if isinstance(one, logging.Logger)},
    }
