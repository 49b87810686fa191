"""The schema registry, as a reader of values needs it: writers' schemas by id, and the latest of a subject.

Whether a schema is not there (then a record cannot be decoded) or the registry cannot say (then the job
cannot go on) is the difference that matters here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from kwire.pipeline.values.columns import DecodeError

AVRO: Final = "AVRO"
# https://docs.confluent.io/platform/current/schema-registry/develop/api.html
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
DEFAULTS: Final[Mapping[str, Any]] = {"timeout": 10, "max.retries": 2, "retries.max.wait.ms": 2_000}


class RegistryError(Exception):
    """The registry does not answer, or not as one; the message says which it is, and what it said."""


class Registry:
    """A registry at an address; schemas that it has given are kept, since they never change."""

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None) -> None:
        """`settings` are those of confluent's client. RegistryError where they are none."""
        self._url = url
        try:
            self._client = SchemaRegistryClient({**DEFAULTS, **(settings or {}), "url": url})
        except (ValueError, TypeError, OSError) as error:
            raise RegistryError(f"the schema registry {url} cannot be asked: {error}") from None
        self._texts: dict[int, list[str]] = {}

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def check(self) -> None:
        """RegistryError where there is no registry."""
        self._request(self._client.get_schema_types)

    def schema(self, schema_id: int) -> list[str]:
        """The Avro schema with an id, after those that it refers to. ValueFault, RegistryError."""
        found = self._texts.get(schema_id)
        if found is None:
            schema = self._request(self._client.get_schema, schema_id)
            if schema is None:
                raise DecodeError(f"schema id {schema_id} is not in the registry")
            found = self._with_references(schema, f"schema id {schema_id}")
            self._texts[schema_id] = found
        return found

    def latest(self, subject: str) -> list[str]:
        """The latest Avro schema of a subject, after those that it refers to. ValueFault, RegistryError."""
        found = self._request(self._client.get_latest_version, subject)
        if found is None:
            raise DecodeError(f"the registry {self._url} has no subject {subject}")
        return self._with_references(found.schema, f"the latest schema of {subject}")

    def _with_references(self, schema: Schema, name: str) -> list[str]:
        text = schema.schema_str
        if not isinstance(text, str) or not text:
            # The client keeps whatever it was given, and would not ask again while this process lives.
            self._client.clear_caches()  # type: ignore[no-untyped-call]
            raise RegistryError(
                f"the schema registry {self._url} answers without a schema for {name}: is it a registry?"
            )
        if (schema.schema_type or AVRO) != AVRO:
            raise DecodeError(f"{name} is not Avro, but {schema.schema_type}")
        texts: list[str] = []
        for reference in schema.references or ():
            found = self._request(self._client.get_version, reference.subject, reference.version)
            if found is None:
                raise DecodeError(
                    f"{name} refers to version {reference.version} of {reference.subject}, "
                    f"which is not in the registry"
                )
            texts += [text for text in self._with_references(found.schema, name) if text not in texts]
        return [*texts, text]

    def _request(self, method: Any, *arguments: Any) -> Any:
        """The client's answer; None where the registry says that there is no such thing. RegistryError."""
        try:
            return method(*arguments)
        except SchemaRegistryError as error:
            if error.error_code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND):
                return None
            raise RegistryError(f"the schema registry {self._url} says: {error}") from None
        except Exception as error:
            # Whatever the HTTP library beneath the client has for it; its names differ between versions.
            raise RegistryError(
                f"the schema registry {self._url} does not answer: {str(error) or type(error).__name__}"
            ) from None
