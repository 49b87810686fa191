"""User programs in a simulated cluster: unmodified, and deterministic for a seed."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import anyio
import pytest

from kwire.testing.history import History
from kwire.testing.simulated import SimulatedCluster
from kwire.testing.simulated.violation import Violation
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.registry import encode_request
from simulation.cluster.planted_bugs import PLANTED_BUGS
from tests.testing.simulated.programs import consume, produce, request_metadata, transact

ORDERS = 40


def run_with_seed(seed: int) -> tuple[list[str], float]:
    """Run an unmodified client with random faults, check its history, and return the report and end time."""
    with SimulatedCluster(seed) as cluster:
        history = History(lambda: cluster.now_s)
        servers = cluster.bootstrap_servers
        cluster.create_topic("orders")
        cluster.run(produce(servers, history, ORDERS))
        cluster.run(consume(servers, history, ORDERS))
        cluster.stop_faults()
        history.expect_all_read("reader")
        history.set_final_records(cluster.records("orders"))
        history.check()
        return cluster.report().splitlines(), cluster.now_s


@pytest.mark.parametrize("seed", range(5))
def test_unmodified_client_loses_no_records(seed: int) -> None:
    run_with_seed(seed)


def test_run_is_the_same_for_the_same_seed() -> None:
    assert run_with_seed(5) == run_with_seed(5)


def test_records_of_an_aborted_transaction_are_not_returned() -> None:
    with SimulatedCluster(1, size=1, faults=False) as cluster:
        cluster.create_topic("orders")
        cluster.run(transact(cluster.bootstrap_servers, b"kept", commits=True))
        cluster.run(transact(cluster.bootstrap_servers, b"dropped", commits=False))
        assert [(record.offset, record.value) for record in cluster.records("orders")] == [(0, b"kept")]


def test_topic_can_be_deleted_and_recreated() -> None:
    async def delete(bootstrap_servers: str) -> None:
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
        await admin.start()
        await admin.delete_topics(["orders"])
        await admin.close()

    with SimulatedCluster(1, faults=False) as cluster:
        history = History(lambda: cluster.now_s)
        cluster.create_topic("orders")
        cluster.run(produce(cluster.bootstrap_servers, history, 3))
        cluster.run(delete(cluster.bootstrap_servers))
        cluster.advance(5_000)
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: there is no topic orders"):
            cluster.records("orders")
        cluster.create_topic("orders", partitions=2)
        cluster.run(transact(cluster.bootstrap_servers, b"new", commits=True))
        cluster.stop_faults()
        assert [record.value for record in cluster.records("orders")] == [b"new"]
        with pytest.raises(ApiError, match="already exists"):
            cluster.create_topic("orders")


def test_violation_names_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    [bug] = [each for each in PLANTED_BUGS if each.name == "produce is acknowledged before replication"]
    bug.plant(monkeypatch.setattr)
    violations = []
    for seed in range(40):
        try:
            run_with_seed(seed)
        except Violation as error:
            violations.append(error)
            break
    assert "was acknowledged at" in str(violations[0])
    assert f"kwire simulation with seed {seed}:" in violations[0].__notes__[0]
    assert "a program begins" in violations[0].__notes__[0]


def test_response_arrives_in_pieces() -> None:
    with SimulatedCluster(3, faults=False) as cluster:
        cluster.create_topic("orders")
        host, _, port = cluster.bootstrap_servers.split(",")[0].rpartition(":")
        for _ in range(20):
            response = cluster.run(request_metadata(host, int(port)))
            assert response is not None
            assert [topic.name for topic in response.topics] == ["orders"]


class Buffered(asyncio.BufferedProtocol):
    """A protocol with a buffer of three bytes."""

    def __init__(self, count: int) -> None:
        self.received = b""
        self.all_is_there = asyncio.get_running_loop().create_future()
        self._count = count
        self._room = bytearray(3)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._room[:nbytes]
        if len(self.received) >= self._count and not self.all_is_there.done():
            self.all_is_there.set_result(None)


def test_buffered_protocol_is_supported() -> None:
    async def program() -> bytes:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(lambda: Buffered(8), "n1", 9092)
        transport.write(encode_request(MetadataRequest(topics=[]), 12, 17, "by hand"))
        await protocol.all_is_there
        return protocol.received[4:8]

    with SimulatedCluster(3, size=1, faults=False) as cluster:
        assert cluster.run(program(), timeout_s=20) == (17).to_bytes(4, "big")


def test_anyio_program_is_supported() -> None:
    async def program(host: str, port: int) -> bytes:
        with anyio.fail_after(30):
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(encode_request(MetadataRequest(topics=[]), 12, 17, "by hand"))
                response = b""
                while len(response) < 8:
                    response += await stream.receive()
                await anyio.sleep(10)
                return response[4:8]

    with SimulatedCluster(3, size=1, faults=False) as cluster:
        assert cluster.run(program("n1", 9092)) == (17).to_bytes(4, "big")


def test_crashed_broker_refuses_connections_until_it_restarts() -> None:
    with SimulatedCluster(3, faults=False) as cluster:
        with pytest.raises(ConnectionRefusedError, match="nobody:9092"):
            cluster.run(request_metadata("nobody", 9092))
        cluster.brokers[2].crash()
        cluster.brokers[2].crash()
        with pytest.raises(ConnectionRefusedError, match="n2:9092: connection refused"):
            cluster.run(request_metadata("n2", 9092))
        cluster.brokers[2].start()
        cluster.brokers[2].start()
        cluster.advance(5_000)
        response = cluster.run(request_metadata("n2", 9092))
        assert response is not None
        assert len(response.brokers) == 3
        cluster.isolate(1)
        with pytest.raises(TimeoutError, match="has not ended in time"):
            cluster.run(request_metadata("n1", 9092), timeout_s=10)
        cluster.heal()
        cluster.run(request_metadata("n1", 9092), timeout_s=10)
        with pytest.raises(LookupError, match="no broker 4: use one of 1, 2, 3"):
            cluster.isolate(4)
        with pytest.raises(ValueError, match="time cannot go back"):
            cluster.advance(-1)


def test_program_continues_after_its_leader_crashes() -> None:
    async def program(cluster: SimulatedCluster, history: History) -> None:
        producing = asyncio.create_task(produce(cluster.bootstrap_servers, history, 20))
        await asyncio.sleep(0.5)
        cluster.leader("orders").crash()
        await producing

    with SimulatedCluster(3, faults=False) as cluster:
        history = History(lambda: cluster.now_s)
        for method in (cluster.leader, cluster.records):
            with pytest.raises(ApiError, match="there is no topic orders: none exists") as unknown:
                method("orders")
            assert unknown.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.create_topic("orders")
        leader = cluster.leader("orders")
        cluster.run(program(cluster, history))
        assert cluster.leader("orders") is not leader
        history.set_final_records(cluster.records("orders"))
        history.check()
        assert history.acknowledged_count == 20
        assert history.longest_ack_gap_s() > 1


def test_killed_program_sends_nothing_more() -> None:
    with SimulatedCluster(3, faults=False) as cluster:
        history = History(lambda: cluster.now_s)
        cluster.create_topic("orders")
        began_s = cluster.now_s
        assert cluster.run(produce(cluster.bootstrap_servers, history, 1_000), kill_after_s=2) is None
        count = len(cluster.records("orders"))
        assert 10 < count < 100
        assert history.acknowledged_count in (count, count - 1)
        assert cluster.now_s - began_s < 70
        cluster.advance(1_000)
        assert len(cluster.records("orders")) == count


def test_program_has_simulated_time_and_seeded_randomness() -> None:
    in_thread_s: list[float] = []

    async def program() -> float:
        began_s, began_ns, wall_s = time.monotonic(), time.monotonic_ns(), time.time()
        await asyncio.sleep(3_600)
        assert time.monotonic() - began_s == pytest.approx(3_600)
        assert time.monotonic_ns() - began_ns == 3_600_000_000_000
        assert time.time() - wall_s == pytest.approx(3_600)
        for _ in range(5_000):
            await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: in_thread_s.append(time.monotonic()))
        thread.start()
        thread.join()
        here = await asyncio.to_thread(threading.get_ident)
        assert here == threading.get_ident(), "a thread function runs at once in the same thread"
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return random.random()

    state, real_s = random.getstate(), time.monotonic()
    drawn = []
    for _ in range(2):
        with SimulatedCluster(3, size=1, faults=False) as cluster:
            drawn.append(cluster.run(program(), timeout_s=4_000))
    assert drawn[0] == drawn[1]
    assert random.getstate() == state
    assert real_s < in_thread_s[0] < time.monotonic() < real_s + 60


def test_blocking_sleep_stops_the_loop_and_a_sleeping_thread_does_not() -> None:
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(1)

    async def program() -> tuple[int, int]:
        beating = asyncio.create_task(beat())
        await asyncio.to_thread(time.sleep, 10)
        in_thread, before_s = len(beats), time.monotonic()
        time.sleep(10)
        assert time.monotonic() - before_s == 10
        blocked = len(beats) - in_thread
        beating.cancel()
        return in_thread, blocked

    with SimulatedCluster(3, size=1, faults=False) as cluster:
        assert cluster.run(program()) == (10, 0)
    began_s = time.monotonic()
    time.sleep(0.01)
    assert time.monotonic() - began_s >= 0.01


def test_report_names_unsupported_clients_if_no_program_connected() -> None:
    async def connect() -> None:
        _, writer = await asyncio.open_connection("n1", 9092)
        writer.close()

    with SimulatedCluster(3, size=1, faults=False) as cluster:
        assert "kafka-python and confluent-kafka have sockets" in cluster.report().splitlines()[-1]
        cluster.run(connect())
        assert "kafka-python" not in cluster.report()


def test_unsupported_asyncio_features_are_refused_with_a_reason() -> None:
    async def serve() -> None:
        await asyncio.start_server(lambda reader, writer: None, "here", 1)

    async def encrypt() -> None:
        await asyncio.open_connection("n1", 9092, ssl=True)

    with SimulatedCluster(3, size=1, faults=False) as cluster:
        with pytest.raises(NotImplementedError, match="no servers except the brokers"):
            cluster.run(serve())
        with pytest.raises(NotImplementedError, match="has no TLS"):
            cluster.run(encrypt())
    with pytest.raises(ValueError, match="at least one broker"):
        SimulatedCluster(3, size=0)
