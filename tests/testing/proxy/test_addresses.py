"""The addresses of brokers in responses."""

from __future__ import annotations

from typing import Any

from kwire.testing.proxy.addresses import QUORUM_APIS, address_fields, replace_addresses
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from kwire.wire.messages.fetch import FetchResponse
from kwire.wire.messages.fetch import NodeEndpoint as FetchEndpoint
from kwire.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from kwire.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from kwire.wire.messages.produce import NodeEndpoint, ProduceResponse
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Message, fields_of

BROKER_ADDRESSES = {
    ApiKey.PRODUCE: 10,
    ApiKey.FETCH: 16,
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
}
"""The APIs whose responses contain addresses of brokers, with the first such version."""


def has_host_and_port(message_class: type[Message]) -> bool:
    fields = fields_of(message_class)
    return {"host", "port"} <= {one.name for one in fields} or any(
        one.message is not None and has_host_and_port(one.message) for one in fields
    )


def test_every_response_with_a_host_and_a_port_is_known() -> None:
    found = {key for key, api in API_VERSIONS.items() if has_host_and_port(api.response_class)}
    assert found <= {*BROKER_ADDRESSES, *QUORUM_APIS}, (
        "decide whether the addresses in a new response must be replaced"
    )
    assert set(BROKER_ADDRESSES) <= found


def test_addresses_are_found_in_the_versions_that_have_them() -> None:
    first: dict[int, int] = {}
    for key, api in API_VERSIONS.items():
        for version in range(api.min_version, api.max_version + 1):
            if address_fields(api.response_class, version):
                first.setdefault(key, version)
    assert first == BROKER_ADDRESSES


def replaced(message: Any, version: int) -> bool:
    def local_port(broker_id: int, host: str, port: int) -> int:
        assert (host, port) == (f"kafka-{broker_id}", 9000 + broker_id)
        return 50_000 + broker_id

    message_class: type[Message] = type(message)
    return replace_addresses(message, address_fields(message_class, version), local_port)


def test_addresses_are_replaced_at_any_depth() -> None:
    address: Any = {"host": "kafka-3", "port": 9003}
    single = FindCoordinatorResponse(node_id=3, **address)
    messages: list[tuple[Any, int, Any]] = [
        (MetadataResponse(brokers=[MetadataResponseBroker(node_id=3, **address)]), 12, "brokers"),
        (DescribeClusterResponse(brokers=[DescribeClusterBroker(broker_id=3, **address)]), 1, "brokers"),
        (FindCoordinatorResponse(coordinators=[Coordinator(node_id=3, **address)]), 4, "coordinators"),
        (ProduceResponse(node_endpoints=[NodeEndpoint(node_id=3, **address)]), 10, "node_endpoints"),
        (FetchResponse(node_endpoints=[FetchEndpoint(node_id=3, **address)]), 16, "node_endpoints"),
    ]
    for message, version, field in messages:
        assert replaced(message, version)
        [one] = getattr(message, field)
        assert (one.host, one.port) == ("127.0.0.1", 50_003)
    assert replaced(single, 3)
    assert (single.host, single.port) == ("127.0.0.1", 50_003)


def test_response_without_an_address_is_not_changed() -> None:
    assert not replaced(MetadataResponse(), 12)
    assert not replaced(FetchResponse(), 16)
    failed = FindCoordinatorResponse(node_id=-1, host="", port=-1)
    assert not replaced(failed, 3)
    assert (failed.host, failed.port) == ("", -1)
