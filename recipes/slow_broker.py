"""Accept an order in an HTTP handler: 202, or 503 if Kafka has not stored the order within three seconds."""

from kafka import KafkaProducer
from kafka.errors import KafkaError


class Shop:
    def __init__(self, servers: str) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=servers,
            max_block_ms=1_500,  # for the metadata of the topic
            request_timeout_ms=1_400,
            delivery_timeout_ms=1_500,
            enable_idempotence=False,  # else kafka-python 3.0.12 sends nothing more after a timeout
        )

    def post_order(self, order_id: str, order: bytes) -> int:
        """Return the HTTP status. With 503, the order may be stored, so a retry must have the same id."""
        try:
            self.producer.send("orders", key=order_id.encode(), value=order).get(1.5)
        except KafkaError:
            return 503
        return 202
