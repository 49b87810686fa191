"""DescribeAcls, CreateAcls and DeleteAcls of a node without an authorizer."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.messages.create_acls import AclCreation, CreateAclsRequest
from kwire.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kwire.wire.messages.describe_acls import DescribeAclsRequest
from tests.node_harness import NodeHarness

TOPIC, LITERAL, READ, ALLOW = 2, 3, 3, 3
DISABLED = ErrorCode.SECURITY_DISABLED
VERSIONS = (1, 2, 3)


class AclsHarness(NodeHarness):
    def responses(self, version: int, request: Any) -> list[Any]:
        """Return the responses of the broker listener and of the controller listener."""
        found = []
        for listener, role in (("PLAINTEXT", ListenerRole.BROKER), ("CONTROLLER", ListenerRole.CONTROLLER)):
            client = self.connect(listener=listener, role=role)
            client.submit(version, request)
            self.turn()
            found.append(client.receive(version, type(request)))
        return found


@pytest.fixture
def harness() -> AclsHarness:
    listeners = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return AclsHarness(**listeners)  # type: ignore[arg-type]


def acl(**changes: Any) -> AclCreation:
    fields = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return AclCreation(**{**fields, **changes})


def filter_fields(**changes: Any) -> dict[str, Any]:
    fields = {"resource_type_filter": TOPIC, "operation": READ, "permission_type": ALLOW}
    return {**fields, **changes}


@pytest.mark.parametrize("version", VERSIONS)
def test_describe_without_an_authorizer_returns_security_disabled(harness: AclsHarness, version: int) -> None:
    for response in harness.responses(version, DescribeAclsRequest(**filter_fields())):
        assert (response.error_code, response.resources) == (DISABLED, [])
        assert response.error_message == "No Authorizer is configured on the broker"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_creation_and_deletion_returns_security_disabled(
    harness: AclsHarness, version: int, count: int
) -> None:
    expected = [(DISABLED, "No Authorizer is configured.")] * count
    for response in harness.responses(version, CreateAclsRequest(creations=[acl()] * count)):
        assert [(one.error_code, one.error_message) for one in response.results] == expected
    filters = [DeleteAclsFilter(**filter_fields())] * count
    for response in harness.responses(version, DeleteAclsRequest(filters=filters)):
        assert [(one.error_code, one.error_message) for one in response.filter_results] == expected
        assert not any(one.matching_acls for one in response.filter_results)
    assert harness.node.image.acls == {}


@pytest.mark.parametrize(
    "request_",
    [
        *(
            CreateAclsRequest(creations=[acl(), acl(**{name: 0})])
            for name in ("resource_type", "resource_pattern_type", "operation", "permission_type")
        ),
        *(
            make(**filter_fields(**{name: 0}))
            for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
            for make in (
                DescribeAclsRequest,
                lambda **fields: DeleteAclsRequest(filters=[DeleteAclsFilter(**fields)]),
            )
        ),
    ],
    ids=repr,
)
def test_an_unknown_code_closes_the_connection(harness: AclsHarness, request_: Any) -> None:
    client = harness.connect()
    with pytest.raises(WireError):
        client.submit(3, request_)
    # A request that gets no response must not keep the connection open.
    assert all(slot.completed for slot in client.channel.slots)


def test_a_code_that_is_new_in_a_later_kafka_is_no_protocol_error(harness: AclsHarness) -> None:
    response = harness.call(3, CreateAclsRequest(creations=[acl(operation=99)]))
    assert [one.error_code for one in response.results] == [DISABLED]
