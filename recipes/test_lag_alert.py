import pytest
from kafka import KafkaConsumer
from lag_alert import check_lag

from kwire.testing import Broker


@pytest.fixture
def orders(kwire_broker: Broker) -> str:
    """Create a topic with 10 and 20 orders in its partitions."""
    topic = kwire_broker.create_topic("orders", partitions=2)
    for partition, count in ((0, 10), (1, 20)):
        kwire_broker.produce(topic, *(f"order {number}" for number in range(count)), partition=partition)
    return topic


def alerts(broker: Broker, topic: str, limit: int) -> list[str]:
    found: list[str] = []
    check_lag(broker.bootstrap_servers, "billing", topic, limit, found.append)
    return found


def read(broker: Broker, topic: str, count: int) -> None:
    """Read and commit records as the group billing does."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    for _ in range(count):
        next(consumer)
    consumer.commit()
    consumer.close()


@pytest.mark.parametrize(("count", "lag"), [(0, 30), (4, 26), (30, 0)])
def test_alert_fires_at_the_limit(kwire_broker: Broker, orders: str, count: int, lag: int) -> None:
    if count:
        read(kwire_broker, orders, count)
    assert kwire_broker.lag("billing", orders) == lag
    assert alerts(kwire_broker, orders, limit=lag + 1) == []
    assert alerts(kwire_broker, orders, limit=lag) == [f"billing is {lag} records behind on orders"]


@pytest.mark.kwire_broker({"log.retention.check.interval.ms": 1000})
def test_expired_records_do_not_count(kwire_broker: Broker) -> None:
    topic = kwire_broker.create_topic("orders", config={"retention.ms": 60_000, "segment.ms": 60_000})
    kwire_broker.produce(topic, "order 1", "order 2")
    kwire_broker.advance(10 * 60 * 1000)
    kwire_broker.produce(topic, "order 3")
    assert kwire_broker.lag("billing", topic) == 1
    assert alerts(kwire_broker, topic, limit=1) == ["billing is 1 records behind on orders"]
