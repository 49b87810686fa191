"""FindCoordinator in every version."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from tests.broker.api.groups.client import Client, find_coordinator


@pytest.mark.parametrize("version", range(4))
def test_find_coordinator_before_v4_creates_the_topic(new_cluster_client: Client, version: int) -> None:
    # The first request creates the topic, and the next one finds the coordinator.
    assert find_coordinator(new_cluster_client, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    found = find_coordinator(new_cluster_client, version)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9092)
    assert found.error_message == ("NONE" if version else "")


@pytest.mark.parametrize("version", range(1, 4))
def test_find_coordinator_of_an_unsupported_key_type_is_an_error(client: Client, version: int) -> None:
    responses = [find_coordinator(client, version, kind) for kind in (1, 2, 9)]
    assert [response.error_code for response in responses] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert responses[0].error_message == "The coordinator is not available."
    assert responses[1].error_message.startswith(
        "This most likely occurs because of a request being malformed"
    )
    assert {(response.node_id, response.host, response.port) for response in responses} == {(-1, "", -1)}


def test_v4_has_an_error_message_only_for_unknown_key_types(client: Client) -> None:
    messages = {
        kind: find_coordinator(client, 4, kind).coordinators[0].error_message for kind in (0, 1, 2, 9)
    }
    assert [bool(message) for message in messages.values()] == [False, False, False, True]
