import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import exactly_once
import pytest

from kwire.testing import Broker


@contextmanager
def billing(broker: Broker) -> Iterator[None]:
    """Run the program in a process, and kill it at the end."""
    process = subprocess.Popen([sys.executable, exactly_once.__file__, broker.bootstrap_servers])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("is_committed", [False, True])
def test_each_order_is_billed_once_after_a_kill(kwire_broker: Broker, is_committed: bool) -> None:
    kwire_broker.create_topic("bills")
    kwire_broker.produce("orders", "order 1", "order 2", "order 3")
    if is_committed:
        kwire_broker.faults.drop_response("EndTxn")  # the broker commits, and the program retries
    ignored = kwire_broker.faults.ignore("EndTxn")
    with billing(kwire_broker):
        kwire_broker.wait_until(lambda: ignored.hits, timeout_s=30)
    kwire_broker.advance(45_000)  # the session of the killed consumer times out
    with billing(kwire_broker):
        kwire_broker.wait_until(lambda: kwire_broker.lag("billing", "orders") == 0, timeout_s=30)
    bills = [bill.value for bill in kwire_broker.records("bills")]
    assert bills == [b"bill of order 1", b"bill of order 2", b"bill of order 3"]
    kwire_broker.history().check()
