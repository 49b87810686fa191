"""A client of the schema registry: writers' schemas by id, and the latest schema of a subject.

If a schema is missing, its records are undecodable. If the registry fails, the job ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from kwire.pipeline.values.columns import DecodeError

AVRO: Final = "AVRO"
# https://docs.confluent.io/platform/current/schema-registry/develop/api.html
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
DEFAULTS: Final[Mapping[str, Any]] = {"timeout": 10, "max.retries": 2, "retries.max.wait.ms": 2_000}


PROXY_VARIABLES: Final = ("all_proxy", "http_proxy", "https_proxy")
"""The names, in lower case, of environment variables that make Confluent's client use a proxy."""


class RegistryError(Exception):
    """The schema registry does not respond, or responds with an error. The message has the registry's URL."""


class Registry:
    """A client of a schema registry. It caches schemas by id, because these never change."""

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None) -> None:
        """Create a client. `settings` are passed to Confluent's client.

        Raises RegistryError if a setting is invalid.
        """
        self._url = url
        try:
            self._client = SchemaRegistryClient({**DEFAULTS, **(settings or {}), "url": url})
        except (ValueError, TypeError, OSError, ImportError) as error:
            proxy = _proxy_variables()  # a proxy of an unknown kind fails even if NO_PROXY has the host
            advice = f" (unset {proxy} to connect without a proxy)" if proxy else ""
            raise RegistryError(
                f"cannot create a client of the schema registry {url}: {error}{advice}"
            ) from None
        self._texts: dict[int, list[str]] = {}

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def check(self) -> None:
        """Raise RegistryError if the registry does not respond."""
        self._request(self._client.get_schema_types)

    def schema(self, schema_id: int) -> list[str]:
        """Return the text of the Avro schema with an id, after the texts of the schemas that it refers to.

        Raises DecodeError if a schema is missing or is not Avro, or RegistryError.
        """
        found = self._texts.get(schema_id)
        if found is None:
            schema = self._request(self._client.get_schema, schema_id)
            if schema is None:
                raise DecodeError(f"schema id {schema_id} is not in the registry")
            found = self._with_references(schema, f"schema id {schema_id}")
            self._texts[schema_id] = found
        return found

    def latest(self, subject: str) -> list[str]:
        """Return the text of a subject's latest Avro schema, after the texts of schemas that it refers to.

        Raises DecodeError if a schema is missing or is not Avro, or RegistryError.
        """
        found = self._request(self._client.get_latest_version, subject)
        if found is None:
            raise DecodeError(f"the registry {self._url} has no subject {subject}")
        return self._with_references(found.schema, f"the latest schema of {subject}")

    def _with_references(self, schema: Schema, name: str) -> list[str]:
        text = schema.schema_str
        if not isinstance(text, str) or not text:
            # Clear the client's cache, so that a later call sends the request again.
            self._client.clear_caches()  # type: ignore[no-untyped-call]
            raise RegistryError(
                f"the schema registry {self._url} returned no schema for {name}: is it a schema registry?"
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
        """Call a method of Confluent's client, and return the result, or None if the item does not exist.

        Raises RegistryError.
        """
        try:
            return method(*arguments)
        except SchemaRegistryError as error:
            if error.error_code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND):
                return None
            raise RegistryError(f"the schema registry {self._url} returned an error: {error}") from None
        except Exception as error:
            # Catch all exceptions, because the HTTP library's classes differ between versions of the client.
            host, proxy = urlsplit(self._url).hostname, _proxy_variables()
            advice = f" (set NO_PROXY={host} to connect without the proxy of {proxy})" if proxy else ""
            reason = str(error) or type(error).__name__
            raise RegistryError(
                f"the schema registry {self._url} did not respond: {reason}{advice}"
            ) from None


def _proxy_variables() -> str:
    """Return the names of the environment variables that set a proxy; empty if there are none."""
    found = [name for name, value in os.environ.items() if value and name.lower() in PROXY_VARIABLES]
    return " and ".join(sorted(found))
