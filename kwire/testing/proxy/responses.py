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
from kwire.testing.proxy.topic_names import WITH_TOPIC_NAMES, TopicNames
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Buffer, Region
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_response, encode_response

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
    else:
        if api_key in WITH_TOPIC_NAMES:
            topics.learn(response)
        if not replace_addresses(response, address_fields(response_class, version), local_port):
            return cast("list[Buffer | Region]", unchanged)
    return encode_response(api_key, version, header.correlation_id, response)
