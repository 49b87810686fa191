"""Transactional writes without AddPartitionsToTxn, before the transaction coordinator exists."""

from __future__ import annotations

from typing import Any

from interop.batches import Batch
from interop.brokers import Broker
from interop.raw import comparable, create_topic, produce
from interop.raw_client import RawClient
from interop.scenario import scenario

TRANSACTIONAL = 16
LATER = {
    "ProducerId": 1,
    "ProducerEpoch": 5,
    "TransactionResult": True,
    "Topics": [{"Name": "t", "PartitionIndexes": [0]}],
    "CoordinatorEpoch": 0,
}
"""A marker that raises the producer epoch in the log."""


@scenario(seconds=120)
def without_coordinator(broker: Broker) -> Any:
    """Write with both values of `transaction.partition.verification.enable`, in three Produce versions."""
    seen: dict[str, Any] = {}
    for setting in ("false", "true"):
        own = type(broker)({"transaction.partition.verification.enable": setting})
        own.start()
        try:
            with RawClient(own.bootstrap) as client:
                create_topic(client, "t")
                for version in (12, 9, 11):
                    batch = Batch(
                        attributes=TRANSACTIONAL, producer_id=version, producer_epoch=0, base_sequence=0
                    )
                    response = produce(client, "t", batch.encode(), version=version, TransactionalId="x")
                    seen[f"{setting}, version {version}"] = comparable(response)
                client.call("WriteTxnMarkers", 1, Markers=[LATER])
                for version in (12, 9):
                    batch = Batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
                    response = produce(client, "t", batch.encode(), version=version, TransactionalId="x")
                    seen[f"{setting}, version {version}, an epoch that is over"] = comparable(response)
        finally:
            own.discard()
    return seen
