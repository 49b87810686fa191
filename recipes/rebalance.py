"""Ship orders. The program commits its offsets every 30 seconds, and before it loses partitions."""

import time
from collections.abc import Callable
from threading import Event

from confluent_kafka import Consumer, KafkaError, KafkaException

COMMIT_EVERY_S = 30


def ship_orders(servers: str, ship: Callable[[bytes], None], stop: Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "shipping",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )

    def commit(*_: object) -> None:
        """Commit the offsets of the orders that `ship` has handled."""
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:  # there is nothing to commit
                raise

    consumer.subscribe(["orders"], on_revoke=commit)
    next_commit = time.monotonic() + COMMIT_EVERY_S
    while not stop.is_set():
        order = consumer.poll(0.1)
        if order is not None and order.error() is None:
            ship(order.value() or b"")
        if time.monotonic() > next_commit:
            commit()
            next_commit = time.monotonic() + COMMIT_EVERY_S
    consumer.close()  # calls `commit` as well
