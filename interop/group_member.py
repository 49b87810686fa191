"""A group member in a separate process, which a test can kill.

``python group_member.py BOOTSTRAP GROUP TOPIC`` prints a JSON line for each assignment and for each record.
When its standard input is closed, the member leaves the group and the process ends.
"""

from __future__ import annotations

import json
import sys
import threading

from confluent_kafka import Consumer, TopicPartition


def print_event(**event: object) -> None:
    print(json.dumps(event), flush=True)


def main(bootstrap: str, group: str, topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        print_event(assigned=sorted(partition.partition for partition in partitions))

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        print_event(assigned=[])

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            print_event(
                partition=message.partition(),
                offset=message.offset(),
                value=(message.value() or b"").decode(),
            )
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
