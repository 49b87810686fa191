"""An embedded broker in a test that replaces the clock of its process."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import freezegun
import pytest
import time_machine
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from kwire.testing import Broker, Cluster, History, SimulatedCluster

Double = Callable[[], AbstractContextManager[Any]]

SESSION_MS = 45_000
PAST, FUTURE = "2001-09-09", "2055-05-05"
FUNCTIONS = (
    "gmtime", "localtime", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep",
    "strftime", "time", "time_ns",
)  # fmt: skip


@contextmanager
def mocked_time(**behavior: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for name in FUNCTIONS:
            stack.enter_context(mock.patch(f"time.{name}", **behavior))
        yield


CLOCK_DOUBLES: dict[str, Double] = {
    "freezegun in the past": lambda: freezegun.freeze_time(PAST),
    "freezegun in the future": lambda: freezegun.freeze_time(FUTURE),
    "freezegun, ticking": lambda: freezegun.freeze_time(PAST, tick=True),
    "freezegun, an hour per call": lambda: freezegun.freeze_time(PAST, auto_tick_seconds=3_600),
    "time-machine, frozen": lambda: time_machine.travel(PAST, tick=False),
    "time-machine, ticking": lambda: time_machine.travel(FUTURE, tick=True),
    "mocks without a value": mocked_time,
    "mocks that fail": lambda: mocked_time(side_effect=StopIteration),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}) as broker:
        yield broker


@pytest.fixture(params=list(CLOCK_DOUBLES.values()), ids=list(CLOCK_DOUBLES))
def clock_double(request: pytest.FixtureRequest) -> Double:
    double: Double = request.param
    return double


def file_time_s(directory: Path) -> float:
    """Return the wall clock, as the file system knows it."""
    path = directory / "now"
    path.write_bytes(b"")
    return path.stat().st_mtime


def commit_transaction(broker: Broker, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "billing"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(10)


def consume(consumer: Any) -> Any:
    message = consumer.poll(10)
    assert message is not None, "no record arrived"
    assert message.error() is None
    return message


def test_transactions_groups_and_advance_work_while_the_clock_is_replaced(
    broker: Broker, clock_double: Double
) -> None:
    topic, group = broker.new_topic("orders"), broker.new_name("billing")
    [earlier] = broker.produce(topic, "order 0")
    with clock_double():
        commit_transaction(broker, topic, "order 1")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS - 1,
            }
        )
        consumer.subscribe([topic])
        assert [consume(consumer).value() for _ in range(2)] == [b"order 0", b"order 1"]
        [later] = broker.produce(topic, "order 2")
        assert 0 <= later.timestamp_ms - earlier.timestamp_ms < 60_000
        assert consume(consumer).value() == b"order 2"
        assert len(broker.group(group).members) == 1, "the session timed out"
        broker.advance(SESSION_MS + 1)
        assert not broker.group(group).members, "the session did not time out"
        consumer.close()


def test_timeouts_of_methods_expire_while_the_clock_is_replaced(broker: Broker, clock_double: Double) -> None:
    topic = broker.new_topic("orders")
    began_s = time.monotonic()
    with clock_double():
        with pytest.raises(AssertionError, match=re.escape("has 0 records after 0.1 s, not 1")):
            broker.records(topic, count=1, timeout_s=0.1)
        with pytest.raises(AssertionError, match=re.escape("waited 0.1 s for the condition")):
            broker.wait_until(lambda: False, timeout_s=0.1)
    assert 0.2 <= time.monotonic() - began_s < 5


def test_broker_starts_restarts_and_stops_while_the_clock_is_replaced(
    clock_double: Double, tmp_path: Path
) -> None:
    with clock_double():
        broker = Broker()
        broker.start()
        broker.produce("orders", "order 1")
        broker.restart()
        broker.produce("orders", "order 2")
        broker.crash()
        broker.start()
    broker.produce("orders", "order 3")
    times_s = [record.timestamp_ms / 1000 for record in broker.records("orders", count=3)]
    assert file_time_s(tmp_path) - 60 < times_s[0] <= times_s[1] <= times_s[2]
    with clock_double():
        broker.stop()


@pytest.mark.parametrize(
    "freeze",
    [
        "import freezegun; freezegun.freeze_time('2001-09-09').start()",
        "import time_machine; time_machine.travel('2001-09-09', tick=False).start()",
        "from unittest import mock; mock.patch('time.monotonic').start(); mock.patch('time.time').start()",
    ],
)
def test_broker_serves_if_the_clock_is_replaced_before_the_import(freeze: str, tmp_path: Path) -> None:
    program = f"""
{freeze}
from kwire.testing import Broker
with Broker() as broker:
    [record] = broker.produce("orders", "order 1")
    assert len(broker.records("orders", count=1)) == 1
    broker.advance(1000)
    print(record.timestamp_ms)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert abs(int(done.stdout) / 1000 - file_time_s(tmp_path)) < 60


def test_requests_are_recorded_with_the_real_time(
    broker: Broker, clock_double: Double, tmp_path: Path
) -> None:
    topic = broker.new_topic("orders")
    with clock_double():
        commit_transaction(broker, topic, "order 1")
        text = broker.requests.format()
    [produced] = broker.requests.find("Produce", topic=topic)
    assert abs(produced.received_at_s - file_time_s(tmp_path)) < 60
    assert produced.duration_ms is not None
    assert 0 <= produced.duration_ms < 10_000
    assert "Produce" in text


def test_aiokafka_produces_under_freezegun_with_real_asyncio(broker: Broker) -> None:
    async def send() -> int:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            sent = await asyncio.wait_for(
                producer.send_and_wait(await broker.aio.new_topic("orders"), b"order 1"), 15
            )
            offset: int = sent.offset
            return offset

    with freezegun.freeze_time(PAST, real_asyncio=True):
        assert asyncio.run(send()) == 0


@pytest.mark.parametrize("double", ["freezegun, an hour per call", "time-machine, frozen", "mocks that fail"])
def test_cluster_fails_over_while_the_clock_is_replaced(double: str) -> None:
    cluster = Cluster()
    with CLOCK_DOUBLES[double](), cluster:
        orders = cluster.new_topic("orders")
        leader = cluster.leader(orders)
        cluster.produce(orders, "order 1")
        leader.crash()
        cluster.wait_until(lambda: cluster.leader(orders) is not leader)
        cluster.produce(orders, "order 2")
        cluster.advance(60_000)
        assert len(cluster.records(orders, count=2)) == 2


def test_simulated_cluster_runs_while_the_clock_is_replaced(clock_double: Double) -> None:
    async def send(servers: str) -> int:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            sent = await producer.send_and_wait("orders", b"order 1")
            await asyncio.sleep(60)
            offset: int = sent.offset
            return offset

    with clock_double(), SimulatedCluster(1, faults=False) as cluster:
        began_s = cluster.now_s
        cluster.create_topic("orders")
        assert cluster.run(send(cluster.bootstrap_servers)) == 0
        assert cluster.now_s - began_s >= 60


def test_history_measures_durations_while_the_clock_is_replaced(clock_double: Double) -> None:
    with clock_double():
        history = History()
        history.on_send("shop", ("orders", 0), b"order 1")
        history.set_final_records([])
        history.on_ack(b"order 1", 0)
        [lost] = history.anomalies()
        assert "sent at 0.0" in str(lost)
