"""Decoders return a message or raise WireError for any input, in memory bounded by the input.

Valid messages of every API, version and stored record are truncated, overwritten and given wrong lengths at
every position.
"""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from kwire.wire.api_keys import ApiKey
from kwire.wire.codegen import (
    SLICE_ELEMENTS,
    Decoder,
    decode,
    decoder,
    encode,
    sliced_decoder,
    sliced_encoder,
)
from kwire.wire.errors import WireError
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.primitives import read_unsigned_varint
from kwire.wire.registry import (
    API_VERSIONS,
    decode_metadata_record,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
)
from kwire.wire.schema import Message
from tests.wire import golden, kafka_json
from tests.wire.interpreter import representative, to_message

CASES = [
    pytest.param(message_class, version, id=f"{message_class.__name__}-{version}")
    for message_class in golden.declared_messages().values()
    for version in range(message_class.VERSIONS[0], message_class.VERSIONS[1] + 1)
]
APIS = [
    pytest.param(key, version, id=f"{api.name}-{version}")
    for key, api in API_VERSIONS.items()
    for version in range(api.min_version, api.max_version + 1)
]

LIES = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xfe",
    b"\x7f\xff\xff\xff",
    b"\x00\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\xff\x01",
)
"""Wrong lengths and counts in all encodings of the protocol."""

MOST_BYTES = 64 * 1024
"""The peak memory for decoding a frame of some hundred bytes."""


