import subprocess
import sys
from pathlib import Path

import quix_totals
from quix_totals import totals

from kwire.testing import Broker


def test_total_is_restored_on_another_machine(kwire_broker: Broker, tmp_path: Path) -> None:
    kwire_broker.create_topic("orders")
    kwire_broker.produce("orders", '{"amount": 5}', '{"amount": 7}', key="customer 7")
    totals(kwire_broker.bootstrap_servers, str(tmp_path / "machine 1")).run(count=2)
    kwire_broker.produce("orders", '{"amount": 1}', key="customer 7")
    totals(kwire_broker.bootstrap_servers, str(tmp_path / "machine 2")).run(count=1)
    assert [total.value for total in kwire_broker.records("totals")] == [b"5", b"12", b"13"]


def test_orders_are_counted_once_after_a_kill(kwire_broker: Broker, tmp_path: Path) -> None:
    kwire_broker.create_topic("orders")
    kwire_broker.produce("orders", '{"amount": 5}', '{"amount": 7}', key="customer 7")
    ends = [kwire_broker.faults.ignore(api) for api in ("EndTxn", "OffsetCommit")]
    process = subprocess.Popen(
        [sys.executable, quix_totals.__file__, kwire_broker.bootstrap_servers, str(tmp_path / "machine 1")]
    )
    kwire_broker.wait_until(lambda: any(end.hits for end in ends), timeout_s=60)
    process.kill()
    process.wait()
    for end in ends:
        end.cancel()
    kwire_broker.advance(60_000)  # the session of the consumer, and its transaction, time out
    totals(kwire_broker.bootstrap_servers, str(tmp_path / "machine 2")).run(count=2)
    assert [total.value for total in kwire_broker.records("totals")] == [b"5", b"12"]
