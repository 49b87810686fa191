"""Clients with sockets of their own in a simulated cluster: they fail at once, and other sockets work."""

from __future__ import annotations

import asyncio
import builtins
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, SerializingProducer
from confluent_kafka.admin import AdminClient

from kwire.testing.broker import Broker
from kwire.testing.simulated import SimulatedCluster
from kwire.testing.simulated.client_guard import UnsupportedClient
from tests.testing.simulated.programs import request_metadata

with warnings.catch_warnings():  # raised by importing kafka-python
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

SENTENCE = "kafka-python and confluent-kafka have sockets and threads of their own"

Use = Callable[[str], object]


class CustomProducer(Producer):
    """A subclass in a user's program."""


def produce_without_flush(servers: str) -> None:
    Producer({"bootstrap.servers": servers}).produce("orders", b"first")


def produce_and_flush(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"first")
    producer.flush()


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


USES: dict[str, Use] = {
    "KafkaProducer": lambda servers: KafkaProducer(bootstrap_servers=servers).send("orders", b"first").get(),
    "KafkaConsumer": lambda servers: next(KafkaConsumer("orders", bootstrap_servers=servers.split(","))),
    "KafkaAdminClient": lambda servers: KafkaAdminClient(bootstrap_servers=servers).list_topics(),
    "kafka.KafkaProducer": lambda servers: kafka.KafkaProducer(bootstrap_servers=servers),
    "Producer without flush": produce_without_flush,
    "Producer with flush": produce_and_flush,
    "confluent_kafka.Producer": lambda servers: confluent_kafka.Producer({"metadata.broker.list": servers}),
    "Producer by keywords": lambda servers: Producer(**{"bootstrap.servers": f"PLAINTEXT://{servers}"}),
    "Consumer": lambda servers: Consumer({"bootstrap.servers": servers, "group.id": "billing"}).poll(),
    "AdminClient": lambda servers: AdminClient({"bootstrap.servers": servers}).list_topics(),
    "SerializingProducer": lambda servers: SerializingProducer({"bootstrap.servers": servers}),
    "subclass": lambda servers: CustomProducer({"bootstrap.servers": servers}),
    "socket": lambda servers: socket.create_connection(("n1", 9092)),
}


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(1, size=1, faults=False) as cluster:
        yield cluster


def fail_with_the_sentence(cluster: SimulatedCluster, program: Callable[[str], Any]) -> None:
    """Run a program that ends within 10 s of real time, because it uses an unsupported client."""
    began_s = time.monotonic()
    with pytest.raises(UnsupportedClient, match=SENTENCE):
        cluster.run(program(cluster.bootstrap_servers))
    assert time.monotonic() - began_s < 10
    cluster.check()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_client_in_a_coroutine_fails(cluster: SimulatedCluster, use: Use) -> None:
    async def program(servers: str) -> None:
        use(servers)

    fail_with_the_sentence(cluster, program)


@pytest.mark.parametrize("use", [USES["KafkaProducer"], USES["Producer with flush"]])
def test_client_in_a_thread_of_asyncio_fails(cluster: SimulatedCluster, use: Use) -> None:
    async def program(servers: str) -> None:
        await asyncio.to_thread(use, servers)

    fail_with_the_sentence(cluster, program)


@pytest.mark.parametrize("use", [USES["KafkaProducer"], USES["Producer without flush"], USES["socket"]])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_client_in_a_thread_fails_the_program(cluster: SimulatedCluster, use: Use) -> None:
    async def program(servers: str) -> None:
        in_thread(lambda: use(servers))

    fail_with_the_sentence(cluster, program)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_program_that_waits_for_a_failed_thread_is_interrupted(cluster: SimulatedCluster) -> None:
    async def program(servers: str) -> None:
        delivered: queue.Queue[object] = queue.Queue()
        threading.Thread(target=lambda: delivered.put(USES["KafkaProducer"](servers))).start()
        delivered.get()

    handler = signal.getsignal(signal.SIGINT)
    fail_with_the_sentence(cluster, program)
    assert signal.getsignal(signal.SIGINT) is handler


def test_retry_loop_does_not_hide_the_error(cluster: SimulatedCluster) -> None:
    async def retry(servers: str) -> None:
        while True:
            try:
                KafkaProducer(bootstrap_servers=servers)
            except Exception:
                time.sleep(1)

    async def retry_after_everything(servers: str) -> None:
        while True:
            try:
                KafkaProducer(bootstrap_servers=servers)
            except BaseException:
                await asyncio.sleep(1)

    fail_with_the_sentence(cluster, retry)
    fail_with_the_sentence(cluster, retry_after_everything)


