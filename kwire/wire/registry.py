"""The registry of APIs, and the codecs of requests, responses and stored records with their headers.

Request headers have version 1, or version 2 in the flexible versions of an API. Response headers have version
0, or version 1 in the flexible versions. An ApiVersions response always has header version 0, because the
client does not know the broker's versions yet (KIP-511).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property, lru_cache
from importlib import import_module
from struct import Struct
from struct import error as StructError
from typing import Any, TypeVar

from kwire.wire.api_keys import ApiKey
from kwire.wire.codegen import (
    SLICE_ELEMENTS,
    Decoder,
    Encoder,
    decode,
    decoder,
    encode,
    encoder,
    sliced_decoder,
    sliced_encoder,
)
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import (
    Buffer,
    Region,
    append_unsigned_varint,
    read_unsigned_varint,
    truncated,
)
from kwire.wire.schema import Bytes, Int32, Message, field

_SIZE_AND_ID = Struct(">ii")
_HEADER_FIXED = Struct(">hhi")
_HEADER_START = Struct(">hhih")
_INT16 = Struct(">h")
_API_VERSIONS = ApiKey.API_VERSIONS
"""The member to compare with each response's API key. A lookup in the enumeration takes six times as long."""
_UNSUPPORTED_VERSION = _INT16.pack(ErrorCode.UNSUPPORTED_VERSION)

ResponseT = TypeVar("ResponseT", bound=Message)


class ApiInfo:
    """One API: its key, its name, and its message classes, which are imported on first use."""

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.name = key.name.title().replace("_", "")

    @cached_property
    def request_class(self) -> type[Message]:
        return self._class("Request")

    @cached_property
    def response_class(self) -> type[Message]:
        return self._class("Response")

    def _class(self, side: str) -> type[Message]:
        module = import_module("kwire.wire.messages." + self.key.name.lower())
        found: type[Message] = getattr(module, self.name + side)
        return found

    @property
    def min_version(self) -> int:
        """The lowest declared version. `SUPPORTED_APIS` has the versions that a node advertises."""
        return self.request_class.VERSIONS[0]

    @property
    def max_version(self) -> int:
        """The highest declared version."""
        return self.request_class.VERSIONS[1]

    def is_flexible(self, version: int) -> bool:
        """Return whether this version has compact lengths and tagged fields (KIP-482)."""
        return version in self.request_class.FLEXIBLE


API_VERSIONS: dict[int, ApiInfo] = {key: ApiInfo(key) for key in ApiKey}
"""The APIs whose messages are declared, by API key."""


class RequestHeader(NamedTuple):
    """The header of a request, without the tagged fields of header version 2."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    header_version: int = 1

    def __str__(self) -> str:
        api = API_VERSIONS.get(self.api_key)
        name = f"API {self.api_key}" if api is None else api.name
        return (
            f"{name} v{self.api_version} (client id {self.client_id!r}, correlation id {self.correlation_id})"
        )


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Decode the header of a request. Return the header and the position of the request's body.

    `frame` does not include the size prefix. The header of an undeclared API is decoded as header version 1,
    which suffices to return an error. Raises WireError for an invalid header.
    """
    try:
        api_key, api_version, correlation_id, length = _HEADER_START.unpack_from(frame, 0)
    except StructError:
        raise WireError(f"a request of {plural(len(frame), 'byte')} has no header") from None
    end = len(frame)
    position = 10
    client_id: str | None = None
    if length >= 0:
        position += length
        if position > end:
            raise truncated("client_id", 10, end)
        client_id = str(frame[10:position], "utf-8", "replace")
    flexible = _is_flexible(api_key, api_version)
    if flexible:
        if position < end and not frame[position]:
            position += 1  # no tags, as in nearly all requests
        else:
            position = _skip_tags(frame, position, end)
    return RequestHeader(api_key, api_version, correlation_id, client_id, 2 if flexible else 1), position


