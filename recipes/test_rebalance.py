from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from rebalance import ship_orders

from kwire.testing import Broker


@contextmanager
def shipping(broker: Broker, ship: Callable[[bytes], None]) -> Iterator[None]:
    """Run the program in a thread."""
    stop = Event()
    with ThreadPoolExecutor() as executor:
        program = executor.submit(ship_orders, broker.bootstrap_servers, ship, stop)
        try:
            yield
        finally:
            stop.set()
            program.result(20)


def test_no_order_is_shipped_twice_when_a_consumer_joins(kwire_broker: Broker) -> None:
    kwire_broker.create_topic("orders", partitions=2)

    def place_orders(*numbers: int) -> None:
        for number in numbers:
            kwire_broker.produce("orders", f"order {number}", partition=number % 2)

    shipped: list[str] = []
    slow_order, released = Event(), Event()

    def ship(order: bytes) -> None:
        if len(shipped) == 5:
            slow_order.set()
            released.wait(20)
        shipped.append(order.decode())

    def is_shared() -> bool:
        group = kwire_broker.group("shipping")
        return group.state == "Stable" and len(group.members) == 2

    place_orders(*range(10))
    with shipping(kwire_broker, ship):
        assert slow_order.wait(20)
        with shipping(kwire_broker, ship):  # the second consumer joins during the sixth order
            kwire_broker.wait_until(lambda: kwire_broker.group("shipping").state == "PreparingRebalance")
            released.set()
            kwire_broker.wait_until(is_shared)
            place_orders(10, 11)
            kwire_broker.wait_until(lambda: {"order 10", "order 11"} <= set(shipped))
    assert [order for order, times in Counter(shipped).items() if times > 1] == []
    assert set(shipped) == {f"order {number}" for number in range(12)}
    assert kwire_broker.lag("shipping", "orders") == 0
