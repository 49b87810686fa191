"""kwire's connections to other nodes, of kwire and of Apache Kafka, that are paused, killed and restarted."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.cluster.logins import PLAIN, REFUSED, SCRAM, Login, logins
from interop.cluster.nodes import COMBINED, Cluster, Member
from kwire import __version__
from kwire.broker.net.loop import Loop
from kwire.broker.net.peer_connection import PeerConnections
from kwire.broker.net.peer_link import PeerTransport, TransportEvents
from kwire.broker.net.peer_links import PeerLinks, PeerSecurity
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.security.mechanisms import sasl_client
from kwire.broker.security.sasl import SaslClient
from kwire.broker.security.settings import Credentials
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.wire.batch import build
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import Uuid
from kwire.wire.schema import Message

LARGE_BYTES = 3 << 20
ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Client:
    """An event loop in a thread, and the peer connections on which it sends requests."""

    def __init__(self, loop: Loop, broker: Broker) -> None:
        self._loop = loop
        self._broker = broker

    def send(
        self,
        request: Message,
        *,
        port: int | None = None,
        timeout_ms: int = 20_000,
        purpose: str = "test",
        to_controller: bool = False,
    ) -> Callable[[], Awaitable[Any]]:
        send_answer, receive_answer = trio.open_memory_channel[Any](2)
        self._loop.peers.send(
            PeerAddress("127.0.0.1", port or self._broker.port),
            purpose,
            request,
            deadline_ms=self._loop.internode_clock.monotonic_ms() + timeout_ms,
            on_response=send_answer.send_nowait,
            to_controller=to_controller,
        )
        return receive_answer.receive

    async def request(self, request: Message, **more: Any) -> Any:
        answer = await self.send(request, **more)()
        assert not isinstance(answer, PeerUnreachable), answer
        return answer

    async def request_error(self, request: Message, **more: Any) -> str:
        answer = await self.send(request, **more)()
        assert isinstance(answer, PeerUnreachable), answer
        return str(answer).partition(": ")[2]


def fetch(topic_id: Uuid, offset: int, *, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=16 << 20)
    topics = [FetchTopic(topic="t", topic_id=topic_id, partitions=[partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=16 << 20, topics=topics)


async def exercise_apis(client: Client, broker: Broker) -> Uuid:
    """Create a topic, write to it and read from it over peer connections. Returns the topic id."""
    names = ApiVersionsRequest(client_software_name="kwire", client_software_version=__version__)
    assert {18, 3, 1} <= {each.api_key for each in (await client.request(names)).api_keys}
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[])
    made = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    topic_id: Uuid = made.topics[0].topic_id
    while (metadata := await client.request(MetadataRequest(topics=None))).topics[0].partitions[:1] == []:
        pass
    assert metadata.brokers[0].port == broker.port
    quorum = DescribeQuorumRequest(
        topics=[
            RequestTopicData(
                topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)]
            )
        ]
    )
    described = await client.request(quorum, port=broker.controller_port, purpose="controller")
    assert described.topics[0].partitions[0].leader_id == 1
    for offset, size in enumerate((100, 200_000, LARGE_BYTES)):
        batch = memoryview(build([(1_700_000_000_000, None, os.urandom(size), [])]))
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name="t", topic_id=topic_id, partition_data=data)]
        produced = await client.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics))
        assert produced.responses[0].partition_responses[0].error_code == 0
        (topic_data,) = (await client.request(fetch(topic_id, offset), purpose="fetch-0")).responses
        assert topic_data.partitions[0].records[17:] == batch[17:]
    return topic_id


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped by SIGSTOP."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    try:
        return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
    except (FileNotFoundError, ProcessLookupError):  # a thread ended during the check
        return False


async def exercise_pauses_and_kills(client: Client, broker: Broker, topic_id: Uuid) -> None:
    """Check that requests fail while the broker is paused or killed, and succeed after its restart."""
    assert broker.process is not None
    metadata = MetadataRequest(topics=None)
    waits = client.send(fetch(topic_id, 3, max_wait_ms=15_000), purpose="fetch-0")
    assert (await client.request(metadata)).topics[0].name == "t"
    broker.process.send_signal(signal.SIGSTOP)
    with trio.fail_after(10):  # a thread stops only when it is scheduled next
        while not is_stopped(broker.process.pid):
            await trio.sleep(0.01)
    assert await client.request_error(metadata, timeout_ms=300) == "request timed out"
    assert await client.request_error(metadata, timeout_ms=600) == "ApiVersions timed out"
    broker.process.send_signal(signal.SIGCONT)
    assert (await client.request(metadata)).topics[0].name == "t"
    broker.kill()
    gone = str(await waits())
    assert gone.endswith((": the peer closed the connection", "Connection reset by peer")), gone
    await client.request_error(metadata)
    assert await client.request_error(metadata) == "connection refused"
    await trio.to_thread.run_sync(broker.start)
    (topic_data,) = (await client.request(fetch(topic_id, 2))).responses
    assert len(topic_data.partitions[0].records) > LARGE_BYTES


@pytest.mark.parametrize("kind", [Kwire, ApacheKafka])
def test_requests_survive_pauses_and_kills_of_the_peer(kind: type[Broker]) -> None:
    broker = kind({"message.max.bytes": str(2 * LARGE_BYTES)})

    async def run() -> None:
        settings = SocketSettings()
        loop = Loop()
        connections = PeerConnections(loop, settings)
        loop.peers = peers = PeerLinks(loop, connections.dial, client_id="interop")
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loop.run)
                client = Client(loop, broker)
                await exercise_pauses_and_kills(client, broker, await exercise_apis(client, broker))
                peers.close()
                loop.stop()
        connections.close()
        loop.close()

    broker.start()
    try:
        trio.run(run)
        assert "ERROR" not in broker.log_text()
    finally:
        broker.discard()


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM])
@pytest.mark.parametrize("kind", [Kwire, ApacheKafka])
def test_peer_connections_authenticate_and_reauthenticate(kind: type[Broker], mechanism: str) -> None:
    """Check repeated authentication on one connection, and the error message of a failed authentication."""
    known = logins(mechanism, mechanism)
    unknown = Login("broker", "guess", mechanism)

    def login(to_controller: bool) -> tuple[str, Callable[[], SaslClient]]:
        return "", partial(sasl_client_for, known.to_controllers if to_controller else known.between_brokers)

    with Cluster(
        (Member(kind, COMBINED),), {**ALONE, "connections.max.reauth.ms": "1500"}, logins=known
    ) as it:
        broker = it.start().nodes[1]

        async def run() -> None:
            async with running_client(broker, login) as (client, dialled):
                for _ in range(40):
                    await client.request(MetadataRequest(topics=[]))
                    await client.request(
                        ApiVersionsRequest(client_software_name="kwire", client_software_version="1"),
                        port=broker.controller_port,
                        purpose="quorum",
                        to_controller=True,
                    )
                    await trio.sleep(0.1)
                ports = sorted(to.port for to in dialled)
                assert ports == sorted([broker.port, broker.controller_port]), "a connection was lost"
            async with running_client(broker, lambda _: ("", partial(sasl_client_for, unknown))) as (
                client,
                _,
            ):
                error_message = await client.request_error(MetadataRequest(topics=[]))
                assert error_message == f"authentication failed: {REFUSED[mechanism]}"

        trio.run(run)
        it.check_logs()


def sasl_client_for(login: Login) -> SaslClient:
    return sasl_client(Credentials(login.mechanism, login.username, login.password), random.Random(1))


@asynccontextmanager
async def running_client(
    broker: Broker, logins: PeerSecurity
) -> AsyncIterator[tuple[Client, list[PeerAddress]]]:
    """Run a client of the broker. Yield the client and the list of addresses that it connects to."""
    loop = Loop()
    connections = PeerConnections(loop, SocketSettings())
    dialled: list[PeerAddress] = []

    def dial(to: PeerAddress, hears: TransportEvents, listener: str) -> PeerTransport:
        dialled.append(to)
        return connections.dial(to, hears, listener)

    loop.peers = peers = PeerLinks(loop, dial, peer_security=logins)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            yield Client(loop, broker), dialled
            peers.close()
            loop.stop()
    connections.close()
    loop.close()
