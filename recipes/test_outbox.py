import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from kafka.errors import KafkaError
from outbox import TABLES, place_order, relay

from kwire.testing import Broker


@pytest.mark.parametrize("is_written", [False, True])
def test_each_order_has_one_event(kwire_broker: Broker, tmp_path: Path, is_written: bool) -> None:
    kwire_broker.create_topic("order-events")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript(TABLES)
        for item in ("apples", "bread", "coffee"):
            place_order(shop, item)

        if is_written:
            kwire_broker.faults.drop_response("Produce")  # the broker has the event, and the relay retries
        ignored = kwire_broker.faults.ignore("Produce", times=None)
        with pytest.raises(KafkaError):
            relay(shop, kwire_broker.bootstrap_servers)
        ignored.cancel()
        relay(shop, kwire_broker.bootstrap_servers)

    records = kwire_broker.records("order-events")
    events = {event.key: event.value for event in records}  # a reader skips keys that it has seen
    assert list(events.values()) == [b"apples ordered", b"bread ordered", b"coffee ordered"]
    assert len(records) == 3 + is_written
