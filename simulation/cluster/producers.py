"""Producers: one batch in flight, sent again until it is acknowledged or its time is over."""

from __future__ import annotations

from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.oracle import Oracle, SentRecord, Transaction
from kwire.testing.simulated.simulated_client import Leader, SimulatedClient, Steps
from kwire.wire.batch import build
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE_VERSION: Final = 12
INIT_PRODUCER_ID_VERSION: Final = 4
DELIVERY_TIMEOUT_MS: Final = 12_000
TIMEOUT_MS: Final = 1_500
"""How long a broker may take."""


class Producer(SimulatedClient):
    """Writes to some partitions, with acks=all or acks=1, idempotent or not."""

    def __init__(
        self,
        *arguments: Any,
        ledger: Oracle,
        places: list[TopicPartition],
        acks: int = -1,
        is_idempotent: bool = True,
        pause_ms: int = 200,
    ) -> None:
        super().__init__(*arguments)
        self.ledger = ledger
        self.places = places
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
            place = self.rng.choice(self.places)
            yield from self.deliver(place, self.some_records(place))
            yield self.random_pause(self._pause_ms)

    def some_records(self, place: TopicPartition, transaction: Transaction | None = None) -> list[SentRecord]:
        """A batch to be sent, entered in the ledger."""
        batch = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
            self._written += 1
            sent = SentRecord(
                b"%s/%d" % (self.name.encode(), self._written),
                place,
                f"{self.name}:{self.producer_id}:{self.epoch}",
                self._written,
                self._is_idempotent,
                self._acks == -1,
                transaction=transaction,
            )
            self.ledger.on_send(sent)
            batch.append(sent)
        return batch

    def take_producer_id(self) -> Steps[None]:
        """Get a producer id from whichever broker gives one."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            answer = yield from self.request(self.any_broker(), INIT_PRODUCER_ID_VERSION, request)
            if answer is None:
                yield from self.refresh()
            elif answer.error_code:
                self.check_retriable(answer.error_code, "InitProducerId")
                yield self.backoff()
            else:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
                return

    def deliver(
        self, place: TopicPartition, batch: list[SentRecord], transactional_id: str | None = None
    ) -> Steps[bool]:
        """Send a batch until it is acknowledged; False where its time was over before."""
        sequence = self._sequences.get(place, 0)
        given_up_ms = self.now_ms() + DELIVERY_TIMEOUT_MS
        records = build(
            [(self.now_ms(), None, sent.value, []) for sent in batch],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence if self._is_idempotent else -1,
            transactional=transactional_id is not None,
        )
        while self.now_ms() < given_up_ms:
            address, _ = yield from self.leader_of(place)
            data = PartitionProduceData(index=place.partition, records=memoryview(records))
            request = ProduceRequest(
                transactional_id=transactional_id,
                acks=self._acks,
                timeout_ms=TIMEOUT_MS,
                topic_data=[TopicProduceData(name=place.topic, partition_data=[data])],
            )
            for sent in batch:
                sent.attempts += 1
            answer = yield from self.request(address, self.produce_version, request)
            if answer is None:
                yield from self.refresh()
                continue
            ((outcome,),) = (topic.partition_responses for topic in answer.responses)
            if not outcome.error_code:
                self.ledger.on_ack(batch, outcome.base_offset)
                self._sequences[place] = sequence + len(batch)
                return True
            self.refused(outcome.error_code, f"Produce to {place}")
            if not self._knows_better(place, answer, outcome):
                yield self.backoff()
                yield from self.refresh()
        self.log(f"gives up {batch[0].value.decode()}")
        if transactional_id is None and self._is_idempotent:
            # Whether it was written cannot be known: as stock producers, go on as another one.
            yield from self.take_producer_id()
        return False

    def refused(self, code: int, what: str) -> None:
        """Somebody has refused something. Broken where a stock producer would fail."""
        self.check_retriable(code, what)

    def _knows_better(self, place: TopicPartition, answer: Any, outcome: Any) -> bool:
        """KIP-951: whoever does not lead may say who does."""
        leader = Leader(outcome.current_leader.leader_id, outcome.current_leader.leader_epoch)
        if leader.node_id < 0 or not self.is_newer_leader(place, leader):
            return False
        for node in answer.node_endpoints:
            if node.node_id == leader.node_id:
                self.learn_broker(leader.node_id, PeerAddress(node.host, node.port))
                self.learn_leader(place, leader)
                return True
        return False
