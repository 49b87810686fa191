"""Bill each order exactly once: one transaction has the bill and the offset of the order."""

import sys

from confluent_kafka import Consumer, Producer


def bill(servers: str) -> None:
    client = {"bootstrap.servers": servers, "client.id": "billing"}
    consumer = Consumer(
        {**client, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer({**client, "transactional.id": "billing"})
    producer.init_transactions()
    consumer.subscribe(["orders"])
    while True:
        order = consumer.poll(1)
        if order is None or order.error():
            continue
        producer.begin_transaction()
        producer.produce("bills", b"bill of " + (order.value() or b""), order.key())
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()


if __name__ == "__main__":
    bill(sys.argv[1])
