"""Loggers that say which node speaks, for several may live in one process.

Underneath are the process's loggers by their names, so levels hold for all nodes, as handlers do.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

ROOT: Final = "root"
OURS: Final = "kwire"


class NodeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts a node's name before what it is told; `node` stands in the record, too."""

    def __init__(self, name: str, node: str) -> None:
        super().__init__(logging.getLogger(name), {"node": node})
        self._prefix = f"[{node.replace('%', '%%')}] " if node else ""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = self.extra
        return f"{self._prefix}{msg}", kwargs


def known_loggers() -> dict[str, logging.Logger]:
    """The root, and what is logged to so far: names appear as the parts of a node come to work."""
    known = logging.root.manager.loggerDict
    found = {name: one for name, one in sorted(known.items()) if name.partition(".")[0] == OURS}
    return {
        ROOT: logging.root,
        **{name: one for name, one in found.items() if isinstance(one, logging.Logger)},
    }
