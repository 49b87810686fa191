import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from schema_change import read_orders, send_order

from kwire.testing import Broker

EXPECTED = {
    1: [{"id": 1, "price": 500}, {"id": 2, "price": 700}],
    2: [{"id": 1, "price": 500, "currency": "EUR"}, {"id": 2, "price": 700, "currency": "USD"}],
}


@pytest.mark.parametrize("reader", [1, 2])
def test_each_version_reads_the_orders_of_both_versions(kwire_broker: Broker, reader: int) -> None:
    registry = SchemaRegistryClient.new_client({"url": "mock://"})  # a registry in this process
    servers = kwire_broker.bootstrap_servers
    send_order(servers, registry, 1, {"id": 1, "price": 500})
    send_order(servers, registry, 2, {"id": 2, "price": 700, "currency": "USD"})
    assert read_orders(servers, registry, reader, count=2) == EXPECTED[reader]