def run(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """Run a generator. Return its result, and how often it yielded."""
    for yields in itertools.count():
        try:
            next(steps)
        except StopIteration as end:
            return end.value, yields
    raise AssertionError("unreachable")


def sample(message_class: type[Message], version: int) -> bytes:
    shape = kafka_json.definition(message_class.__name__).struct
    return encode(to_message(message_class, representative(shape, version)), version)


def with_wrong_lengths(data: bytes) -> Iterator[bytes]:
    """Yield the data with a wrong length at every position."""
    for position in range(len(data)):
        for lie in LIES:
            yield data[:position] + lie + data[position + len(lie) :]
        for turn in (0, 5):
            yield data[:position] + LIES[(position + turn) % len(LIES)] + data[position:]


def decode_or_none(decodes: Decoder, data: bytes) -> Message | None:
    """Decode a message, or return None after a WireError."""
    try:
        message, end = decodes(data, 0, len(data))
    except WireError:
        return None
    assert 0 <= end <= len(data)
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize(("message_class", "version"), CASES)
def test_truncated_message_raises_wire_error(message_class: type[Message], version: int) -> None:
    data = sample(message_class, version)
    decodes = decoder(message_class, version)
    assert decode_or_none(decodes, data) is not None
    for end in range(len(data)):
        with pytest.raises(WireError):
            decodes(data[:end], 0, end)


@pytest.mark.parametrize(("message_class", "version"), CASES)
def test_wrong_length_anywhere_is_bounded(message_class: type[Message], version: int) -> None:
    data = sample(message_class, version)
    decodes = decoder(message_class, version)
    decode_or_none(decodes, data)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for changed in with_wrong_lengths(data):
            decode_or_none(decodes, changed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < MOST_BYTES


@pytest.mark.parametrize(("message_class", "version"), CASES)
def test_changed_bytes_that_decode_can_be_encoded_again(message_class: type[Message], version: int) -> None:
    """A message decoded from changed bytes survives another round trip."""
    choose = random.Random(f"{message_class.__name__} {version}")
    data = sample(message_class, version)
    decodes = decoder(message_class, version)
    for _ in range(100):
        changed = bytearray(data + b"after")
        for _ in range(choose.randint(1, 3)):
            changed[choose.randrange(len(changed))] = choose.randrange(256)
        message = decode_or_none(decodes, bytes(changed))
        if message is not None:
            written = encode(message, version)
            assert decode(message_class, version, written) == (message, len(written))


@pytest.mark.parametrize(("message_class", "version"), CASES)
def test_random_bytes_are_bounded(message_class: type[Message], version: int) -> None:
    choose = random.Random(version)
    decodes = decoder(message_class, version)
    for size in range(0, 200, 3):
        decode_or_none(decodes, choose.randbytes(size))
        decode_or_none(decodes, bytes(choose.choices((0, 1, 2, 3, 255), k=size)))


@pytest.mark.parametrize(("key", "version"), APIS)
def test_truncated_or_changed_request_frame(key: int, version: int) -> None:
    """The frame includes the request header."""
    request_class = API_VERSIONS[key].request_class
    shape = kafka_json.definition(request_class.__name__).struct
    request = to_message(request_class, representative(shape, version))
    frame = encode_request(request, version, 7, "client")[4:]
    header, position = decode_request_header(memoryview(frame))
    assert decode_request(header, memoryview(frame), position) == request
    for end in range(len(frame)):
        with pytest.raises(WireError):
            read_request(frame[:end])
    for position in range(8, len(frame)):
        for lie in LIES:
            try:
                read_request(frame[:position] + lie + frame[position + len(lie) :])
            except WireError:
                continue


def read_request(frame: bytes) -> object:
    header, position = decode_request_header(memoryview(frame))
    return decode_request(header, memoryview(frame), position)


@pytest.mark.parametrize(("key", "version"), APIS)
def test_truncated_response_frame(key: int, version: int) -> None:
    response_class = API_VERSIONS[key].response_class
    response = sample(response_class, version)
    header = b"\x00\x00\x00\x07"
    if key != 18 and API_VERSIONS[key].is_flexible(version):
        header += b"\x00"
    frame = header + response
    assert decode_response(response_class, version, frame)[0] == 7
    for end in range(len(frame)):
        with pytest.raises(WireError):
            decode_response(response_class, version, frame[:end])


def test_count_larger_than_the_frame_is_refused() -> None:
    """A Metadata request of eight bytes with a count of two billion topics."""
    frame = b"\x7f\xff\xff\xff" + b"\x00" * 4
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="topics"):
            decode(API_VERSIONS[ApiKey.METADATA].request_class, 1, frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff", b"\x80" * 5 + b"\x00"]
)
def test_endless_or_too_long_varint_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read_unsigned_varint(data, 0, len(data))


def test_varint_limits() -> None:
    for value, data in (
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (0xFFFFFFFF, b"\xff\xff\xff\xff\x0f"),
    ):
        assert read_unsigned_varint(data, 0, len(data)) == (value, len(data))
    with pytest.raises(WireError):
        read_unsigned_varint(b"\xff\xff\xff\xff\x10", 0, 5)


def test_random_bytes_as_metadata_records() -> None:
    choose = random.Random(1)
    for _ in range(2000):
        data = (
            b"\x01"
            + bytes([choose.randrange(30), choose.randrange(3)])
            + choose.randbytes(choose.randrange(40))
        )
        try:
            decode_metadata_record(data)
        except WireError:
            continue


@pytest.mark.parametrize(("message_class", "version"), CASES)
def test_slices_decode_and_encode_the_same_bytes(message_class: type[Message], version: int) -> None:
    data = sample(message_class, version)
    (message, end), _ = run(sliced_decoder(message_class, version)(data, 0, len(data), [1]))
    assert (message, end) == (decode(message_class, version, data)[0], len(data))
    out = bytearray()
    run(sliced_encoder(message_class, version)(message, out, [], [1]))
    assert bytes(out) == data
    for size in range(0, len(data), 1 + len(data) // 8):
        truncated = data[:size]
        try:
            decode(message_class, version, truncated)
        except WireError:
            with pytest.raises(WireError):
                run(sliced_decoder(message_class, version)(truncated, 0, size, [1]))


def test_slices_count_the_elements_of_nested_lists() -> None:
    """A request may name one topic with many partitions, or many topics with one partition."""
    for topics, partitions in ((1, 4 * SLICE_ELEMENTS), (2 * SLICE_ELEMENTS, 1), (64, 64)):
        elements = topics * (1 + partitions)
        request = FetchRequest(
            topics=[
                FetchTopic(topic="a", partitions=[FetchPartition(partition=n) for n in range(partitions)])
                for _ in range(topics)
            ]
        )
        data = encode(request, 12)
        (message, _), decoding = run(sliced_decoder(FetchRequest, 12)(data, 0, len(data), [SLICE_ELEMENTS]))
        out = bytearray()
        _, encoding = run(sliced_encoder(FetchRequest, 12)(message, out, [], [SLICE_ELEMENTS]))
        assert out == data
        assert decoding == encoding == elements // SLICE_ELEMENTS
