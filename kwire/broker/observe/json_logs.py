"""Log lines as JSON, one object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats `time`, `level`, `logger` and `message`, and if present `node`, `request` and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        node, request = getattr(record, "node", ""), getattr(record, "request", "")
        if node:
            told["node"] = node
            # The message already begins with the node's name.
            told["message"] = told["message"].removeprefix(f"[{node}] ")
        if request:
            told["request"] = request
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)
