"""A schema registry for tests, with the requests that Confluent's client and serializers send.

It serves the part of https://docs.confluent.io/platform/current/schema-registry/develop/api.html that
Confluent's client uses. It does not check the compatibility of schemas: a test can register any schema.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class Refused(Exception):
    """An error response. The HTTP status is the first three digits of its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SchemaRegistry:
    """Subjects with versions of schemas, and schemas by id."""

    def __init__(self, port: int = 0) -> None:
        self.schemas: list[dict[str, Any]] = []
        """Schemas by id, from 1 on."""
        self.subjects: dict[str, list[int]] = {}
        """Schema ids by version, from 1 on."""
        self.asked: list[str] = []
        self.broken = False
        """Respond to every request with a server error."""
        self.something_else = False
        """Respond to every request with an empty document, as another server would."""
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> SchemaRegistry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Return the registry's response to a request."""
        with self._lock:
            self.asked.append(f"{method} {path}")
            if self.broken:
                raise Refused(50001, "the store is not there")
            if self.something_else:
                return {}
            for wanted, pattern, call in ROUTES:
                match = re.fullmatch(pattern, path)
                if wanted == method and match is not None:
                    return call(self, *map(unquote, match.groups()), *([body] if method == "POST" else []))
            raise Refused(404, "HTTP 404 Not Found")

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        known = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
        if known.get("schemaType") == "AVRO":
            del known["schemaType"]
        if known not in self.schemas:
            self.schemas.append(known)
        schema_id = self.schemas.index(known) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return {"id": schema_id}

    def look_up(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        for version, schema_id in enumerate(self._versions(subject), 1):
            if self.schemas[schema_id - 1]["schema"] == body["schema"]:
                return self.version(subject, str(version))
        raise Refused(SCHEMA_NOT_FOUND, "Schema not found")

    def version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self._versions(subject)
        number = len(versions) if version in ("latest", "-1") else int(version)
        if not 1 <= number <= len(versions):
            raise Refused(VERSION_NOT_FOUND, f"Version {version} not found.")
        schema_id = versions[number - 1]
        return {"subject": subject, "version": number, "id": schema_id, **self.schemas[schema_id - 1]}

    def schema(self, schema_id: str) -> dict[str, Any]:
        if not 1 <= int(schema_id) <= len(self.schemas):
            raise Refused(SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return self.schemas[int(schema_id) - 1]

    def types(self) -> list[str]:
        return ["JSON", "PROTOBUF", "AVRO"]

    def _versions(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise Refused(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return self.subjects[subject]


ROUTES: Final[list[tuple[str, str, Callable[..., Any]]]] = [
    ("GET", r"/schemas/types", SchemaRegistry.types),
    ("GET", r"/schemas/ids/(\d+)", SchemaRegistry.schema),
    ("POST", r"/subjects/([^/]+)/versions", SchemaRegistry.register),
    ("GET", r"/subjects/([^/]+)/versions/(-?\w+)", SchemaRegistry.version),
    ("POST", r"/subjects/([^/]+)", SchemaRegistry.look_up),
]


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # A response is two writes. With Nagle's algorithm, the second one would wait for an acknowledgment.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            try:
                status, told = 200, registry.answer(self.command, urlsplit(self.path).path, body)
            except Refused as refused:
                status = int(str(refused.code)[:3])
                told = {"error_code": refused.code, "message": str(refused)}
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests."""

    return Handler


if __name__ == "__main__":
    # For other processes: print the URL, and exit when standard input ends.
    with SchemaRegistry() as served:
        print(served.url, flush=True)
        sys.stdin.read()
