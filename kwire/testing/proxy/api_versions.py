"""The versions that a proxy offers to clients.

The proxy has to decode responses with addresses of brokers, and requests that get an injected error. So an
API that `kwire.wire` declares is offered in the versions that are both declared and supported by the cluster.
All other APIs are offered in the versions of the cluster, and their messages are forwarded unchanged. The
APIs of `UNDECLARED_APIS` are not offered.
"""

from __future__ import annotations

from typing import Final

from kwire.testing.proxy.addresses import UNDECLARED_APIS
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Versions

WITH_ANY_MIN_VERSION: Final = {ApiKey.PRODUCE}
"""APIs that are offered with the lowest version of the cluster, even if `kwire.wire` does not declare it.

librdkafka takes a higher version of Produce for a broker without compression. KAFKA-18659.
"""
MIN_SASL_HANDSHAKE: Final = 1
"""After SaslHandshake 0, tokens follow without a request header, so the proxy cannot recognize their end."""


def offered_versions(api_key: int) -> Versions | None:
    """Return the versions of an API that the proxy can forward. None means that it can forward all."""
    if api_key in UNDECLARED_APIS:
        return Versions((1, 0))
    api = API_VERSIONS.get(api_key)
    if api is None:
        return None
    if api_key == ApiKey.SASL_HANDSHAKE:
        return Versions((MIN_SASL_HANDSHAKE, api.max_version))
    return Versions((api.min_version, api.max_version))


def narrow_versions(response: ApiVersionsResponse) -> None:
    """Remove the APIs and versions from a response that the proxy cannot forward."""
    narrowed = []
    for one in response.api_keys:
        offered = offered_versions(one.api_key)
        if offered is not None:
            if one.api_key not in WITH_ANY_MIN_VERSION:
                one.min_version = max(one.min_version, offered[0])
            one.max_version = min(one.max_version, offered[1])
        if one.min_version <= one.max_version:
            narrowed.append(one)
    response.api_keys = narrowed


def unsupported_version() -> ApiVersionsResponse:
    """Return the response to an ApiVersions request of a version that the proxy cannot decode (KIP-511)."""
    api = API_VERSIONS[ApiKey.API_VERSIONS]
    supported = ApiVersion(
        api_key=ApiKey.API_VERSIONS, min_version=api.min_version, max_version=api.max_version
    )
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])
