from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from slow_broker import Shop

from kwire.testing import ApiName, Broker


@pytest.fixture
def shop(kwire_broker: Broker) -> Iterator[Shop]:
    kwire_broker.create_topic("orders")
    shop = Shop(kwire_broker.bootstrap_servers)
    yield shop
    shop.producer.close(timeout=0)


@pytest.mark.parametrize("api", ["Metadata", "Produce"])
def test_client_gets_a_response_in_time_and_can_try_again(
    kwire_broker: Broker, shop: Shop, api: ApiName
) -> None:
    slow = kwire_broker.faults.delay(api, 10, times=None)
    with ThreadPoolExecutor() as executor:
        response = executor.submit(shop.post_order, "order 1", b"apples")
        try:
            assert response.result(timeout=4) == 503
        finally:
            slow.cancel()
    kwire_broker.advance(10_000)  # ends the delay
    kwire_broker.wait_until(lambda: shop.post_order("order 1", b"apples") == 202, timeout_s=4)
    stored = {order.key: order.value for order in kwire_broker.records("orders")}
    assert stored == {b"order 1": b"apples"}


def test_order_is_accepted_if_the_broker_is_a_little_slow(kwire_broker: Broker, shop: Shop) -> None:
    kwire_broker.faults.delay("Produce", 0.5)
    assert shop.post_order("order 1", b"apples") == 202
    assert len(kwire_broker.records("orders")) == 1
