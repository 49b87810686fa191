"""An interpreter of Kafka's JSON message definitions, which is an independent check of kwire's encoding.

The definitions come from the kafka-clients jar, and the module shares no code with kwire. It is small and
slow. Messages are dictionaries with Kafka's field names: ``{"Topics": [{"Name": "a"}]}``.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from functools import cache
from typing import Any

from interop.reference import kafka_clients_jar
from kwire.wire.plural import plural

Fields = dict[str, Any]

INTEGERS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


class Truncated(Exception):
    """The bytes are shorter or longer than the message."""


class Versions:
    """A range of versions in a message definition, such as ``0+``, ``3-7``, ``2`` or ``none``."""

    def __init__(self, text: str | None) -> None:
        self.low, self.high = 1, 0
        if text and text != "none":
            low, _, high = text.replace("+", "-32767").partition("-")
            self.low, self.high = int(low), int(high or low)

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


@cache
def definitions() -> dict[str, Fields]:
    """Return every request and response definition of the jar, by message name."""
    found = {}
    with zipfile.ZipFile(kafka_clients_jar()) as jar:
        for name in jar.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                message = json.loads(text)
                found[message["name"]] = message
    return found


@cache
def api_keys() -> dict[str, int]:
    """Return the API key of each API, by API name such as ``Fetch``."""
    return {
        name.removesuffix("Request"): message["apiKey"]
        for name, message in definitions().items()
        if message["type"] == "request"
    }


def versions_of(api: str) -> range:
    """Return the stable versions of an API."""
    message = definitions()[f"{api}Request"]
    valid = Versions(message["validVersions"])
    high = valid.high - 1 if message.get("latestVersionUnstable") else valid.high
    return range(valid.low, high + 1)


class Layout:
    """The layout of a message at one version. It encodes dictionaries to bytes and decodes bytes."""

    def __init__(self, name: str, version: int) -> None:
        self.message = definitions()[name]
        self.version = version
        self.flexible = version in Versions(self.message.get("flexibleVersions"))
        self.structs = {
            struct_["name"]: struct_["fields"] for struct_ in self.message.get("commonStructs", [])
        }

    # Encoding

    def encode(self, values: Fields) -> bytes:
        out = bytearray()
        self._encode_struct(self.message["fields"], values, out)
        return bytes(out)

    def _encode_struct(self, fields: list[Fields], values: Fields, out: bytearray) -> None:
        unknown = set(values) - {field["name"] for field in fields}
        if unknown:
            raise KeyError(f"{self.message['name']} has no field {sorted(unknown)}")
        tagged = []
        for field in fields:
            if self.version not in Versions(field["versions"]):
                continue
            given = field["name"] in values
            value = values[field["name"]] if given else default_of(field)
            if "tag" in field and self.version in Versions(field.get("taggedVersions")):
                if given and value != default_of(field):
                    tagged.append((field["tag"], field, value))
                continue
            self._encode_value(field, field["type"], value, out)
        if self.flexible:
            put_varint(out, len(tagged))
            for tag, field, value in sorted(tagged, key=lambda entry: entry[0]):
                body = bytearray()
                self._encode_value(field, field["type"], value, body)
                put_varint(out, tag)
                put_varint(out, len(body))
                out += body

    def _encode_value(self, field: Fields, kind: str, value: Any, out: bytearray) -> None:
        flexible = self.flexible and field.get("flexibleVersions") != "none"
        if kind in INTEGERS:
            out += struct.pack(INTEGERS[kind], value)
        elif kind == "bool":
            out.append(1 if value else 0)
        elif kind == "uuid":
            out += value
        elif kind in ("string", "bytes", "records"):
            self._encode_blob(kind, value, flexible, out)
        elif kind.startswith("[]"):
            if flexible:
                put_varint(out, 0 if value is None else len(value) + 1)
            else:
                out += struct.pack(">i", -1 if value is None else len(value))
            for element in value or ():
                self._encode_value(field, kind[2:], element, out)
        else:
            if kind == field["type"] and self.version in Versions(field.get("nullableVersions")):
                out += struct.pack(">b", -1 if value is None else 1)
                if value is None:
                    return
            self._encode_struct(self._struct_fields(field, kind), value, out)

    def _encode_blob(self, kind: str, value: Any, flexible: bool, out: bytearray) -> None:
        data = value.encode() if isinstance(value, str) else value
        if flexible:
            put_varint(out, 0 if data is None else len(data) + 1)
        else:
            size = -1 if data is None else len(data)
            out += struct.pack(">h" if kind == "string" else ">i", size)
        out += data or b""

    # Decoding

    def decode(self, data: bytes, position: int = 0) -> tuple[Fields, int]:
        return self._decode_struct(self.message["fields"], data, position)

    def _decode_struct(self, fields: list[Fields], data: bytes, position: int) -> tuple[Fields, int]:
        values: Fields = {}
        tagged = {}
        for field in fields:
            if self.version not in Versions(field["versions"]):
                continue
            if "tag" in field and self.version in Versions(field.get("taggedVersions")):
                tagged[field["tag"]] = field
                values[field["name"]] = default_of(field)
                continue
            values[field["name"]], position = self._decode_value(field, field["type"], data, position)
        if self.flexible:
            count, position = take_varint(data, position)
            for _ in range(count):
                tag, position = take_varint(data, position)
                size, position = take_varint(data, position)
                if tag in tagged:
                    field = tagged[tag]
                    values[field["name"]], end = self._decode_value(field, field["type"], data, position)
                    if end != position + size:
                        raise Truncated(
                            f"tag {tag} has {plural(size, 'byte')} and {end - position} were read"
                        )
                position += size
        return values, position

    def _decode_value(self, field: Fields, kind: str, data: bytes, position: int) -> tuple[Any, int]:
        flexible = self.flexible and field.get("flexibleVersions") != "none"
        if kind in INTEGERS:
            size = struct.calcsize(INTEGERS[kind])
            return struct.unpack(INTEGERS[kind], take(data, position, size))[0], position + size
        if kind == "bool":
            return take(data, position, 1) != b"\0", position + 1
        if kind == "uuid":
            return take(data, position, 16), position + 16
        if kind in ("string", "bytes", "records"):
            size, position = self._decode_size(">h" if kind == "string" else ">i", flexible, data, position)
            if size < 0:
                return None, position
            blob = take(data, position, size)
            return (blob.decode() if kind == "string" else blob), position + size
        if kind.startswith("[]"):
            size, position = self._decode_size(">i", flexible, data, position)
            if size < 0:
                return None, position
            elements = []
            for _ in range(size):
                element, position = self._decode_value(field, kind[2:], data, position)
                elements.append(element)
            return elements, position
        # An array may be nullable although its elements are not.
        if kind == field["type"] and self.version in Versions(field.get("nullableVersions")):
            present = struct.unpack(">b", take(data, position, 1))[0]
            position += 1
            if present < 0:
                return None, position
        return self._decode_struct(self._struct_fields(field, kind), data, position)

    def _decode_size(self, fixed: str, flexible: bool, data: bytes, position: int) -> tuple[int, int]:
        if flexible:
            size, position = take_varint(data, position)
            return size - 1, position
        width = struct.calcsize(fixed)
        return struct.unpack(fixed, take(data, position, width))[0], position + width

    def _struct_fields(self, field: Fields, kind: str) -> list[Fields]:
        fields: list[Fields] = field.get("fields") or self.structs[kind]
        return fields


def default_of(field: Fields) -> Any:
    """Return the default value that Kafka's message generator gives to a field."""
    kind, default = field["type"], field.get("default")
    if default == "null":
        return None
    if kind == "bool":
        return str(default).lower() == "true"
    if kind == "float64":
        return float(default or 0)
    if kind in INTEGERS:
        return int(str(default), 0) if default not in (None, "") else 0
    if kind == "uuid":
        return bytes(16)
    if kind == "string":
        return default or ""
    if kind in ("bytes", "records"):
        return b""
    if kind.startswith("[]"):
        return []
    return {}


