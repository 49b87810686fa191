"""ApiVersions: the advertised version ranges, and the response to unsupported versions."""

from __future__ import annotations

import pytest

from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole, apis_for
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.registry import encode_request
from tests.broker.api.telemetry.test_push import alter
from tests.node_harness import NodeHarness

NEWEST = 4
TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def request(**software: str) -> ApiVersionsRequest:
    named = {"client_software_name": "me", "client_software_version": "1.0", **software}
    return ApiVersionsRequest(**named)


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_response_has_version_ranges_and_from_v3_features(harness: NodeHarness, version: int) -> None:
    response = harness.call(version, request())
    assert response.error_code == 0
    ranges = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    assert ranges[ApiKey.API_VERSIONS] == (0, NEWEST)
    assert ranges[ApiKey.PRODUCE][0] == 0, "KAFKA-18659: or librdkafka does not compress"
    finalized = harness.node.features().finalized if version >= 3 else {}
    assert {one.name: one.max_version_level for one in response.finalized_features} == finalized


class OldController:
    """An active controller that supports only some of the forwarded APIs."""

    def __init__(self, known: dict[int, tuple[int, int]]) -> None:
        self.known = known

    def versions(self) -> dict[int, tuple[int, int]]:
        return self.known


def test_forwarded_apis_are_limited_to_the_versions_of_the_controller(harness: NodeHarness) -> None:
    def advertised_versions(known: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        harness.node.forwarding = OldController(known)  # type: ignore[assignment]
        return {
            one.api_key: (one.min_version, one.max_version) for one in harness.call(4, request()).api_keys
        }

    harness.node.has_telemetry_receiver = True
    alter(harness, "all", metrics="*")
    everything = advertised_versions({})
    assert everything.keys() == apis_for(ListenerRole.BROKER).keys()
    known: dict[int, tuple[int, int]]
    known = {ApiKey.CREATE_TOPICS: (5, 9), ApiKey.DESCRIBE_QUORUM: (0, 1), ApiKey.DELETE_TOPICS: (7, 8)}
    fewer = advertised_versions({**known, ApiKey.FETCH: (17, 17)})
    assert (fewer[ApiKey.CREATE_TOPICS], fewer[ApiKey.DESCRIBE_QUORUM]) == ((5, 7), (0, 1))
    own = {key for key in everything if not SUPPORTED_APIS[key].handled_by.value.is_forwarded}
    assert fewer.keys() == own | {ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_QUORUM}
    assert all(fewer[key] == everything[key] for key in own)


def test_telemetry_apis_are_advertised_while_a_receiver_and_a_subscription_exist(
    harness: NodeHarness,
) -> None:
    def advertises_telemetry() -> bool:
        advertised = {one.api_key for one in harness.call(NEWEST, request()).api_keys}
        assert len(advertised & TELEMETRY) in (0, 2)
        return bool(advertised & TELEMETRY)

    assert not advertises_telemetry()
    alter(harness, "producers", metrics="org.apache.kafka.producer.")
    assert not advertises_telemetry()
    harness.node.has_telemetry_receiver = True
    assert advertises_telemetry()
    alter(harness, "producers", metrics=None)
    assert not advertises_telemetry()
    alter(harness, "second", interval_ms="1000")
    assert advertises_telemetry()


def test_an_unsupported_version_gets_a_v0_response_with_the_range(harness: NodeHarness) -> None:
    client = harness.connect()
    frame = bytearray(encode_request(request(), NEWEST, 7, "me"))
    frame[6:8] = (NEWEST + 5).to_bytes(2, "big")
    client.submit_frame(bytes(frame))
    harness.turn()
    response = client.receive(0, ApiVersionsRequest)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    [known] = response.api_keys
    assert (known.api_key, known.min_version, known.max_version) == (ApiKey.API_VERSIONS, 0, NEWEST)


@pytest.mark.parametrize("name", ["", "-me", "me.", "a b", "m\u00e9"])
def test_invalid_software_names_are_refused(harness: NodeHarness, name: str) -> None:
    assert harness.call(3, request(client_software_name=name)).error_code == ErrorCode.INVALID_REQUEST
    assert harness.call(3, request(client_software_version=name)).error_code == ErrorCode.INVALID_REQUEST
