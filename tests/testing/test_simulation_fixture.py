"""The fixture `kwire_simulation` beside other fixtures, and with clients that it cannot serve."""

from __future__ import annotations

import time

import pytest

from tests.testing.test_plugin import run

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable plugin entry points: an installed kwire would load this plugin a second time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_topic_and_group_are_names_of_the_simulated_cluster(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        seen = []

        async def bill(servers, topic, group):
            async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
                await producer.send_and_wait(topic, b"first")
            async with AIOKafkaConsumer(
                topic, group_id=group, bootstrap_servers=servers, auto_offset_reset="earliest"
            ) as consumer:
                return (await consumer.getone()).value

        @pytest.mark.parametrize("round", [1, 2])
        @pytest.mark.kwire_simulation({"num.partitions": 3}, seeds=[7], faults=False)
        def test_bill(kwire_topic, kwire_group, kwire_simulation, round):
            servers = kwire_simulation.bootstrap_servers
            assert kwire_simulation.run(bill(servers, kwire_topic, kwire_group)) == b"first"
            assert [record.value for record in kwire_simulation.records(kwire_topic)] == [b"first"]
            seen.append((kwire_topic, kwire_group, kwire_simulation.now_s))

        @pytest.mark.kwire_simulation(seeds=1, faults=False)
        def test_beside_another_broker(kwire, kwire_topic, kwire_simulation):
            assert kwire_topic not in kwire.topics()
            assert kwire_simulation.leader(kwire_topic).node_id in (1, 2, 3)

        def test_names():
            assert [one[:2] for one in seen] == [
                (f"test_bill-seed-7-{round}--1", f"test_bill-seed-7-{round}--2") for round in (1, 2)
            ]
        """,
    )
    result.assert_outcomes(passed=4)


def test_report_shows_committed_records_and_offsets(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        async def bill(servers, topic, group):
            async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
                for value in (b"first", b"second"):
                    await producer.send_and_wait(topic, value, key=b"bill")
            async with AIOKafkaConsumer(
                topic, group_id=group, bootstrap_servers=servers, auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                await consumer.getone()
                await consumer.commit()

        @pytest.mark.kwire_simulation(seeds=[7], faults=False)
        def test_bill(kwire_topic, kwire_group, kwire_simulation):
            kwire_simulation.create_topic("other", partitions=2)
            kwire_simulation.run(bill(kwire_simulation.bootstrap_servers, kwire_topic, kwire_group))
            assert kwire_simulation.seed == 8
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*--- the program has ended",
            "--- topics and groups at *.* s",
            "other-0: offsets 0 to 0",
            "other-1: offsets 0 to 0",
            "test_bill-seed-7--1-0: offsets 0 to 2",
            "  0: 'bill' = 'first'",
            "  1: 'bill' = 'second'",
            "group test_bill-seed-7--2:",
            "  test_bill-seed-7--1-0: committed offset 1, end offset 2, lag 1",
            "reproduce: *",
        ],
        consecutive=True,
    )


def test_unsupported_clients_fail_in_time(pytester: pytest.Pytester) -> None:
    began_s = time.monotonic()
    result = run(
        pytester,
        """
        import threading
        import pytest
        from confluent_kafka import Consumer, Producer
        from kafka import KafkaProducer

        pytestmark = pytest.mark.kwire_simulation(seeds=[3], faults=False)

        def produce_and_lose(servers):
            Producer({"bootstrap.servers": servers}).produce("orders", b"first")

        async def bill(servers):
            KafkaProducer(bootstrap_servers=servers).send("orders", b"first").get()

        async def poll_for_ever(servers):
            consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing"})
            consumer.subscribe(["orders"])
            consumer.poll()

        def test_blocking(kwire_simulation):
            kwire_simulation.run(bill(kwire_simulation.bootstrap_servers))

        def test_polling(kwire_simulation):
            kwire_simulation.run(poll_for_ever(kwire_simulation.bootstrap_servers))

        def test_nothing_sent_outside_of_run(kwire_simulation):
            produce_and_lose(kwire_simulation.bootstrap_servers)

        def test_nothing_sent_in_a_thread(kwire_simulation):
            thread = threading.Thread(target=produce_and_lose, args=(kwire_simulation.bootstrap_servers,))
            thread.start()
            thread.join()
        """,
        "-Wignore",
    )
    took_s = time.monotonic() - began_s
    result.assert_outcomes(failed=3, passed=1, errors=1)
    lines = [line for line in result.outlines if line.startswith("E  ") and "UnsupportedClient: " in line]
    assert len(lines) == 4, result.stdout.str()
    assert all("kafka-python and confluent-kafka have sockets and threads" in line for line in lines)
    assert took_s < 60, "each of four tests ends within 10 s, and the process starts"
