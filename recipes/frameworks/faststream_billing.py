"""Charge each order, and write a bill. The bills of a customer have the order of the customer's orders."""

import os
from collections.abc import Callable

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from pydantic import BaseModel


class Order(BaseModel):
    customer: str
    number: int


def billing(servers: str, charge: Callable[[Order], None]) -> KafkaBroker:
    broker = KafkaBroker(servers)
    bills = broker.publisher("bills")

    @broker.subscriber(
        "orders",
        group_id="billing",
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def bill(order: Order) -> None:
        charge(order)
        await bills.publish(
            f"bill of order {order.number}",
            key=order.customer.encode(),
        )

    return broker


def charge(order: Order) -> None:
    """Charge the customer's card. This is the call of your payment service."""


if "KAFKA_SERVERS" in os.environ:
    app = FastStream(billing(os.environ["KAFKA_SERVERS"], charge))
