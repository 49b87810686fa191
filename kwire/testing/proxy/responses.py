"""The responses of the cluster, with the changes that clients behind a proxy need.

Most responses are forwarded without being decoded. A Produce or Fetch response is decoded if its version can
contain addresses: then the records stay views of the received bytes, and if there is no address, which is
the usual case, these bytes are forwarded. So the time for a Fetch response depends on the number of its
partitions, and not on its size.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, Final, cast

from kwire.testing.proxy.addresses import LocalPort, address_fields, replace_addresses
from kwire.testing.proxy.api_versions import narrow_versions
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import ZERO_UUID, Buffer, Region, Uuid
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_response, encode_response

WITH_TOPIC_NAMES: Final = {ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_TOPIC_PARTITIONS}
"""APIs whose responses contain topic ids with names."""
MAX_TOPIC_NAMES: Final = 100_000

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
    header: RequestHeader, frame: memoryview, local_port: LocalPort, topic_names: dict[Uuid, str]
) -> list[Buffer | Region]:
    """Return the response to send to the client, in pieces, and add new topics to `topic_names`.

    `frame` has no size prefix. Raises WireError if the response cannot be decoded.
    """
    api_key, version = header.api_key, header.api_version
    unchanged = [_SIZE.pack(len(frame)), frame]
    if not must_decode(api_key, version):
        return cast("list[Buffer | Region]", unchanged)
    response: Any
    _, response = decode_response(API_VERSIONS[api_key].response_class, version, frame)
    if api_key == ApiKey.API_VERSIONS:
        narrow_versions(response)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # KIP-511
    else:
        if api_key in WITH_TOPIC_NAMES:
            _learn_topic_names(response, topic_names)
        if not replace_addresses(response, address_fields(type(response), version), local_port):
            return cast("list[Buffer | Region]", unchanged)
    return encode_response(api_key, version, header.correlation_id, response)


def _learn_topic_names(response: Any, topic_names: dict[Uuid, str]) -> None:
    for topic in response.topics:
        topic_id = topic.topic_id
        if topic.name and topic_id != ZERO_UUID and topic_id not in topic_names:
            if len(topic_names) >= MAX_TOPIC_NAMES:
                return
            topic_names[topic_id] = topic.name
