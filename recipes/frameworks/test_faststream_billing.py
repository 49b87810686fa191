import asyncio
import json
from unittest.mock import Mock

import pytest
from faststream_billing import billing

from kwire.testing import Broker


@pytest.mark.kwire_broker({"num.partitions": 4})
def test_failed_order_is_billed_before_later_orders(kwire_broker: Broker) -> None:
    orders = [json.dumps({"customer": "customer 7", "number": number}) for number in range(10)]
    kwire_broker.produce("orders", *orders)
    charge = Mock(side_effect=[None, ConnectionError("the payment service is down"), *[None] * 9])

    async def run() -> None:
        async with billing(kwire_broker.bootstrap_servers, charge) as broker:
            await broker.start()
            await kwire_broker.aio.wait_until(
                lambda: kwire_broker.lag("billing", "orders") == 0, timeout_s=30
            )

    asyncio.run(run())
    bills = [bill.value for bill in kwire_broker.records("bills")]
    assert bills == [b"bill of order %d" % number for number in range(10)]
