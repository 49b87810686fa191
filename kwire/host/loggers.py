"""Loggers that say which node speaks, for several may live in one process.

Underneath are the process's loggers by their names, so levels hold for all nodes, as handlers do.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

ROOT: Final = "root"
OURS: Final = "kwire"
NAMES: Final = (
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
    "kwire.storage",
    "kwire.telemetry",
    "kwire.transactions",
)
"""What the parts of a node log to."""


class NodeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts a node's name before what it is told; `node` stands in the record, too.

    What is told of a request has its id in `extra`, as `request`.
    """

    def __init__(self, name: str, node: str) -> None:
        super().__init__(logging.getLogger(name), {"node": node})
        self._prefix = f"[{node.replace('%', '%%')}] " if node else ""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        told = kwargs.get("extra")
        kwargs["extra"] = {**told, **(self.extra or {})} if told else self.extra
        return f"{self._prefix}{msg}", kwargs


def node_name(node_id: int | str) -> str:
    """What a node is called in the log."""
    return f"node {node_id}"


OF_NO_NODE: Final = NodeLogger("kwire.storage", "")
"""What storage tells where no node has it work: in jobs that write logs, say."""


def known_loggers() -> dict[str, logging.Logger]:
    """The root, and those of a node and its process: what may be told later can be asked for by now."""
    for name in NAMES:
        logging.getLogger(name)
    known = logging.root.manager.loggerDict
    found = {name: one for name, one in sorted(known.items()) if name.partition(".")[0] == OURS}
    return {
        ROOT: logging.root,
        **{name: one for name, one in found.items() if isinstance(one, logging.Logger)},
    }
