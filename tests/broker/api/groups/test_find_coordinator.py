"""FindCoordinator: who coordinates a group, in every form of the question."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from tests.broker.api.groups.client import Client, find


@pytest.mark.parametrize("version", range(4))
def test_find_coordinator_before_v4(stranger: Client, version: int) -> None:
    # The first question makes the topic, the next one is answered.
    assert find(stranger, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    found = find(stranger, version)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9092)
    assert found.error_message == ("NONE" if version else "")


@pytest.mark.parametrize("version", range(1, 4))
def test_find_coordinator_of_what_is_not_coordinated(client: Client, version: int) -> None:
    answers = [find(client, version, kind) for kind in (1, 2, 9)]
    assert [answer.error_code for answer in answers] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answers[0].error_message == "The coordinator is not available."
    assert answers[1].error_message.startswith("This most likely occurs because of a request being malformed")
    assert {(answer.node_id, answer.host, answer.port) for answer in answers} == {(-1, "", -1)}


def test_find_coordinator_of_many_keys_has_a_message_only_for_kinds_that_nobody_knows(client: Client) -> None:
    messages = {kind: find(client, 4, kind).coordinators[0].error_message for kind in (0, 1, 2, 9)}
    assert [bool(message) for message in messages.values()] == [False, False, False, True]
