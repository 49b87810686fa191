"""The responses of the cluster, with the changes that clients behind a proxy need.

Most responses are forwarded without being decoded. A Produce or Fetch response is decoded if its version can
contain addresses; its records are not copied. Usually it contains none, and the received bytes are forwarded.
If all addresses are in the tagged fields at the end, only these are encoded again, and the received bytes
before them are forwarded. So the time for a Fetch response depends on the number of its partitions, and not
on its size.

Other changed responses are encoded again, without tagged fields that `kwire.wire` does not declare.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, Final, cast

from kwire.testing.proxy.addresses import LocalPort, address_fields, replace_addresses
from kwire.testing.proxy.api_versions import narrow_versions
from kwire.testing.proxy.topic_names import WITH_TOPIC_NAMES, TopicNames
from kwire.wire.api_keys import ApiKey
from kwire.wire.codegen import encode
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.primitives import Buffer, Region
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_response, encode_response
from kwire.wire.schema import Message, fields_of

_SIZE: Final = Struct(">i")


@cache
def must_decode(api_key: int, version: int) -> bool:
    """Return whether a response may have to change, or contains names of topics."""
    api = API_VERSIONS.get(api_key)
    if api is None or version not in api.response_class.VERSIONS:
        return False
    return (
        api_key == ApiKey.API_VERSIONS
        or api_key in WITH_TOPIC_NAMES
        or bool(address_fields(api.response_class, version))
    )


def convert_response(
    header: RequestHeader, frame: memoryview, local_port: LocalPort, topics: TopicNames
) -> list[Buffer | Region]:
    """Return the response to send to the client, in pieces, and add new topics to `topics`.

    `frame` has no size prefix. Raises WireError if the response cannot be decoded.
    """
    api_key, version = header.api_key, header.api_version
    unchanged = [_SIZE.pack(len(frame)), frame]
    if not must_decode(api_key, version):
        return cast("list[Buffer | Region]", unchanged)
    response_class = API_VERSIONS[api_key].response_class
    response: Any
    _, response = decode_response(response_class, version, frame)
    if api_key == ApiKey.API_VERSIONS:
        narrow_versions(response)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # KIP-511
        return _encode(header, version, response)
    if api_key in WITH_TOPIC_NAMES:
        topics.learn(response)
    fields = address_fields(response_class, version)
    tags = _encode_tagged_fields(response, version) if _are_all_tagged(response_class, version) else b""
    if not replace_addresses(response, fields, local_port):
        return cast("list[Buffer | Region]", unchanged)
    start = len(frame) - len(tags)
    if not tags or frame[start:] != tags:  # there is a tagged field that is not declared
        return _encode(header, version, response)
    tags = _encode_tagged_fields(response, version)
    return [_SIZE.pack(start + len(tags)), frame[:start], tags]


def _encode(header: RequestHeader, version: int, response: Message) -> list[Buffer | Region]:
    try:
        return encode_response(header.api_key, version, header.correlation_id, response)
    except ValueError as error:
        raise WireError(f"the changed response cannot be encoded: {error}") from error


@cache
def _are_all_tagged(response_class: type[Message], version: int) -> bool:
    """Return whether all addresses of a response are in its tagged fields."""
    id_field, inner = address_fields(response_class, version)
    tagged = {one.name for one in fields_of(response_class) if version in one.tagged}
    return not id_field and tagged >= {name for name, _ in inner}


def _encode_tagged_fields(response: Message, version: int) -> bytes:
    """Return the tagged fields of a response, which are its last bytes. Empty if all have their defaults."""
    tagged = [one.name for one in fields_of(type(response)) if version in one.tagged]
    values = {name: getattr(response, name) for name in tagged}
    if not any(values.values()):
        return b""
    only_tagged, empty = type(response)(**values), type(response)()
    return encode(only_tagged, version)[len(encode(empty, version)) - 1 :]
