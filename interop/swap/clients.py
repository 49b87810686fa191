"""Unmodified clients that keep running during all turns."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Message, Producer

from interop.brokers import Broker
from interop.raw import create_topic
from interop.raw_client import RawClient

TOPIC = "swap-through"
TRANSACTIONS = "swap-transactions"
EACH_TURN = 40
SECONDS = 30.0


class LongLived:
    """An idempotent producer, and one consumer for each of the two group protocols."""

    def __init__(self, broker: Broker) -> None:
        self.sent = 0
        self.seen: list[tuple[int, bytes]] = []
        self.seen_newer: list[tuple[int, bytes]] = []
        common = {"bootstrap.servers": broker.bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0}
        self.producer = Producer({**common, "enable.idempotence": True, "linger.ms": 2})
        self.consumer = Consumer(
            {
                **common,
                "group.id": "swap-through",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 300_000,
                "max.poll.interval.ms": 300_000,
                "heartbeat.interval.ms": 300,
            }
        )
        self.newer = Consumer(
            {
                **common,
                "group.id": "swap-848-through",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "max.poll.interval.ms": 300_000,
            }
        )
        with RawClient(broker.bootstrap) as client:
            create_topic(client, TOPIC)
            create_topic(client, TRANSACTIONS)
        self.consumer.subscribe([TOPIC])
        self.newer.subscribe([TOPIC])

    def take_turn(self, broker: Broker) -> None:
        failures: list[object] = []

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                failures.append(error)

        for _ in range(EACH_TURN):
            self.producer.produce(TOPIC, b"%d" % self.sent, on_delivery=delivered)
            self.sent += 1
        assert self.producer.flush(SECONDS) == 0, "not delivered"
        assert not failures, failures
        for consumer, seen in ((self.consumer, self.seen), (self.newer, self.seen_newer)):
            deadline = time.monotonic() + SECONDS
            while len(seen) < self.sent:
                assert time.monotonic() < deadline, f"read {len(seen)} of {self.sent}"
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    seen.append((message.offset() or 0, message.value() or b""))
            assert seen == [(index, b"%d" % index) for index in range(self.sent)], seen[-50:]
            consumer.commit(asynchronous=False)


def transact(broker: Broker) -> None:
    """Commit one transaction, abort one, and leave one open. The next turn aborts the open transaction."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": "swap",
            "transaction.timeout.ms": 800_000,
            "linger.ms": 2,
            "log_level": 0,
        }
    )
    producer.init_transactions(SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction, None):
        producer.begin_transaction()
        for index in range(5):
            producer.produce(TRANSACTIONS, b"%d" % index)
        assert producer.flush(SECONDS) == 0
        if end is not None:
            end(SECONDS)


def new_protocol(broker: Broker) -> None:
    """Read and commit with a consumer of the new group protocol (KIP-848)."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "swap-848",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([TOPIC])
        deadline = time.monotonic() + SECONDS
        while (message := consumer.poll(0.2)) is None or message.error() is not None:
            assert time.monotonic() < deadline, "nothing read"
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
