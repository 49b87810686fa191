"""Avro values that name their schema, by an id in a schema registry or by a fingerprint.

Confluent's serializers prefix a zero byte and the schema id. Avro's single-object encoding starts with C3 01
and the CRC-64-AVRO fingerprint of the schema, in little-endian order.
"""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import FormatMismatch
from kwire.wire.avro_logical import logical_type_of
from kwire.wire.plural import plural

BY_ID: Final = b"\0"
BY_FINGERPRINT: Final = b"\xc3\x01"
ID_BYTES, FINGERPRINT_BYTES = 4, 8
REGISTRY_SECONDS: Final = 10
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
MAX_REFERENCES: Final = 1000

Encode = Callable[[object], bytes]
"""Encodes a JSON value. Raises FormatMismatch if the value does not match the schema."""


class SchemaRegistry:
    """A schema registry, which has schemas by id and by subject."""

    def __init__(self, url: str) -> None:
        """Check the URL. Raises CommandError if it is invalid, or if the package fastavro is missing."""
        _check_package()
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--registry {url}: expected a URL that begins with http:// or https://")
        self._url = url.rstrip("/")

    def get(self, path: str) -> Any:
        """Return the JSON value at a path of the registry, or None for status 404. Raises CommandError."""
        request = urllib.request.Request(
            f"{self._url}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REGISTRY_SECONDS) as response:
                return json.loads(response.read(MAX_SCHEMA_BYTES))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise CommandError(f"the registry {self._url} returned {error.code} {error.reason}") from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            reason = getattr(why, "strerror", None) or why
            raise CommandError(
                f"the registry {self._url} is not reachable ({reason}): start it, or name another with "
                "--registry"
            ) from error

    def parse(self, registered: Any, name: str) -> Any:
        """Parse a schema with its references. Raises FormatMismatch, CommandError.

        `registered` is the registry's response for the schema, and `name` is its name in error messages.
        """
        import fastavro

        if registered is None:
            raise FormatMismatch(f"the registry has no {name}")
        if registered.get("schemaType", "AVRO") != "AVRO":
            raise FormatMismatch(f"{name} is not Avro, but {registered['schemaType']}")
        named: dict[str, Any] = {}
        try:
            for text in self._with_references(registered, set()):
                parsed = fastavro.parse_schema(_without_invalid_logical_types(json.loads(text)), named)
        except RecursionError:
            raise FormatMismatch(
                f"{name} in the registry is not a valid schema: it is nested too deeply"
            ) from None
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise FormatMismatch(f"{name} in the registry is not a valid schema: {error}") from None
        return parsed

    def _with_references(self, registered: Any, seen: set[tuple[str, int]]) -> Iterable[str]:
        """Yield the texts of all references, then the schema."""
        for reference in registered.get("references", ()):
            key = reference["subject"], reference["version"]
            if key in seen or len(seen) > MAX_REFERENCES:
                continue
            seen.add(key)
            found = self.get(f"subjects/{urllib.parse.quote(key[0], safe='')}/versions/{key[1]}")
            if found is not None:
                yield from self._with_references(found, seen)
        yield registered["schema"]


class AvroDecoder:
    """A decoder of Avro values, with a cache of schemas."""

    def __init__(self, registry: str | None, files: Iterable[str]) -> None:
        """Load the schema files. Values refer to them by fingerprint. Raises CommandError.

        `registry` is the URL of the registry for values that refer to a schema by id.
        """
        self._registry = None if registry is None else SchemaRegistry(registry)
        self._by_fingerprint = dict(map(_schema_of_file, files))
        self._by_id: dict[int, Any] = {}
        """Parsed schemas by id; for an invalid schema, the error message."""

    def decode(self, data: bytes) -> object:
        """Decode a value. Raises FormatMismatch, or CommandError if the registry fails."""
        import fastavro

        if data[:1] == BY_ID and len(data) > ID_BYTES:
            start = 1 + ID_BYTES
            schema = self._schema_by_id(int.from_bytes(data[1:start], "big"))
        elif data[:2] == BY_FINGERPRINT and len(data) >= 2 + FINGERPRINT_BYTES:
            start = 2 + FINGERPRINT_BYTES
            schema = self._by_fingerprint.get(data[2:start])
            if schema is None:
                raise FormatMismatch(f"no --schema has the fingerprint {data[2:start][::-1].hex()}")
        else:
            raise FormatMismatch(
                f"Avro values start with 00 and a schema id, or with c3 01, not with {data[:2].hex(' ')}"
            )
        stream = io.BytesIO(data[start:])
        try:
            value: object = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:
            # fastavro raises many types of errors for bytes that do not match the schema.
            raise _format_mismatch(error) from None
        if left := len(data) - start - stream.tell():
            raise FormatMismatch(f"{plural(left, 'byte')} after the value")
        return value

    def _schema_by_id(self, schema_id: int) -> Any:
        if schema_id not in self._by_id:
            if self._registry is None:
                raise FormatMismatch(f"schema {schema_id} is in a schema registry: use --registry URL")
            registered = self._registry.get(f"schemas/ids/{schema_id}")
            try:
                self._by_id[schema_id] = self._registry.parse(registered, f"schema {schema_id}")
            except FormatMismatch as mismatch:
                self._by_id[schema_id] = str(mismatch)
        schema = self._by_id[schema_id]
        if isinstance(schema, str):
            raise FormatMismatch(schema)
        return schema


def subject_encoder(url: str, subject: str) -> Encode:
    """Return an encoder with a subject's latest schema. Values refer to it by id. Raises CommandError."""
    registry = SchemaRegistry(url)
    registered = registry.get(f"subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
    try:
        schema = registry.parse(registered, f"subject {subject}")
    except FormatMismatch as mismatch:
        raise CommandError(f"{mismatch}: register an Avro schema, or use a schema file") from mismatch
    return partial(_encode, BY_ID + int(registered["id"]).to_bytes(ID_BYTES, "big"), schema)


def file_encoder(path: str) -> Encode:
    """Return an encoder with a file's schema. Values refer to it by fingerprint. Raises CommandError."""
    fingerprint, schema = _schema_of_file(path)
    return partial(_encode, BY_FINGERPRINT + fingerprint, schema)


def _encode(name: bytes, schema: Any, value: object) -> bytes:
    import fastavro

    stream = io.BytesIO()
    stream.write(name)
    try:
        fastavro.validate(value, schema)  # the writer would truncate numbers
        fastavro.schemaless_writer(stream, schema, value, strict_allow_default=True)
    except Exception as error:
        raise _format_mismatch(error) from None
    return stream.getvalue()


def _check_package() -> None:
    if find_spec("fastavro") is None:
        raise CommandError("Avro needs the package fastavro: pip install fastavro")


def _format_mismatch(error: Exception) -> FormatMismatch:
    why = "; ".join(map(str, getattr(error, "errors", ()))) or str(error) or type(error).__name__
    return FormatMismatch(f"does not match its schema: {why}")


def _schema_of_file(path: str) -> tuple[bytes, Any]:
    """Return the fingerprint and schema of a file. Raises CommandError."""
    _check_package()
    import fastavro
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    try:
        with open(path, encoding="utf-8") as file:
            schema = _without_invalid_logical_types(json.load(file))
        parsed = fastavro.parse_schema(schema)
        return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")), parsed
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}: give the path of an Avro schema, in JSON") from error
    except RecursionError:
        raise CommandError(f"{path} is not an Avro schema: it is nested too deeply") from None
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise CommandError(f"{path} is not an Avro schema: {error}") from error


def _without_invalid_logical_types(schema: Any) -> Any:
    """Return a schema without the logical types that readers must ignore. fastavro raises errors for some."""
    if isinstance(schema, list):
        return [_without_invalid_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: _without_invalid_logical_types(value) if key in ("type", "items", "values") else value
        for key, value in schema.items()
    }
    if isinstance(schema.get("fields"), list):
        found["fields"] = [_without_invalid_logical_types(field) for field in schema["fields"]]
    if logical_type_of(schema, schema.get("type", ""), schema.get("size", 0)) is None:
        found.pop("logicalType", None)
    return found