def put_varint(out: bytearray, value: int) -> None:
    """Append the value as an unsigned varint."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def take_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned varint at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = take(data, position, 1)[0]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def take(data: bytes, position: int, size: int) -> bytes:
    """Return exactly ``size`` bytes from a position.

    Raises Truncated if there are fewer bytes.
    """
    if position + size > len(data):
        raise Truncated(f"{plural(size, 'byte')} wanted at {position} of {len(data)}")
    return data[position : position + size]


def request_header_version(api: str, version: int) -> int:
    """Return the request header version: 2 for flexible versions (KIP-482), 1 for all others."""
    return 2 if version in Versions(definitions()[f"{api}Request"].get("flexibleVersions")) else 1


def response_header_version(api: str, version: int) -> int:
    """Return the response header version: always 0 for ApiVersions, which old clients can read (KIP-511)."""
    if api == "ApiVersions":
        return 0
    return request_header_version(api, version) - 1


def encode_request(
    api: str, version: int, fields: Fields, *, correlation_id: int = 1, client_id: str | None = "interop"
) -> bytes:
    """Return a request frame without its size prefix."""
    header = Layout("RequestHeader", request_header_version(api, version)).encode(
        {
            "RequestApiKey": api_keys()[api],
            "RequestApiVersion": version,
            "CorrelationId": correlation_id,
            "ClientId": client_id,
        }
    )
    return header + Layout(f"{api}Request", version).encode(fields)


def decode_response(api: str, version: int, frame: bytes) -> tuple[int, Fields]:
    """Return the correlation id and the body of a response.

    Raises Truncated if the frame is shorter or longer than the response.
    """
    header, position = Layout("ResponseHeader", response_header_version(api, version)).decode(frame)
    body, position = Layout(f"{api}Response", version).decode(frame, position)
    if position != len(frame):
        raise Truncated(f"{plural(len(frame) - position, 'byte')} left over after {api} v{version}")
    return header["CorrelationId"], body
