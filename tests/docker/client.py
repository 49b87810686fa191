"""A confluent-kafka client that produces records and consumes them in a group.

python -m tests.docker.client HOST:PORT[,...]      # exits with status 0 on success
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from urllib.request import urlopen

from confluent_kafka import Consumer, Message, Producer

CLIENT_SECONDS = 30
COUNT = 20


def is_ready(address: str) -> bool:
    """Return whether the readiness endpoint of a node reports ready."""
    with urlopen(f"http://{address}/readyz", timeout=CLIENT_SECONDS) as response:
        return bool(response.status == 200)


def exchange(addresses: Sequence[str], topic: str = "numbers") -> None:
    """Produce numbers with acks=all and consume them in a group. Raise AssertionError."""
    servers = {"bootstrap.servers": ",".join(addresses)}
    values = [b"%d" % number for number in range(COUNT)]
    delivered: list[bytes | None] = []

    def on_delivery(error: object, message: Message) -> None:
        assert error is None, error
        delivered.append(message.value())

    producer = Producer({**servers, "acks": "all", "message.timeout.ms": CLIENT_SECONDS * 1000})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
    assert producer.flush(CLIENT_SECONDS) == 0
    assert delivered == values

    consumer = Consumer({**servers, "group.id": f"readers-of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    consumed: list[bytes | None] = []
    error_text = "nothing"
    deadline = time.monotonic() + CLIENT_SECONDS
    while len(consumed) < COUNT:
        assert time.monotonic() < deadline, (
            f"{len(consumed)} of {COUNT} records in time; last error: {error_text}"
        )
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            error_text = str(message.error())  # a broker may not know the topic yet
        else:
            consumed.append(message.value())
    consumer.close()
    assert consumed == values


if __name__ == "__main__":
    exchange(sys.argv[1].split(","))
