"""Log lines as JSON, one object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """A formatter of JSON lines with `time`, `level`, `logger`, `message`, and optional further fields.

    The optional fields are `node`, `request`, and `error` (the traceback of an exception).
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        node, request = getattr(record, "node", ""), getattr(record, "request", "")
        if node:
            line["node"] = node
            # The message already begins with the node's name.
            line["message"] = line["message"].removeprefix(f"[{node}] ")
        if request:
            line["request"] = request
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