def test_error_of_a_background_task_is_raised(cluster: SimulatedCluster) -> None:
    async def program(servers: str) -> None:
        async def use() -> None:
            KafkaProducer(bootstrap_servers=servers)

        task = asyncio.create_task(use())
        await asyncio.sleep(5)
        assert task.done()

    fail_with_the_sentence(cluster, program)


def test_client_outside_of_a_program_fails_at_once(cluster: SimulatedCluster) -> None:
    with pytest.raises(UnsupportedClient, match=SENTENCE):
        produce_without_flush(cluster.bootstrap_servers)
    with pytest.raises(UnsupportedClient, match=SENTENCE):
        cluster.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_client_in_a_thread_outside_of_a_program_fails_at_the_end() -> None:
    with pytest.raises(UnsupportedClient, match=SENTENCE) as caught, SimulatedCluster(1, size=1) as cluster:
        in_thread(lambda: produce_without_flush(cluster.bootstrap_servers))
    assert "kwire simulation with seed 1:" in caught.value.__notes__[0]


def test_clients_work_again_after_the_simulation() -> None:
    before = KafkaProducer.__init__, AdminClient.__init__, SerializingProducer.__init__, builtins.__import__
    with SimulatedCluster(1, size=1, faults=False):
        assert KafkaProducer.__init__ is not before[0]
        assert confluent_kafka.Producer is not confluent_kafka.cimpl.Producer
    after = KafkaProducer.__init__, AdminClient.__init__, SerializingProducer.__init__, builtins.__import__
    assert before == after
    assert Producer is confluent_kafka.Producer is confluent_kafka.cimpl.Producer
    with Broker() as broker:
        produce_and_flush(broker.bootstrap_servers)
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers).close()
        assert len(broker.records("orders")) == 1


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"healthy")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def test_other_sockets_and_clients_of_real_brokers_work(cluster: SimulatedCluster) -> None:
    async def program(real_servers: str) -> bytes:
        server = HTTPServer(("localhost", 0), Handler)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        url = f"http://localhost:{server.server_port}"
        body: bytes = (await asyncio.to_thread(urllib.request.urlopen, url)).read()
        await asyncio.sleep(60)
        server.shutdown()
        serving.join()
        server.server_close()
        produce_and_flush(real_servers)
        in_thread(lambda: send(real_servers))
        return body

    def send(servers: str) -> None:
        producer = KafkaProducer(bootstrap_servers=servers)
        producer.send("orders", b"second").get(10)
        producer.close()

    with Broker() as broker:
        assert cluster.run(program(broker.bootstrap_servers)) == b"healthy"
        assert [record.value for record in broker.records("orders")] == [b"first", b"second"]


LATE_IMPORTS = """
import importlib
import time
from kwire.testing.simulated import SimulatedCluster
from kwire.testing.simulated.client_guard import UnsupportedClient

def kafka_python(servers):
    from kafka import KafkaProducer
    KafkaProducer(bootstrap_servers=servers).send("orders", b"first").get()

def confluent(servers):
    from confluent_kafka import Producer
    Producer({"bootstrap.servers": servers}).flush()

def confluent_serializing(servers):
    from confluent_kafka import SerializingProducer
    SerializingProducer({"bootstrap.servers": servers})

def confluent_admin(servers):
    from confluent_kafka.admin import AdminClient
    AdminClient({"bootstrap.servers": servers}).list_topics()

async def program(use, servers):
    use(servers)

for use in (kafka_python, confluent, confluent_serializing, confluent_admin):
    with SimulatedCluster(1, size=1, faults=False) as cluster:
        try:
            cluster.run(program(use, cluster.bootstrap_servers))
        except UnsupportedClient as error:
            print(error)

import confluent_kafka, confluent_kafka.admin
assert confluent_kafka.Producer is confluent_kafka.cimpl.Producer
assert confluent_kafka.SerializingProducer.__bases__[0] is confluent_kafka.Producer
assert "_check_config" not in confluent_kafka.admin.AdminClient.__init__.__code__.co_names
"""


def test_client_that_is_imported_by_the_program_fails() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LATE_IMPORTS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(SENTENCE) == 4, ran.stdout


@pytest.mark.parametrize("version", ["0.12.0", "0.8.1"])
def test_old_aiokafka_is_refused(
    cluster: SimulatedCluster, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(servers: str) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers)
        try:
            await producer.start()
        finally:
            await producer.stop()

    cluster.run(program(cluster.bootstrap_servers))
    monkeypatch.setattr(aiokafka, "__version__", version)
    with pytest.raises(UnsupportedClient, match=rf"aiokafka {version} does not .*: use aiokafka 0\.13 or"):
        cluster.run(program(cluster.bootstrap_servers))
    cluster.run(request_metadata("n1", 9092))  # plain asyncio is no aiokafka
