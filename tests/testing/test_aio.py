"""The methods of `Broker.aio`, `Cluster.aio` and `Kafka.aio` in asyncio, in trio, and in anyio on both."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import trio

from kwire.broker.config import ConfigError
from kwire.host.system_time import monotonic
from kwire.testing import Acl, Broker, Cluster, Kafka, Proxy, TopicPartition
from kwire.testing.broker import Process
from kwire.testing.thread_call import MAX_THREADS
from kwire.wire.errors import ApiError
from tests.testing.async_libraries import Library

SOON_S = 3
"""A time that is shorter than the timeout of a method, 10 s."""


# Names and types.


@pytest.mark.parametrize("kind", [Kafka, Broker, Cluster, Proxy])
def test_aio_has_the_methods_and_signatures_of_the_blocking_class(kind: type[Kafka]) -> None:
    aio = type(kind("localhost:1").aio if kind in (Kafka, Proxy) else kind().aio)  # type: ignore[call-arg]
    methods = {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    awaitable = {
        name: method
        for name, method in inspect.getmembers(aio, inspect.isfunction)
        if not name.startswith("_")
    }
    assert sorted(methods) == sorted(awaitable)
    for name, method in awaitable.items():
        ours, theirs = inspect.signature(method).parameters, inspect.signature(methods[name]).parameters
        if name == "wait_until":  # its condition may be an async function
            ours, theirs = ({**each, "condition": None} for each in (ours, theirs))  # type: ignore[assignment]
        assert ours == theirs, name
        assert inspect.getdoc(method), name
        assert inspect.iscoroutinefunction(method) is (name != "outages"), name


def test_proxy_can_be_awaited(library: Library) -> None:
    async def main() -> None:
        async with Broker() as broker, Proxy(broker.bootstrap_servers) as proxy:
            await proxy.aio.produce("orders", "first")
            assert [one.value for one in await broker.aio.records("orders", count=1)] == [b"first"]
            (await proxy.aio.history()).check()
            with pytest.raises(RuntimeError, match=r"proxy\.aio\.stop"):
                proxy.stop()
            with pytest.raises(RuntimeError, match="async with Proxy"), proxy:
                pass

    library.run(main)


def test_type_checkers_see_parameters_and_results(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
from kwire.testing import Broker, Cluster, Kafka

async def has_rows() -> list[int]:
    return [1]

async def main(broker: Broker, cluster: Cluster, kafka: Kafka) -> None:
    reveal_type(broker.aio.records)
    reveal_type(await broker.aio.produce("orders", "a", b"b", key="k"))
    reveal_type(await kafka.aio.end_offsets("orders"))
    reveal_type(await cluster.aio.leader("orders"))
    reveal_type(await (await cluster.aio.leader("orders")).aio.restart())
    reveal_type(await broker.aio.wait_until(has_rows))
    reveal_type(await broker.aio.wait_until(lambda: broker.lag("g", "t") == 0))
    async with broker as same, cluster as also_same:
        reveal_type((same, also_same))
    await broker.aio.records(3)
    await broker.aio.records("orders", cuont=1)
    await kafka.aio.start()
"""
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", program.name],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    text = re.sub(r"tuple\[str, .*, fallback=([\w.]*Record)\]", r"\1", ran.stdout).replace(
        "kwire.testing.", ""
    )
    found = [line.partition(": ")[2] for line in text.splitlines()]
    assert found[:-1] == [
        'note: Revealed type is "def (topic: str, *, partition: int | None =, offset: int =, '
        "count: int | None =, uncommitted: bool =, timeout_s: float | None =) "
        '-> typing.Coroutine[Any, Any, list[results.Record]]"',
        'note: Revealed type is "list[results.Record]"',
        'note: Revealed type is "dict[int, int]"',
        'note: Revealed type is "broker.Broker"',
        'note: Revealed type is "None"',
        'note: Revealed type is "list[int]"',
        'note: Revealed type is "bool"',
        'note: Revealed type is "tuple[broker.Broker, cluster.Cluster]"',
        'error: Argument 1 has incompatible type "int"; expected "str"  [arg-type]',
        'error: Unexpected keyword argument "cuont"; did you mean "count"?  [call-arg]',
        'error: "AioKafka" has no attribute "start"  [attr-defined]',
    ]


# Calls.


def test_every_method_of_a_broker_can_be_awaited(library: Library, process: Process) -> None:
    async def program() -> None:
        users = {"alice": "alice-secret"}
        async with Broker(
            users=users, acls=[Acl.allow("alice", "ALL", topic="*")], process=process
        ) as broker:
            aio = broker.aio
            assert await aio.create_topic("orders", partitions=2) == "orders"
            other = await aio.new_topic("bills")
            assert await aio.topics() == [other, "orders"]
            [first] = await aio.produce("orders", "first", key="customer 7")
            assert await aio.records("orders", count=1) == [first]
            assert await aio.end_offsets("orders") == {0: 1, 1: 0}
            assert await aio.committed("billing") == {}
            assert await aio.lag("billing", "orders") == 1
            assert (await aio.group("billing")).state == "Dead"
            assert (await aio.new_name("billing")).startswith("billing-")
            await aio.set_acls([])
            login = await aio.client_config("alice")
            assert (await aio.create_token("alice")).is_token
            assert len(await aio.tokens()) == 1
            async with Kafka(login.bootstrap_servers, properties=login.java, timeout_s=0.1) as kafka:
                with suppress(ApiError):
                    await kafka.aio.records("orders")
            assert {denial.missing.principal for denial in await aio.denials()} == {"User:alice"}
            await aio.advance(3_600_000)
            await aio.hang()
            await aio.resume()
            await aio.fill_disk()
            await aio.free_disk()
            await aio.crash()
            assert not broker.is_running
            await aio.start()
            await aio.restart()
            await aio.close()
            assert await aio.records("orders", count=1) == [first]
        assert not broker.is_running

    library.run(program)


