"""Avro values, with the schema that each names: by an id in a registry, or by the schema's fingerprint.

Confluent's serializers put a zero and the id in front. Avro's own encoding of a single object has C3 01
there, and the schema's CRC-64-AVRO, the least byte first.
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

BY_ID: Final = b"\0"
BY_FINGERPRINT: Final = b"\xc3\x01"
ID_BYTES, FINGERPRINT_BYTES = 4, 8
REGISTRY_SECONDS: Final = 10
MAX_SCHEMA_BYTES: Final = 16 * 1024 * 1024
MAX_REFERENCES: Final = 1000

Encode = Callable[[object], bytes]
"""What JSON can say to bytes. Misfit where that is not of the schema."""


class SchemaRegistry:
    """Where schemas are by their ids, and by the subjects that they are registered for."""

    def __init__(self, url: str) -> None:
        """Failure for an address that is none."""
        _check_package()
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--registry {url}: expected an address that begins with http:// or https://")
        self._url = url.rstrip("/")

    def get(self, path: str) -> Any:
        """What the registry answers; None where it has no such thing. Failure."""
        request = urllib.request.Request(
            f"{self._url}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REGISTRY_SECONDS) as response:
                return json.loads(response.read(MAX_SCHEMA_BYTES))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise CommandError(f"the registry {self._url} answers {error.code} {error.reason}") from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            reason = getattr(why, "strerror", None) or why
            raise CommandError(
                f"the registry {self._url} does not answer ({reason}): start it, or name another with "
                "--registry"
            ) from error

    def parse(self, registered: Any, name: str) -> Any:
        """The schema that was answered, ready to be used. Misfit where it is none of Avro's; Failure."""
        import fastavro

        if registered is None:
            raise FormatMismatch(f"the registry has no {name}")
        if registered.get("schemaType", "AVRO") != "AVRO":
            raise FormatMismatch(f"{name} is not Avro, but {registered['schemaType']}")
        named: dict[str, Any] = {}
        try:
            for text in self._with_references(registered, set()):
                parsed = fastavro.parse_schema(json.loads(text), named)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise FormatMismatch(f"{name} of the registry is no schema: {error}") from None
        return parsed

    def _with_references(self, registered: Any, seen: set[tuple[str, int]]) -> Iterable[str]:
        """The texts of a schema and of all that it refers to, which come first."""
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
    """A reader of values, which keeps the schemas that it has met."""

    def __init__(self, registry: str | None, files: Iterable[str]) -> None:
        """`files` hold the schemas that fingerprints may name. Failure."""
        self._registry = None if registry is None else SchemaRegistry(registry)
        self._by_fingerprint = dict(map(_schema_of_file, files))
        self._by_id: dict[int, Any] = {}
        """Those that are none as a sentence."""

    def decode(self, data: bytes) -> object:
        """What is in a value. Misfit; Failure where the registry does not answer."""
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
                f"Avro begins with 00 and an id, or with c3 01, and not with {data[:2].hex(' ')}"
            )
        stream = io.BytesIO(data[start:])
        try:
            value: object = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:
            # Bytes that are something else meet whatever they meet.
            raise _format_mismatch(error) from None
        if left := len(data) - start - stream.tell():
            raise FormatMismatch(f"{left} bytes are left over behind the value")
        return value

    def _schema_by_id(self, schema_id: int) -> Any:
        if schema_id not in self._by_id:
            if self._registry is None:
                raise FormatMismatch(
                    f"schema {schema_id} is in a registry: say where it is with --registry URL"
                )
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
    """Writes values of the newest schema of a subject, with its id in front. Failure."""
    registry = SchemaRegistry(url)
    registered = registry.get(f"subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
    try:
        schema = registry.parse(registered, f"subject {subject}")
    except FormatMismatch as mismatch:
        raise CommandError(f"{mismatch}: register an Avro schema for it, or name a file") from mismatch
    return partial(_encode, BY_ID + int(registered["id"]).to_bytes(ID_BYTES, "big"), schema)


def file_encoder(path: str) -> Encode:
    """Writes values of the schema of a file, with its fingerprint in front. Failure."""
    fingerprint, schema = _schema_of_file(path)
    return partial(_encode, BY_FINGERPRINT + fingerprint, schema)


def _encode(name: bytes, schema: Any, value: object) -> bytes:
    import fastavro

    stream = io.BytesIO()
    stream.write(name)
    try:
        fastavro.validate(value, schema)  # the writer would cut a number to fit
        fastavro.schemaless_writer(stream, schema, value, strict_allow_default=True)
    except Exception as error:
        raise _format_mismatch(error) from None
    return stream.getvalue()


def _check_package() -> None:
    if find_spec("fastavro") is None:
        raise CommandError("Avro is read and written by fastavro, which is not here: pip install fastavro")


def _format_mismatch(error: Exception) -> FormatMismatch:
    why = "; ".join(map(str, getattr(error, "errors", ()))) or str(error) or type(error).__name__
    return FormatMismatch(f"not of its schema: {why}")


def _schema_of_file(path: str) -> tuple[bytes, Any]:
    """A schema by its fingerprint. Failure."""
    _check_package()
    import fastavro
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    try:
        with open(path, encoding="utf-8") as file:
            schema = json.load(file)
        parsed = fastavro.parse_schema(schema)
        return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")), parsed
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}: give the path of an Avro schema, in JSON") from error
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise CommandError(f"{path} is no Avro schema: {error}") from error
