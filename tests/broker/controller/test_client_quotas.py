"""AlterClientQuotas in the controller. interop/scenarios/raw_client_quotas.py compares it with Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import MAX_RECORDS_PER_REQUEST, AlterClientQuotas
from kwire.wire.errors import ApiError

ALICE = (("user", "alice"),)
APP = (("client-id", "app"), ("user", "alice"))


def alter(cluster: Any, *entries: Any, validate_only: bool = False) -> list[str | None]:
    reply = cluster.run(AlterClientQuotas(entries, validate_only))
    return [None if fault is None else fault.message for fault in reply.values()]


def test_quotas_are_set_changed_and_removed(cluster: Any) -> None:
    set_both = (ALICE, [("producer_byte_rate", 10.0)]), (APP, [("request_percentage", 0.5)])
    assert alter(cluster, *set_both, validate_only=True) == [None, None]
    assert not cluster.image.quotas
    assert alter(cluster, *set_both) == [None, None]
    assert cluster.image.quotas == {ALICE: {"producer_byte_rate": 10.0}, APP: {"request_percentage": 0.5}}
    offset = cluster.image.offset
    assert alter(cluster, set_both[0]) == [None]
    assert cluster.image.offset == offset, "an equal value takes no record"
    changes = [("producer_byte_rate", None), ("consumer_byte_rate", 5.0)]
    assert alter(cluster, (ALICE, changes), (APP, [("request_percentage", None)])) == [None, None]
    assert cluster.image.quotas == {ALICE: {"consumer_byte_rate": 5.0}}


def test_an_invalid_entity_does_not_affect_others(cluster: Any) -> None:
    bad = (APP, [("producer_byte_rate", 5.0), ("consumer_byte_rate", -1.0)])
    assert alter(cluster, bad, (ALICE, [("producer_byte_rate", 5.0)])) == [
        "Quota consumer_byte_rate must be greater than 0",
        None,
    ]
    assert cluster.image.quotas == {ALICE: {"producer_byte_rate": 5.0}}


def test_a_second_change_of_an_entity_or_key_is_refused(cluster: Any) -> None:
    twice = (ALICE, [("producer_byte_rate", 5.0)])
    assert alter(cluster, twice, twice) == [
        "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    ]
    assert cluster.image.quotas == {ALICE: {"producer_byte_rate": 5.0}}
    key_twice = (APP, [("producer_byte_rate", 5.0), ("producer_byte_rate", 6.0)])
    (message,) = alter(cluster, key_twice)
    assert message is not None
    assert message.startswith("Ignoring duplicate entity")
    assert APP not in cluster.image.quotas


def test_too_many_changes_are_refused(cluster: Any) -> None:
    entries = [
        ((("user", f"user-{number}"),), [("producer_byte_rate", 1.0)])
        for number in range(MAX_RECORDS_PER_REQUEST + 1)
    ]
    with pytest.raises(ApiError, match="excessively large batch"):
        alter(cluster, *entries)
    assert not cluster.image.quotas
