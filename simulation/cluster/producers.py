"""Producers that send one batch at a time and retry it until it is acknowledged or times out."""

from __future__ import annotations

from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.wire.batch import build
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from simulation.cluster.client_oracle import ClientOracle, SentRecord, Transaction
from simulation.cluster.simulated_client import Leader, SimulatedClient, Steps

PRODUCE_VERSION: Final = 12
INIT_PRODUCER_ID_VERSION: Final = 4
DELIVERY_TIMEOUT_MS: Final = 12_000
TIMEOUT_MS: Final = 1_500
"""The timeout in a Produce request, within which the broker must respond."""


class Producer(SimulatedClient):
    """A producer that writes to its partitions, with acks=all or acks=1, idempotent or not."""

    def __init__(
        self,
        *arguments: Any,
        oracle: ClientOracle,
        partitions: list[TopicPartition],
        acks: int = -1,
        is_idempotent: bool = True,
        pause_ms: int = 200,
    ) -> None:
        super().__init__(*arguments)
        self.oracle = oracle
        self.partitions = partitions
        self.produce_version = PRODUCE_VERSION
        self._acks = acks
        self._is_idempotent = is_idempotent
        self._pause_ms = pause_ms
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._written = 0

    def run(self) -> Steps[None]:
        if self._is_idempotent:
            yield from self.take_producer_id()
        while not self.is_stopping:
            tp = self.rng.choice(self.partitions)
            yield from self.deliver(tp, self.new_records(tp))
            yield self.random_pause(self._pause_ms)

    def new_records(self, tp: TopicPartition, transaction: Transaction | None = None) -> list[SentRecord]:
        """Create the records of a new batch, and add them to the oracle."""
        batch = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
            self._written += 1
            sent = SentRecord(
                b"%s/%d" % (self.name.encode(), self._written),
                tp,
                f"{self.name}:{self.producer_id}:{self.epoch}",
                self._written,
                self._is_idempotent,
                self._acks == -1,
                transaction=transaction,
            )
            self.oracle.on_send(sent)
            batch.append(sent)
        return batch

    def take_producer_id(self) -> Steps[None]:
        """Request a producer id until a broker returns one, and restart all sequences at 0."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            response = yield from self.request(self.any_broker(), INIT_PRODUCER_ID_VERSION, request)
            if response is None:
                yield from self.refresh()
            elif response.error_code:
                self.check_retriable(response.error_code, "InitProducerId")
                yield self.backoff()
            else:
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                self._sequences.clear()
                return

    def deliver(
        self, tp: TopicPartition, batch: list[SentRecord], transactional_id: str | None = None
    ) -> Steps[bool]:
        """Send a batch until it is acknowledged and return True, or return False if the batch times out."""
        sequence = self._sequences.get(tp, 0)
        deadline_ms = self.now_ms() + DELIVERY_TIMEOUT_MS
        records = build(
            [(self.now_ms(), None, sent.value, []) for sent in batch],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence if self._is_idempotent else -1,
            transactional=transactional_id is not None,
        )
        while self.now_ms() < deadline_ms:
            address, _ = yield from self.leader_of(tp)
            data = PartitionProduceData(index=tp.partition, records=memoryview(records))
            request = ProduceRequest(
                transactional_id=transactional_id,
                acks=self._acks,
                timeout_ms=TIMEOUT_MS,
                topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
            )
            for sent in batch:
                sent.attempts += 1
            response = yield from self.request(address, self.produce_version, request)
            if response is None:
                yield from self.refresh()
                continue
            ((result,),) = (topic.partition_responses for topic in response.responses)
            if not result.error_code:
                self.oracle.on_ack(batch, result.base_offset)
                self._sequences[tp] = sequence + len(batch)
                return True
            self.on_error(result.error_code, f"Produce to {tp}")
            if not self._learn_newer_leader(tp, response, result):
                yield self.backoff()
                yield from self.refresh()
        self.log(f"timed out: {batch[0].value.decode()}")
        if transactional_id is None and self._is_idempotent:
            # The batch may have been written. As in unmodified clients, continue with a new producer id.
            yield from self.take_producer_id()
        return False

    def on_error(self, code: int, what: str) -> None:
        """Handle the error code in a response. Raises Violation if an unmodified producer would fail."""
        self.check_retriable(code, what)

    def _learn_newer_leader(self, tp: TopicPartition, response: Any, result: Any) -> bool:
        """Use the leader in an error response if its epoch is newer (KIP-951). Returns whether it is used."""
        leader = Leader(result.current_leader.leader_id, result.current_leader.leader_epoch)
        if leader.node_id < 0 or not self.is_newer_leader(tp, leader):
            return False
        for node in response.node_endpoints:
            if node.node_id == leader.node_id:
                self.learn_broker(leader.node_id, PeerAddress(node.host, node.port))
                self.learn_leader(tp, leader)
                return True
        return False
