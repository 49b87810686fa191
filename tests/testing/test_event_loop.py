"""Blocking methods where an event loop runs, and `aio` beside other schedulers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio

from kwire.host.system_time import monotonic
from kwire.testing import Broker, Cluster, Kafka, SimulatedCluster
from kwire.testing.broker import Process
from tests.testing.async_libraries import Library

# Blocking calls.


def test_blocking_call_on_an_event_loop_names_the_awaitable_form(library: Library, process: Process) -> None:
    with Broker(process=process) as broker, Cluster(1) as cluster:

        async def program() -> None:
            kafka = Kafka(broker.bootstrap_servers)
            for variable, target in (("broker", broker), ("cluster", cluster), ("kafka", kafka)):
                for name in ("topics", "records", "produce", "wait_until", "lag", "new_topic"):
                    with pytest.raises(RuntimeError) as raised:
                        getattr(target, name)("orders")
                    assert str(raised.value) == (
                        f"{variable}.{name}() would block the running event loop: "
                        f"use `await {variable}.aio.{name}(...)`"
                    )
            calls: list[Callable[..., Any]] = [
                broker.start, broker.stop, broker.restart, broker.crash, broker.hang, broker.advance,
                broker.tokens, broker.set_acls, broker.create_token, cluster.start, cluster.stop,
                cluster.leader, cluster.coordinator, cluster.move_leader, cluster.advance,
                cluster.brokers[1].start,
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(RuntimeError, match="would block the running event loop"):
                    call()
            for form, block in (
                ("Broker(...) as broker", Broker(process=process)),
                ("Cluster(...) as cluster", Cluster()),
                ("cluster.outages(...)", cluster.outages(1)),
            ):
                with pytest.raises(RuntimeError) as raised:
                    block.__enter__()
                assert str(raised.value) == (
                    f"this `with` statement would block the running event loop: use `async with {form}`"
                )

        library.run(program)
        assert broker.is_running
        assert cluster.brokers


def test_blocking_function_wait_until_names_the_method() -> None:
    from kwire.testing import wait_until

    async def program() -> None:
        with pytest.raises(RuntimeError, match=r"`await broker\.aio\.wait_until\(\.\.\.\)` of a Broker"):
            wait_until(lambda: True)

    trio.run(program)


def test_attributes_and_methods_that_do_not_wait_work_on_an_event_loop(
    library: Library, process: Process
) -> None:
    async def program() -> None:
        async with Broker(users={"alice": "secret"}, process=process) as broker:
            assert ":" in broker.bootstrap_servers
            assert broker.is_running
            assert broker.log_dir
            assert broker.new_name("orders").startswith("orders-")
            assert broker.client_config("alice").username == "alice"
            fault = broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER")
            assert fault.hits == 0
            broker.faults.clear()
            assert len(broker.requests.find("Produce")) == 0
            assert broker.denials() == []
            broker.fill_disk()
            broker.free_disk()
            broker.resume()
            broker.close()
            with Kafka(broker.bootstrap_servers) as kafka:
                assert kafka.bootstrap_servers == broker.bootstrap_servers

    library.run(program)


def test_blocking_calls_in_other_threads_work(library: Library) -> None:
    with Broker() as broker:

        async def program() -> None:
            await anyio.to_thread.run_sync(lambda: broker.produce("orders", "first"))
            assert len(await anyio.to_thread.run_sync(lambda: broker.records("orders", count=1))) == 1

        library.run(program)


def test_container_starts_on_an_event_loop_as_a_container_does() -> None:
    from kwire.testing.containers import KafkaContainer

    async def program() -> None:
        with KafkaContainer() as container:
            await container.broker.aio.produce("orders", "first")
            with pytest.raises(RuntimeError, match="would block"):
                container.broker.topics()

    asyncio.run(program())


def test_check_for_an_event_loop_takes_microseconds() -> None:
    from kwire.testing.event_loop import blocks_event_loop

    times = []
    for _ in range(1000):
        began_s = monotonic()
        blocks_event_loop()
        times.append(monotonic() - began_s)
    assert sorted(times)[500] < 20e-6


# Other schedulers.


def test_program_in_a_simulated_cluster_may_use_a_broker() -> None:
    """Functions for threads run in the thread of the virtual loop."""
    with Broker() as broker, SimulatedCluster(1, size=1, faults=False) as cluster:

        async def program() -> int:
            await broker.aio.produce("orders", "first")
            await asyncio.to_thread(broker.produce, "orders", "second")
            broker.produce("orders", "third")
            async with asyncio.timeout(5):
                assert await broker.aio.wait_until(lambda: broker.end_offsets("orders")[0] == 3)
            return len(await broker.aio.records("orders", count=3))

        assert cluster.run(program()) == 3


GREEN = """
import asyncio, sys
import gevent.monkey
gevent.monkey.patch_all()
import gevent
from kwire.testing import Broker

async def main(broker):
    await broker.aio.create_topic("orders")
    green = gevent.spawn(broker.produce, "orders", "from another green thread")
    assert len(await broker.aio.records("orders", count=1)) == 1
    assert green.get()
    try:
        await asyncio.wait_for(broker.aio.records("orders", count=2), 0.2)
    except TimeoutError:
        pass
    try:
        broker.topics()
    except RuntimeError as error:
        print(error)
    await broker.aio.stop()

broker = Broker(process="child")
broker.start()
asyncio.run(main(broker))
"""


def test_aio_works_under_gevent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GREEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.startswith("broker.topics() would block the running event loop"), ran.stderr
    assert ran.returncode == 0, ran.stderr


def test_loop_in_another_greenlet_does_not_count() -> None:
    """Playwright's synchronous API runs an asyncio loop in a greenlet of the test's thread."""
    program = """
import asyncio, greenlet
from kwire.testing import Broker

async def main():
    test.switch()

test = greenlet.getcurrent()
loop = greenlet.greenlet(lambda: asyncio.run(main()))
loop.switch()
assert asyncio.get_running_loop()
with Broker() as broker:
    assert broker.topics() == []
loop.switch()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
