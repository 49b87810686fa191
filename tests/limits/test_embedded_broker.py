"""An embedded broker in a test process that has no free file descriptor, or can start no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kwire.broker.net import workers
from kwire.broker.net.running_node import RunningNode
from kwire.broker.storage.disk import ResourceShortage
from kwire.testing import Broker
from kwire.testing.embedded_broker import EmbeddedBroker
from kwire.wire.errors import ErrorCode
from tests.broker.storage.descriptor_limit import no_free_descriptors, open_file_limit
from tests.limits.client import RETRIABLE, Client

PARTITIONS = 100


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_file_limit(500), Broker() as running:
        yield running


def connect(broker: Broker) -> Client:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return Client((host, int(port)))


def running_node(broker: Broker) -> RunningNode:
    embedded = broker._embedded
    assert isinstance(embedded, EmbeddedBroker)
    return embedded.running


def assert_all_directories_are_online(broker: Broker) -> None:
    running = running_node(broker)
    assert running.broker is not None
    assert not running.broker.log_manager.any_offline
    assert not any(partition.log.failure for partition in running.broker.replica_manager.all())


def test_broker_serves_its_clients_without_a_free_descriptor(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(broker) as client:
        client.create_topic(PARTITIONS)
        with no_free_descriptors():
            for index in range(PARTITIONS):
                assert client.produce(index, b"v%d" % index) == ErrorCode.NONE
            fetched = client.fetch(range(PARTITIONS))
            assert all(code == ErrorCode.NONE and size for code, size in fetched.values())
            assert len(fetched) == PARTITIONS
        assert_all_directories_are_online(broker)
        assert all(client.produce(index, b"after") == ErrorCode.NONE for index in range(PARTITIONS))
    warnings = [record.getMessage() for record in caplog.records if "ulimit -n" in record.getMessage()]
    assert len(warnings) == 1


def test_requests_wait_or_get_retriable_errors_while_another_thread_takes_every_descriptor(
    broker: Broker,
) -> None:
    with connect(broker) as client:
        client.create_topic(PARTITIONS)
        # The first request of an API imports modules.
        client.produce_with_retries(0, b"v")
        client.fetch(range(PARTITIONS))
        codes = set()
        with no_free_descriptors() as hog, hog.taking_turns():
            for _ in range(3):
                for index in range(PARTITIONS):
                    codes.add(client.produce(index, b"v"))
                codes |= {code for code, _ in client.fetch(range(PARTITIONS)).values()}
        assert codes <= {ErrorCode.NONE, *RETRIABLE}
        assert_all_directories_are_online(broker)
        assert all(client.produce(index, b"after") == ErrorCode.NONE for index in range(PARTITIONS))
        fetched = client.fetch(range(PARTITIONS))
        assert all(code == ErrorCode.NONE and size for code, size in fetched.values())


def test_connection_waits_until_the_broker_has_a_descriptor_for_it(broker: Broker) -> None:
    with no_free_descriptors() as hog:
        hog.free(1)
        with connect(broker) as client:
            hog.free(20)
            client.create_topic(1)
            assert client.produce(0, b"v") == ErrorCode.NONE
    assert_all_directories_are_online(broker)


def test_topic_is_created_without_a_free_descriptor(broker: Broker) -> None:
    with connect(broker) as client:
        client.await_acceptance()
        with no_free_descriptors():
            client.create_topic(PARTITIONS)
            for index in range(PARTITIONS):
                client.produce_with_retries(index, b"v")
    assert_all_directories_are_online(broker)


def test_broker_stops_cleanly_without_a_free_descriptor() -> None:
    with open_file_limit(500):
        broker = Broker()
        broker.start()
        client = connect(broker)
        client.create_topic(PARTITIONS)
        for index in range(PARTITIONS):
            assert client.produce(index, b"v") == ErrorCode.NONE
        with no_free_descriptors():
            broker.stop()
        client.close()


class FewWorkerThreads:
    """A system that refuses to start worker threads, as Linux does at RLIMIT_NPROC or a cgroup's pids.max."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, permitted: int) -> None:
        self.permitted = permitted
        """The number of threads that may still be started."""
        self.refused = threading.Semaphore(0)
        system = self

        class RefusedThread(threading.Thread):
            def start(self) -> None:
                if not system.permitted:
                    system.refused.release()
                    raise RuntimeError("can't start new thread")
                system.permitted -= 1
                super().start()

        monkeypatch.setattr(workers, "Thread", RefusedThread)


def test_broker_without_a_worker_thread_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    FewWorkerThreads(monkeypatch, permitted=0)
    with pytest.raises(ResourceShortage, match="the system permits no thread for disk I/O"):
        Broker().start()


def test_broker_needs_no_second_worker_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system = FewWorkerThreads(monkeypatch, permitted=1)
    is_free = threading.Event()
    with Broker() as broker, connect(broker) as client, ThreadPoolExecutor(1) as executor:
        loop = running_node(broker).loop
        loop.call_from_thread(lambda: loop.run_in_worker(is_free.wait, lambda result: None))
        # A worker syncs the metadata records of the topic.
        created = executor.submit(client.create_topic, PARTITIONS)
        assert system.refused.acquire(timeout=10)
        assert not created.done()
        is_free.set()
        created.result(10)
        for index in range(PARTITIONS):
            client.produce_with_retries(index, b"v")
    assert not caplog.records