def test_every_method_of_a_cluster_can_be_awaited(library: Library) -> None:
    async def program() -> None:
        async with Cluster() as cluster:
            orders = await cluster.aio.new_topic("orders")
            leader = await cluster.aio.leader(orders)
            [follower, other] = {1, 2, 3} - {leader._node_id}  # type: ignore[attr-defined]
            await cluster.aio.move_leader(orders, follower)
            assert await cluster.aio.leader(orders) is cluster.brokers[follower]
            assert await cluster.aio.coordinator("billing") in cluster.brokers.values()
            await cluster.aio.disconnect(follower, other)
            await cluster.aio.isolate(follower)
            await cluster.aio.heal()
            await cluster.aio.advance(1000)
            await leader.aio.crash()
            assert len(await cluster.aio.produce(orders, "first")) == 1
            await leader.aio.start()
            async with cluster.aio.outages(1) as outages:
                pass
            assert "seed 1" in repr(outages)
        assert not cluster.brokers

    library.run(program)


def test_event_loop_runs_while_a_broker_starts_and_a_call_waits(library: Library) -> None:
    async def program() -> None:
        state, done = "starts", False
        turns: dict[str, int] = {}

        async def count_turns() -> None:
            while not done:
                turns[state] = turns.get(state, 0) + 1
                await anyio.sleep(0)

        async def use_broker() -> None:
            nonlocal done, state
            async with Broker() as broker:
                state = "waits"
                await broker.aio.produce("orders", "first")
                with pytest.raises(AssertionError, match="orders has 1 record after"):
                    await broker.aio.records("orders", count=2, timeout_s=0.2)
            done = True

        await library.gather(count_turns, use_broker)
        assert turns["starts"] > 2
        assert turns["waits"] > 20

    library.run(program)


def test_concurrent_calls_do_not_wait_for_each_other(library: Library, process: Process) -> None:
    """A call that waits for a topic must not delay the call that creates the topic."""

    async def program() -> None:
        async with Broker(process=process) as broker:
            found: list[int] = []

            async def wait_for_records() -> None:
                found.append(len(await broker.aio.records("orders", count=3)))

            async def produce() -> None:
                await broker.aio.produce("orders", "a record")

            began_s = monotonic()
            await library.gather(*[wait_for_records] * 20, *[produce] * 3)
            assert found == [3] * 20
            assert monotonic() - began_s < SOON_S

    library.run(program)


def test_more_calls_than_threads_are_all_made(library: Library) -> None:
    async def program() -> None:
        async with Broker() as broker:

            async def produce() -> None:
                await broker.aio.produce("orders", "a record")

            await library.gather(*[produce] * 2 * MAX_THREADS)
            assert len(await broker.aio.records("orders")) == 2 * MAX_THREADS

    library.run(program)


def test_error_of_a_call_is_raised_where_it_is_awaited(library: Library) -> None:
    async def program() -> None:
        broker = Broker({"num.partitions": 0})
        with pytest.raises(ConfigError, match=r"num\.partitions"):
            await broker.aio.start()
        async with Broker() as broker:
            with pytest.raises(RuntimeError, match="already running"):
                await broker.aio.start()
            assert broker.is_running
            with pytest.raises(TypeError, match="cuont"):
                await broker.aio.records("orders", cuont=1)  # type: ignore[call-arg]
            await broker.aio.create_topic("orders")
            with pytest.raises(ApiError, match="orders"):
                await broker.aio.create_topic("orders")

    library.run(program)


def test_aio_cannot_be_awaited_without_an_event_loop() -> None:
    with pytest.raises(RuntimeError, match="in asyncio and in trio only"):
        Broker().aio.start().send(None)


# wait_until.


def test_condition_is_a_function_or_an_async_function(library: Library) -> None:
    async def program() -> None:
        async with Broker() as broker:
            loop_thread, loop_threads, threads = threading.get_ident(), set(), set()

            async def caught_up() -> str:
                loop_threads.add(threading.get_ident())
                return "yes" * (await broker.aio.lag("billing", "orders") == 2)

            def has_topic() -> list[str]:
                threads.add(threading.get_ident())
                return broker.topics()

            async def produce() -> None:
                assert await broker.aio.wait_until(has_topic) == ["orders"]
                assert loop_thread not in threads
                await broker.aio.produce("orders", "first", "second")

            async def wait() -> None:
                await broker.aio.create_topic("orders")
                assert await broker.aio.wait_until(caught_up) == "yes"
                assert loop_threads == {loop_thread}

            await library.gather(produce, wait)
            assert await broker.aio.wait_until(lambda: caught_up()) == "yes"
            assert await broker.aio.wait_until(Condition().__call__) == 3
            assert await broker.aio.wait_until(Condition()) == 3

    library.run(program)


