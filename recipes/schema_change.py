"""Orders in Avro. Version 2 of the schema has a currency; programs of both versions run at the same time."""

from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

SCHEMAS = {
    1: """{"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "long"}]}""",
    2: """{"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "long"},
        {"name": "currency", "type": "string", "default": "EUR"}]}""",
}
VALUE = SerializationContext("orders", MessageField.VALUE)


def send_order(servers: str, registry: SchemaRegistryClient, version: int, order: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    serialize = AvroSerializer(registry, SCHEMAS[version])
    producer.produce("orders", serialize(order, VALUE))
    producer.flush()


def read_orders(servers: str, registry: SchemaRegistryClient, version: int, count: int) -> list[Any]:
    deserialize = AvroDeserializer(registry, SCHEMAS[version])
    group = {"group.id": f"billing-{version}", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers, **group})
    consumer.subscribe(["orders"])
    try:
        return [deserialize(order.value(), VALUE) for order in consumer.consume(count, timeout=10)]
    finally:
        consumer.close()