@lru_cache(1024)
def _is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether a version is flexible; False for an undeclared API. Each request calls this twice."""
    api = API_VERSIONS.get(api_key)
    return api is not None and api.is_flexible(api_version)


def _skip_tags(buffer: Buffer, position: int, end: int) -> int:
    count, position = read_unsigned_varint(buffer, position, end)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position, end)
        size, position = read_unsigned_varint(buffer, position, end)
        position += size
        if position > end:
            raise truncated("a tagged field of the header", position - size, end)
    return position


def decode_request(header: RequestHeader, frame: memoryview, position: int) -> Any:
    """Decode the request at `position` in a frame. Raises WireError if the request is malformed.

    The API and version of the request must be declared. Bytes after the request are ignored, as in Apache
    Kafka.
    """
    request_class = API_VERSIONS[header.api_key].request_class
    request, _ = decoder(request_class, header.api_version)(frame, position, len(frame))
    return request


def decode_request_in_slices(
    header: RequestHeader, frame: memoryview, position: int
) -> Generator[None, None, Any]:
    """Decode a large request like `decode_request`, and yield between slices of its elements."""
    request_class = API_VERSIONS[header.api_key].request_class
    decode_slices = sliced_decoder(request_class, header.api_version)
    request, _ = yield from decode_slices(frame, position, len(frame), [SLICE_ELEMENTS])
    return request


def encode_response(
    api_key: int, api_version: int, correlation_id: int, response: Message
) -> list[Buffer | Region]:
    """Encode a response as a frame with the size prefix. Return the pieces of the frame in order.

    Raises ValueError for a value that the version cannot carry.
    """
    out = _response_header(api_key, api_version)
    regions: list[tuple[int, Region]] = []
    encoder(type(response), api_version)(response, out, regions)
    return _response_pieces(correlation_id, out, regions)


def encode_response_in_slices(
    api_key: int, api_version: int, correlation_id: int, response: Message
) -> Generator[None, None, list[Buffer | Region]]:
    """Encode a large response like `encode_response`, and yield between slices of its elements."""
    out = _response_header(api_key, api_version)
    regions: list[tuple[int, Region]] = []
    yield from sliced_encoder(type(response), api_version)(response, out, regions, [SLICE_ELEMENTS])
    return _response_pieces(correlation_id, out, regions)


def _response_header(api_key: int, api_version: int) -> bytearray:
    """Return space for the size prefix and the correlation id, and the empty tags if there are any."""
    if api_key != _API_VERSIONS and _is_flexible(api_key, api_version):
        return bytearray(9)
    return bytearray(8)


def _response_pieces(
    correlation_id: int, out: bytearray, regions: list[tuple[int, Region]]
) -> list[Buffer | Region]:
    if not regions:
        _SIZE_AND_ID.pack_into(out, 0, len(out) - 4, correlation_id)
        return [out]
    size = len(out) + sum(region.size_bytes for _, region in regions)
    _SIZE_AND_ID.pack_into(out, 0, size - 4, correlation_id)
    pieces: list[Buffer | Region] = []
    start = 0
    view = memoryview(out)
    for position, region in regions:
        if position > start:
            pieces.append(view[start:position])
        pieces.append(region)
        start = position
    if start < len(out):
        pieces.append(view[start:])
    return pieces


def encode_request(request: Message, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a client's request as a frame with the size prefix.

    Raises ValueError for a value that the version cannot carry, or a region of a file.
    """
    out = bytearray(4)
    out += _HEADER_FIXED.pack(request.API_KEY, api_version, correlation_id)
    if client_id is None:
        out += _INT16.pack(-1)
    else:
        text = client_id.encode()
        out += _INT16.pack(len(text)) + text
    if api_version in request.FLEXIBLE:
        out.append(0)
    out += encode(request, api_version)
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def decode_response(
    response_class: type[ResponseT], api_version: int, frame: Buffer
) -> tuple[int, ResponseT]:
    """Decode a response for a client. Return the correlation id and the response.

    `frame` does not include the size prefix. Records in the response are views of `frame`. Raises WireError
    for a malformed frame.
    """
    end = len(frame)
    if end < 4:
        raise WireError(f"a response of {plural(end, 'byte')} has no header")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    position = 4
    if response_class.API_KEY != ApiKey.API_VERSIONS:
        if api_version in response_class.FLEXIBLE:
            position = _skip_tags(frame, 4, end)
    elif frame[4:6] == _UNSUPPORTED_VERSION:
        # KIP-511: a broker that does not support the requested version responds in version 0.
        api_version = 0
    response, position = decode(response_class, api_version, frame, position)
    if position != end:
        raise WireError(f"{plural(end - position, 'byte')} after a {response_class.__name__}")
    return correlation_id, response