class Condition:
    """A condition that is an object."""

    calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        return self.calls * (self.calls == 3)


def test_unmet_condition_fails_with_its_last_result(library: Library) -> None:
    async def program() -> None:
        async def has_rows() -> list[int]:
            return []

        kafka = Kafka("127.0.0.1:1", timeout_s=0.05)
        with pytest.raises(AssertionError, match=r"waited 0\.05 s for has_rows, last result: \[\]"):
            await kafka.aio.wait_until(has_rows)
        with pytest.raises(AssertionError, match=r"waited 0\.1 s for the condition, last result: 0"):
            await kafka.aio.wait_until(lambda: 0, timeout_s=0.1)
        with pytest.raises(AssertionError, match=r"waited 0\.1 s for rows"):
            await kafka.aio.wait_until(has_rows, timeout_s=0.1, description="rows")

    library.run(program)


def test_blocking_wait_until_refuses_an_async_function() -> None:
    async def has_rows() -> bool:
        return True

    with pytest.raises(TypeError, match=r"is an async function: use `await broker\.aio\.wait_until"):
        Kafka("127.0.0.1:1").wait_until(has_rows)  # type: ignore[unused-coroutine]


# Cancellation.


def wait_for_end_of_calls() -> None:
    """Wait until no thread runs a call, for less time than the timeout of a method."""
    until_s = monotonic() + SOON_S
    while any(each.name == "kwire call" for each in threading.enumerate()):
        assert monotonic() < until_s, "a cancelled call still runs"


def test_cancelled_call_ends_soon(library: Library, process: Process) -> None:
    async def program() -> None:
        async with Broker(process=process) as broker:
            await broker.aio.produce("orders", "first")

            async def wait_for_rows() -> list[int]:
                return await broker.aio.wait_until(never)

            async def never() -> list[int]:
                return []

            for wait in (
                lambda: broker.aio.records("orders", count=2),
                lambda: broker.aio.records("no-topic", count=1),
                lambda: broker.aio.wait_until(lambda: False),
                wait_for_rows,
            ):
                began_s = monotonic()
                assert await library.cancel_after(0.1, wait)
                assert monotonic() - began_s < SOON_S
                wait_for_end_of_calls()
                assert len(await broker.aio.records("orders", count=1)) == 1

    library.run(program)


def test_call_that_waits_for_a_response_is_cancelled(library: Library, process: Process) -> None:
    async def program() -> None:
        async with Broker(process=process) as broker:
            await broker.aio.produce("orders", "first")
            await broker.aio.hang()
            began_s = monotonic()
            assert await library.cancel_after(0.1, lambda: broker.aio.records("orders"))
            await broker.aio.resume()
            assert len(await broker.aio.records("orders", count=1)) == 1
            assert monotonic() - began_s < SOON_S

    library.run(program)


def test_cancelled_start_leaves_no_running_broker(library: Library, process: Process) -> None:
    async def program() -> None:
        broker = Broker(process=process)
        # The task is cancelled at once, and notices that after the start.
        assert await library.cancel_after(0, broker.aio.start)
        assert not broker.is_running
        await broker.aio.start()
        await library.cancel_after(0, broker.aio.restart)
        assert broker.is_running
        await broker.aio.stop()

    library.run(program)


def test_broker_stops_when_the_task_of_its_block_is_cancelled(library: Library, process: Process) -> None:
    async def program() -> None:
        broker = Broker(process=process)

        async def use_broker() -> None:
            async with broker:
                await anyio.sleep(60)

        assert await library.cancel_after(0.5, use_broker)
        assert not broker.is_running

    library.run(program)


def test_closed_coroutine_leaves_the_broker_usable() -> None:
    with Broker() as broker:

        async def program() -> None:
            call = broker.aio.records("orders", count=1)
            call.send(None)
            call.close()

        asyncio.run(program())
        wait_for_end_of_calls()
        broker.produce("orders", "first")


# Connections.


def test_forked_process_opens_its_own_connections() -> None:
    with Broker() as broker:
        broker.produce("orders", "first")
        program = (
            "import asyncio, os, sys; from kwire.testing import Kafka\n"
            f"kafka = Kafka({broker.bootstrap_servers!r}); kafka.topics()\n"
            "child = os.fork()\n"
            "for _ in range(50): assert asyncio.run(kafka.aio.end_offsets('orders')) == {0: 1}\n"
            "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


def test_committed_offsets_have_the_keys_of_the_blocking_method() -> None:
    async def program() -> None:
        async with Broker() as broker:
            await broker.aio.create_topic("orders")
            with pytest.raises(LookupError, match="billing"):
                (await broker.aio.committed("billing"))[TopicPartition("orders", 0)]

    trio.run(program)
