"""The detection of records that a client wrote twice with different producer ids or epochs.

The cluster scenarios accept such duplicates, because the client causes them.
"""

from __future__ import annotations

import pytest

from interop.batches import Batch, Record
from interop.brokers import ApacheKafka, Broker, Kwire
from interop.cluster.identities import Identity, find_client_resends
from interop.raw import create_topic, produce
from interop.raw_client import RawClient


@pytest.mark.parametrize("kind", [ApacheKafka, Kwire], ids=lambda kind: kind.name)
def test_record_with_two_producer_ids_is_a_client_resend(kind: type[Broker]) -> None:
    broker = kind()
    try:
        broker.start()
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "t", 2)
            for epoch, sequence in ((0, 0), (0, 2), (1, 0)):
                batch = Batch(
                    [Record(b"a"), Record(b"b" if sequence else b"c")],
                    producer_id=7,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                )
                answer = produce(client, "t", batch.encode(), partition=1)
                assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, answer
        place = "t", 1
        records = [(place, at, value) for at, value in enumerate([b"a", b"c", b"a", b"b", b"a", b"c"])]
        # `a` is in the log twice under the first producer identity, and `b` once.
        assert find_client_resends(broker.bootstrap, None, records) == {
            b"c": [Identity(7, 0), Identity(7, 1)]
        }
    finally:
        broker.discard()
