"""Log lines for programs: one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger` and `message`; `node`, `request` and `error` where there is one."""

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
            # Which the text says first, for people.
            told["message"] = told["message"].removeprefix(f"[{node}] ")
        if request:
            told["request"] = request
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)
