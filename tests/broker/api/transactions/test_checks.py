"""Whether a batch may be written in a transaction. KIP-890."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.rig import PRODUCE_VERSION, Rig, produce_request


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_batch_of_a_transaction_is_refused_while_nobody_can_end_it(rig: Rig) -> None:
    rig.create("a")
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    answer = rig.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "COORDINATOR_NOT_AVAILABLE" in answer.error_message
    assert rig.latest("a").offset == 0


def test_an_epoch_that_is_over_is_refused_by_its_name_though_nobody_can_end_its_transaction(rig: Rig) -> None:
    rig.create("a")
    topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0])]
    later = WritableTxnMarker(producer_id=1, producer_epoch=5, transaction_result=True, topics=topics)
    rig.call(1, WriteTxnMarkersRequest(markers=[later]))
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    answer = rig.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert rig.latest("a").offset == 1
