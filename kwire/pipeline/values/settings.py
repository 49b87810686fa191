"""The table [values] of a job.

[values]
format = "avro"                        # avro, json, text, or bytes (not decoded)
registry = "http://127.0.0.1:8081"     # the schema registry, for Avro
schema = "order.avsc"                  # the reader's schema: a file for Avro, a DDL like "id INT" for JSON
subject = "orders-value"               # without `schema`: its latest schema is the reader's schema
dead_letter = "orders.dead"            # the topic for undecodable records
[values.client]                        # the cluster of that topic; by default that of the input
"bootstrap.servers" = "127.0.0.1:9092"
[values.registry_client]               # settings of Confluent's client
"basic.auth.user.info" = "me:secret"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kwire.pipeline.client_settings import BOOTSTRAP, input_client, librdkafka_settings
from kwire.pipeline.config import ConfigError, Input, JobConfig
from kwire.pipeline.values.decoder import AVRO, BYTES, FORMATS, JSON


class ValuesConfig(NamedTuple):
    """The settings in the table [values] of a job's file."""

    format: str
    registry: str = ""
    registry_settings: tuple[tuple[str, Any], ...] = ()
    schema: str = ""
    """The text of an Avro schema, or a DDL for JSON; empty if there is no schema."""
    subject: str = ""
    dead_letter: str = ""
    client: Mapping[str, str] = {}

    @classmethod
    def of(cls, config: JobConfig, input_: Input) -> ValuesConfig | None:
        """Read the table, or return None if the job does not decode values.

        Raises ConfigError if a key is missing, invalid or unknown.
        """
        if not config.has("values"):
            return None
        table = config.table("values")
        format_ = table.text("format", one_of=FORMATS)
        schema = table.text("schema", "")
        found = cls(
            format_,
            table.text("registry", ""),
            tuple((key, _number(value)) for key, value in table.table("registry_client").texts().items()),
            _avro_text(schema) if format_ == AVRO and schema else schema,
            table.text("subject", ""),
            table.topic("dead_letter", ""),
            librdkafka_settings("values.client", table.table("client").texts()),
        )
        table.check_unknown_keys()
        if format_ == BYTES:
            return None
        if format_ == AVRO:
            if not found.registry:
                raise ConfigError("values.registry is missing: set it to the URL of the schema registry")
            if not (found.schema or found.subject):
                found = found._replace(subject=f"{_topic(input_)}-value")
        if format_ not in (AVRO, JSON) and schema:
            raise ConfigError(f"values.schema requires format avro or json, but values.format is {format_}")
        if found.dead_letter and not found.client:
            found = found._replace(client=input_client(input_, "values.client", {}))
            if BOOTSTRAP not in found.client:
                raise ConfigError(
                    "values.client is missing: set the client's properties for the cluster of "
                    "values.dead_letter"
                )
        return found


def _number(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _avro_text(schema: str) -> str:
    if schema.lstrip()[:1] in ("{", "[", '"'):
        return schema
    try:
        text = Path(schema).read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"values.schema must be a file with an Avro schema, and {schema} is not: {error}"
        ) from None
    return text


def _topic(input_: Input) -> str:
    """Return the only topic of an input.

    Raises ConfigError if the input has several topics, or if its topics are unknown.
    """
    options = {key.lower(): value for key, value in input_.options.items()}
    topics = {name.strip() for name in options.get("subscribe", "").split(",") if name.strip()}
    if "assign" in options:
        try:
            topics |= set(json.loads(options["assign"]))
        except (ValueError, TypeError):
            topics = set()
    if len(topics) != 1:
        raise ConfigError(
            "values.subject or values.schema is required unless the input is exactly one topic: a column has "
            "one schema, so topics with different schemas need separate jobs"
        )
    return topics.pop()
