"""A broker in the child process while libraries replace files, sockets, threads or the clock of the test."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

DOUBLES: Final = {
    "freezegun": "import freezegun; freezegun.freeze_time('2001-09-09').start()",
    "time-machine": "import time_machine; time_machine.travel('2001-09-09', tick=False).start()",
    "pyfakefs": (
        "from pyfakefs.fake_filesystem_unittest import Patcher; patcher = Patcher(); patcher.setUp(); "
        "atexit.register(patcher.tearDown)"
    ),
    "pytest-socket": "import pytest_socket; pytest_socket.disable_socket()",
    "gevent": "import gevent.monkey; gevent.monkey.patch_all()",
}
PROGRAM: Final = """
import atexit, sys
{before_import}
from confluent_kafka import Producer
from kwire.testing import Broker

def deliver(broker, topic, value):
    errors = []
    settings = {{"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 20, "log_level": 0}}
    producer = Producer(settings)
    producer.produce(topic, value, on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(20) == 0 and not errors, errors

with Broker({{"offsets.topic.num.partitions": 1}}, process="child") as broker:
    {while_running}
    topic = broker.new_topic()
    broker.produce(topic, "first", "second", key="k")
    fault = broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic)
    deliver(broker, topic, b"third")
    assert [one.value for one in broker.records(topic, count=3)] == [b"first", b"second", b"third"]
    assert fault.hits == 1
    assert len(broker.requests.find("Produce", topic=topic)) == 2
    broker.advance(60_000)
    assert broker.wait_until(lambda: broker.lag("billing", topic)) == 3
    broker.restart()
    broker.hang()
    broker.resume()
    broker.crash()
    broker.start()
    assert len(broker.records(topic)) == 3
print("done")
"""


def run(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("double", DOUBLES)
@pytest.mark.parametrize("time", ["before_import", "while_running"])
def test_broker_serves_while_a_library_replaces_parts_of_the_process(double: str, time: str) -> None:
    parts = {"before_import": "", "while_running": "", time: DOUBLES[double]}
    assert run(PROGRAM.format(**parts)) == "done\n"


GREENLETS: Final = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent
from kwire.testing import Broker, Kafka

with Broker(process="child") as broker, Kafka(broker.bootstrap_servers) as program:
    gevent.spawn_later(0.1, program.produce, "orders", "first")
    assert len(broker.records("orders", count=1)) == 1
    gevent.spawn_later(0.1, program.produce, "orders", "second")
    broker.wait_until(lambda: len(broker.records("orders")) == 2)
print("done")
"""


def test_other_greenlets_run_while_a_method_of_the_broker_waits() -> None:
    assert run(GREENLETS) == "done\n"


RESTORED_MODULES: Final = """
import sys
from unittest.mock import patch
import kwire.testing

def use(broker):
    broker.produce("orders", "first")
    fault = broker.faults.drop_response("Produce")
    assert fault.hits == len(broker.requests) == 0
    fault.cancel()

with patch.dict("sys.modules"):
    broker = kwire.testing.Broker(process="child")
    broker.start()
    use(broker)
assert "kwire.testing.child_process" not in sys.modules
use(broker)
with kwire.testing.Broker(process="child") as other:
    use(other)
broker.stop()
print("done")
"""


def test_broker_serves_after_its_modules_were_removed_and_imported_again() -> None:
    """The library pyfakefs removes all modules that were imported while files were faked."""
    assert run(RESTORED_MODULES) == "done\n"