METADATA_FRAME_VERSION = 1
"""The frame version of metadata records (KIP-631).

Frame version, record type and version precede a record as varints.
"""


class UnknownRecord(Message):
    """A metadata record of an undeclared type or version. Its complete value is preserved."""

    record_type: Int32 = field()
    version: Int32 = field()
    value: Bytes = field()


def encode_record(record: Message, version: int) -> bytes:
    """Encode a record as it is written to its log. Raises ValueError if the version cannot carry a value.

    A metadata record has a frame with its type and version. All other records have a prefix of two bytes: for
    a coordinator's key the record type, regardless of `version`; for all others the version.
    """
    if isinstance(record, UnknownRecord):
        return record.value
    prefix, write = _record_encoder(type(record), version)
    out = bytearray(prefix)
    write(record, out, [])
    return bytes(out)


@lru_cache(1024)
def _record_encoder(record_class: type[Message], version: int) -> tuple[bytes, Encoder]:
    """Return the prefix of records of this class, and the encoder of their fields."""
    if record_class.__name__.endswith("Key"):
        version = record_class.VERSIONS[0]
        prefix = bytearray(_INT16.pack(record_class.API_KEY))
    elif record_class.__module__ != "kwire.wire.records.metadata":
        prefix = bytearray(_INT16.pack(version))
    else:
        prefix = bytearray()
        for number in (METADATA_FRAME_VERSION, record_class.API_KEY, version):
            append_unsigned_varint(prefix, number)
    return bytes(prefix), encoder(record_class, version)


@lru_cache(1024)
def _metadata_decoder(record_type: int, version: int) -> Decoder | None:
    """Return the decoder of metadata records of this type and version, or None if they are not declared."""
    from kwire.wire.records.metadata import RECORDS

    record_class = RECORDS.get(record_type)
    if record_class is None or version not in record_class.VERSIONS:
        return None
    return decoder(record_class, version)


def decode_metadata_record(value: Buffer) -> Any:
    """Decode a metadata record. Raises WireError for a malformed record.

    Returns an UnknownRecord if the type or version is not declared.
    """
    end = len(value)
    if (
        end > 2 and (value[0] | value[1] | value[2]) < 0x80
    ):  # three varints of one byte, as in all records today
        frame_version, record_type, version = value[:3]
        position = 3
    else:
        frame_version, position = read_unsigned_varint(value, 0, end)
        record_type, position = read_unsigned_varint(value, position, end)
        version, position = read_unsigned_varint(value, position, end)
    if frame_version != METADATA_FRAME_VERSION:
        raise WireError(f"metadata record with frame version {frame_version}")
    decode = _metadata_decoder(record_type, version)
    if decode is None:
        return UnknownRecord(record_type=record_type, version=version, value=bytes(value))
    record, position = decode(value, position, end)
    if position != end:
        raise WireError(f"{plural(end - position, 'byte')} after a {type(record).__name__}")
    return record


def version_prefix(data: Buffer) -> int:
    """Return the two-byte prefix: a coordinator key's record type, or a value's version.

    Raises WireError if the data has fewer than two bytes.
    """
    if len(data) < 2:
        raise WireError("a record is shorter than its version")
    return int(_INT16.unpack_from(data, 0)[0])


def decode_version_prefixed(record_class: type[Message], data: Buffer) -> Any:
    """Decode a record that starts with its version, or with the record type if it is a coordinator's key.

    Raises WireError for malformed data, another record type or an undeclared version.
    """
    version = version_prefix(data)
    if record_class.__name__.endswith("Key"):
        if version != record_class.API_KEY:
            raise WireError(f"{record_class.__name__} has record type {version}")
        version = record_class.VERSIONS[0]
    if version not in record_class.VERSIONS:
        raise WireError(f"{record_class.__name__} has no version {version}")
    record, _ = decoder(record_class, version)(data, 2, len(data))
    return record
