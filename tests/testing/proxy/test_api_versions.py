"""The versions that a proxy offers to clients."""

from __future__ import annotations

from kwire.testing.proxy.addresses import UNDECLARED_APIS
from kwire.testing.proxy.api_versions import narrow_versions, offered_versions
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from kwire.wire.registry import API_VERSIONS

SHARE_GROUP_HEARTBEAT = 76


def narrowed(*entries: tuple[int, int, int]) -> dict[int, tuple[int, int]]:
    response = ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last) for key, first, last in entries
        ]
    )
    narrow_versions(response)
    return {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}


def test_declared_apis_are_offered_in_declared_versions() -> None:
    fetch = API_VERSIONS[ApiKey.FETCH]
    assert narrowed((ApiKey.FETCH, 0, 99)) == {ApiKey.FETCH: (fetch.min_version, fetch.max_version)}
    assert narrowed((ApiKey.FETCH, 6, 11)) == {ApiKey.FETCH: (6, 11)}
    assert narrowed((ApiKey.FETCH, 90, 99)) == {}


def test_produce_keeps_the_lowest_version_of_the_cluster_for_librdkafka() -> None:
    assert narrowed((ApiKey.PRODUCE, 0, 11)) == {ApiKey.PRODUCE: (0, 11)}


def test_undeclared_apis_are_offered_unless_they_contain_addresses() -> None:
    entries = [(key, 0, 2) for key in (SHARE_GROUP_HEARTBEAT, *UNDECLARED_APIS)]
    assert narrowed(*entries) == {SHARE_GROUP_HEARTBEAT: (0, 2)}
    assert not UNDECLARED_APIS.keys() & API_VERSIONS.keys(), "remove an API that kwire.wire now declares"
    assert offered_versions(SHARE_GROUP_HEARTBEAT) is None


def test_sasl_handshake_is_offered_from_version_1() -> None:
    assert narrowed((ApiKey.SASL_HANDSHAKE, 0, 1)) == {ApiKey.SASL_HANDSHAKE: (1, 1)}
