"""A shop that stores each order in SQLite, and a relay that sends the stored orders to Kafka."""

import sqlite3
import uuid

from kafka import KafkaProducer

TABLES = """
CREATE TABLE IF NOT EXISTS orders (item TEXT);
CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, id TEXT, event TEXT);
"""


def place_order(shop: sqlite3.Connection, item: str) -> None:
    with shop:  # one transaction has the order and its event
        shop.execute("INSERT INTO orders VALUES (?)", (item,))
        shop.execute("INSERT INTO outbox (id, event) VALUES (?, ?)", (str(uuid.uuid4()), f"{item} ordered"))


def relay(shop: sqlite3.Connection, servers: str) -> None:
    """Send the events of the outbox in order, and delete each event once Kafka has it."""
    producer = KafkaProducer(bootstrap_servers=servers, delivery_timeout_ms=1_500, request_timeout_ms=1_400)
    try:
        for number, key, event in shop.execute("SELECT * FROM outbox ORDER BY number").fetchall():
            producer.send("order-events", key=key.encode(), value=event.encode()).get(2)
            with shop:
                shop.execute("DELETE FROM outbox WHERE number = ?", (number,))
    finally:
        producer.close(timeout=0)
