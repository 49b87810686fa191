"""Decoding of records in internal topics, by topic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from struct import Struct
from typing import Any, Final

from kwire.broker.metadata.topic_names import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.cli.shared.errors import FormatMismatch
from kwire.wire.batch import CorruptBatch, Record, control_type
from kwire.wire.codegen import decode
from kwire.wire.errors import WireError
from kwire.wire.primitives import Uuid, uuid_to_text
from kwire.wire.records.raft import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kwire.wire.registry import UnknownRecord, decode_metadata_record, decode_version_prefixed, version_prefix
from kwire.wire.schema import Message, fields_of

METADATA, OFFSETS, TRANSACTIONS, SHARE = "metadata", "offsets", "transactions", "share"
KIND_BY_TOPIC: Final = {
    METADATA_TOPIC: METADATA,
    GROUP_METADATA_TOPIC: OFFSETS,
    TRANSACTION_STATE_TOPIC: TRANSACTIONS,
    SHARE_GROUP_STATE_TOPIC: SHARE,
}
"""Type of the records in each internal topic."""
_MODULES_BY_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    OFFSETS: ("groups", "consumer_groups", "share_groups", "streams_groups"),
    TRANSACTIONS: ("transactions",),
    SHARE: ("share_state",),
}
MARKERS: Final = {0: "abort", 1: "commit"}
CONTROLS: Final[Mapping[int, type[Message]]] = {
    2: LeaderChangeMessage,
    3: SnapshotHeaderRecord,
    4: SnapshotFooterRecord,
    5: KRaftVersionRecord,
    6: VotersRecord,
}
_MARKER: Final = Struct(">hi")


def decode_record(kind: str, record: Record) -> dict[str, object]:
    """Return key and value of an internal record as JSON values.

    Raises FormatMismatch for an unknown type or malformed data.
    """
    try:
        if kind == METADATA:
            return {"record": _metadata(record.value)}
        key_class, value_class = _classes(kind)[version_prefix(record.key or b"")]
        key: dict[str, object] = {"key": _as_json(decode_version_prefixed(key_class, record.key or b""))}
        if record.value is None:
            return key
        return {**key, "value": _as_json(decode_version_prefixed(value_class, record.value))}
    except KeyError as error:
        raise FormatMismatch(f"unknown record type {error}") from None
    except WireError as error:
        raise FormatMismatch(str(error)) from None


def decode_control_record(record: Record) -> dict[str, object]:
    """Return a transaction marker or a KRaft control record as a JSON value. Raises FormatMismatch."""
    try:
        _, kind = control_type(record)
        value = record.value or b""
        if kind in MARKERS and len(value) >= _MARKER.size:
            return {"marker": MARKERS[kind], "coordinator_epoch": _MARKER.unpack_from(value)[1]}
        if kind in CONTROLS:
            found = CONTROLS[kind]
            version = min(int.from_bytes(value[:2], "big"), found.VERSIONS[1])
            return {"record": _as_json(decode(found, version, value)[0])}
    except (CorruptBatch, WireError) as error:
        raise FormatMismatch(str(error)) from None
    raise FormatMismatch(f"unknown control record type {kind}")


def _metadata(value: bytes | None) -> dict[str, object]:
    found = decode_metadata_record(value or b"")
    if isinstance(found, UnknownRecord):
        return {"type": found.record_type, "version": found.version, "value": found.value.hex()}
    return _as_json(found)


@cache
def _classes(kind: str) -> dict[int, tuple[type[Message], type[Message]]]:
    """Return key and value classes by the type number that starts each key."""
    found = {}
    for name in _MODULES_BY_KIND[kind]:
        declared = vars(import_module(f"kwire.wire.records.{name}"))
        for title, value in declared.items():
            if title.endswith("Key") and isinstance(value, type) and issubclass(value, Message):
                found[value.API_KEY] = value, declared[title.removesuffix("Key") + "Value"]
    return found


def _as_json(message: Message) -> dict[str, object]:
    return {"type": type(message).__name__, **_fields(message)}


def _fields(message: Message) -> dict[str, object]:
    return {
        field.name: [_plain(field.element, one) for one in value]
        if isinstance(value := getattr(message, field.name), list)
        else _plain(field.element, value)
        for field in fields_of(type(message))
    }


def _plain(element: str, value: Any) -> object:
    if isinstance(value, Message):
        return _fields(value)
    if element == "Uuid" and value is not None:
        return uuid_to_text(Uuid(bytes(value)))
    return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else value
