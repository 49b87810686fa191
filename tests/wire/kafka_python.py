"""Conversion of plain values to kafka-python's message classes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.wire import kafka_json
from tests.wire.interpreter import Value

PACKAGES = ("admin", "consumer", "metadata", "producer", "sasl")


def kafka_python_class(name: str) -> Any:
    """Return kafka-python's class of a message."""
    for package in PACKAGES:
        found = getattr(kafka_json.reference(f"kafka.protocol.{package}"), name, None)
        if found is not None:
            return found
    return getattr(kafka_json.reference("kafka.protocol.consumer.metadata"), name)


def to_kafka_python(container: Any, value: Value, version: int) -> Any:
    """Convert a plain value to an instance of one of kafka-python's classes.

    kafka-python has objects for uuids, and shorter names for the bit fields of authorized operations.
    """
    fields: dict[str, Any] = {}
    for name, given in value.items():
        name = name if name in container.fields else "authorized_operations"
        field = container.fields[name]
        if field.is_struct() or field.is_struct_array():
            inner = field.data_class
            if isinstance(given, list):
                fields[name] = [to_kafka_python(inner, one, version) for one in given]
            else:
                fields[name] = to_kafka_python(inner, given, version)
        elif name.endswith("authorized_operations") and field.default is None:
            fields[name] = {bit for bit in range(31) if given >> bit & 1}
        elif isinstance(given, bytes) and name.endswith("_id"):
            fields[name] = UUID(bytes=given)
        elif isinstance(given, list) and name.endswith("_ids") and isinstance(given[0], bytes):
            fields[name] = [UUID(bytes=one) for one in given]
        else:
            fields[name] = given
    return container(version=version, **fields)
