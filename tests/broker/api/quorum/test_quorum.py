"""Fetch and FetchSnapshot of the metadata log on a controller listener."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.raft.outputs import Remember
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC_ID
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import batches
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import fetch_snapshot
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.wire.primitives import Uuid
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from tests.node_harness import NodeHarness

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
SMALL = {
    "metadata.log.max.record.bytes.between.snapshots": "5000",
    "metadata.max.retention.bytes": "10000",
    "internal.metadata.log.segment.bytes": "5000",
}
LATEST = 18


class Quorum(NodeHarness):
    """A controller, and requests to its listener."""

    def __init__(self, **settings: str) -> None:
        super().__init__(None, **SETTINGS, **settings)
        self.log = self.node.quorum.log

    def send(self, version: int, request: Any) -> tuple[VirtualClient, Any]:
        client = self.connect("CONTROLLER", ListenerRole.CONTROLLER)
        client.send(version, request)
        return client, client.receive(version, type(request))

    def fetch(self, version: int = LATEST, **fields: Any) -> Any:
        return self.send(version, self.request(**fields))[1]

    def request(self, **fields: Any) -> FetchRequest:
        partition: dict[str, Any] = {
            "current_leader_epoch": 1,
            "fetch_offset": self.log.end_offset,
            "last_fetched_epoch": 1,
            "high_watermark": self.log.high_watermark,
            "replica_directory_id": Uuid(bytes(15) + b"\5"),
        }
        fields_of_request: dict[str, Any] = {
            "max_wait_ms": 500,
            "replica_state": ReplicaState(replica_id=5),
            "topic_id": METADATA_TOPIC_ID,
        }
        fields_of_request |= {name: value for name, value in fields.items() if name not in partition}
        partition |= {name: value for name, value in fields.items() if name in partition}
        topic_id, index = fields_of_request.pop("topic_id"), fields_of_request.pop("index", 0)
        asked = FetchPartition(partition=index, partition_max_bytes=0, **partition)
        return FetchRequest(
            min_bytes=0, topics=[FetchTopic(topic_id=topic_id, partitions=[asked])], **fields_of_request
        )

    def snapshot(self, version: int = 1, **fields: Any) -> Any:
        known = self.log.snapshots.known
        latest = known[-1] if known else None
        asked = {
            "end_offset": latest.end_offset if latest else 10,
            "epoch": 1,
            "position": 0,
            "max_bytes": 1_000,
            "current_leader_epoch": 1,
            "name": "__cluster_metadata",
            "cluster_id": None,
            **fields,
        }
        partition = fetch_snapshot.RequestPartitionSnapshot(
            partition=0,
            current_leader_epoch=asked["current_leader_epoch"],
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=asked["end_offset"], epoch=asked["epoch"]),
            position=asked["position"],
        )
        topic = fetch_snapshot.RequestTopicSnapshot(name=asked["name"], partitions=[partition])
        request = FetchSnapshotRequest(
            cluster_id=asked["cluster_id"], replica_id=5, max_bytes=asked["max_bytes"], topics=[topic]
        )
        return self.send(version, request)[1]

    def write_snapshot(self) -> None:
        for number in range(20):
            self.create(f"t{number}", partitions=20)
            self.host.advance(1_000)
        self.host.advance(70_000)
        assert self.log.start_offset > 0


@pytest.fixture
def quorum() -> Quorum:
    return Quorum()


def only_partition(response: Any) -> PartitionData:
    [topic] = response.responses
    [partition] = topic.partitions
    assert isinstance(partition, PartitionData)
    return partition


def test_a_fetch_returns_the_log(quorum: Quorum) -> None:
    response = quorum.fetch(fetch_offset=0, last_fetched_epoch=0)
    data = only_partition(response)
    assert (data.error_code, data.high_watermark, data.log_start_offset) == (0, quorum.log.end_offset, 0)
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (quorum.node.node_id, 1)
    assert data.aborted_transactions == []
    records = data.records
    assert isinstance(records, (bytes, bytearray, memoryview))
    found = [header for _, header in batches(records)]
    assert (found[0].base_offset, found[-1].next_offset) == (0, quorum.log.end_offset)
    [endpoint] = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (quorum.node.node_id, "127.0.0.1", 9093)
    assert quorum.fetch(16, fetch_offset=0, last_fetched_epoch=0).node_endpoints == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"current_leader_epoch": 0, "last_fetched_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"fetch_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": 2}, ErrorCode.INVALID_REQUEST),
        ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_invalid_fetch_returns_the_leader(quorum: Quorum, fields: dict[str, Any], code: ErrorCode) -> None:
    data = only_partition(quorum.fetch(**fields))
    assert data.error_code == code
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (quorum.node.node_id, 1)
    assert (data.high_watermark, data.records) == (-1, b"")
    found = quorum.node.quorum.describe()
    assert found is not None
    assert not found.observers


@pytest.mark.parametrize(
    ("version", "fields", "code"),
    [
        (LATEST, {"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (LATEST, {"topic_id": Uuid(bytes(16))}, ErrorCode.INVALID_REQUEST),
        (LATEST, {"index": 1}, ErrorCode.INVALID_REQUEST),
        (12, {"replica_state": ReplicaState()}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_fetch_of_another_cluster_or_topic_is_refused(
    quorum: Quorum, version: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    assert quorum.fetch(version, **fields).error_code == code


def test_a_fetch_with_the_id_of_the_leader_is_an_error(quorum: Quorum) -> None:
    data = only_partition(quorum.fetch(replica_state=ReplicaState(replica_id=quorum.node.node_id)))
    assert data.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_fetch_beyond_the_log_end_returns_the_diverging_epoch(quorum: Quorum) -> None:
    data = only_partition(quorum.fetch(fetch_offset=quorum.log.end_offset + 10))
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, quorum.log.end_offset)


def test_a_fetch_at_the_end_waits_for_the_next_commit(quorum: Quorum) -> None:
    client, response = quorum.send(LATEST, quorum.request())
    assert response is None
    quorum.create("a")
    data = only_partition(client.receive(LATEST, FetchRequest))
    assert data.records
    assert 0 < data.high_watermark <= quorum.log.end_offset


def test_a_fetch_at_the_end_waits_up_to_max_wait_ms(quorum: Quorum) -> None:
    client, _ = quorum.send(LATEST, quorum.request(max_wait_ms=300))
    quorum.host.advance(299)
    assert client.receive(LATEST, FetchRequest) is None
    quorum.host.advance(1)
    data = only_partition(client.receive(LATEST, FetchRequest))
    assert (data.error_code, data.records) == (0, b"")


def test_a_fetch_with_an_older_high_watermark_returns_at_once(quorum: Quorum) -> None:
    data = only_partition(quorum.fetch(high_watermark=quorum.log.high_watermark - 1))
    assert (data.high_watermark, data.records) == (quorum.log.high_watermark, b"")
    assert quorum.fetch(17) is None, "version 17 has no high watermark of the follower"


def test_shutdown_completes_waiting_fetches(quorum: Quorum) -> None:
    client, _ = quorum.send(LATEST, quorum.request())
    quorum.node.begin_shutdown()
    quorum.turn()
    assert only_partition(client.receive(LATEST, FetchRequest)).error_code == ErrorCode.BROKER_NOT_AVAILABLE
    assert only_partition(quorum.fetch()).error_code == ErrorCode.BROKER_NOT_AVAILABLE


def test_a_closed_connection_drops_its_waiting_fetch(quorum: Quorum) -> None:
    client, _ = quorum.send(LATEST, quorum.request())
    quorum.node.channel_closed(client.channel)
    quorum.create("a")
    quorum.host.advance(1_000)


def test_a_fetch_below_the_log_start_returns_the_snapshot_id() -> None:
    quorum = Quorum(**SMALL)
    quorum.write_snapshot()
    latest = quorum.log.latest_snapshot
    assert latest is not None
    for fields in ({"fetch_offset": 0, "last_fetched_epoch": 0}, {"fetch_offset": 5}):
        data = only_partition(quorum.fetch(**fields))
        assert (data.snapshot_id.end_offset, data.snapshot_id.epoch) == latest
        assert not data.records


def test_a_snapshot_is_fetched_in_pieces() -> None:
    quorum = Quorum(**SMALL)
    quorum.write_snapshot()
    latest = quorum.log.latest_snapshot
    assert latest is not None
    content = b""
    while True:
        response = quorum.snapshot(position=len(content))
        [data] = response.topics[0].partitions
        assert (data.error_code, data.position) == (0, len(content))
        assert (data.snapshot_id.end_offset, data.snapshot_id.epoch) == latest
        assert 0 < len(data.unaligned_records) <= 1_000
        content += data.unaligned_records
        if len(content) == data.size:
            break
    assert content == quorum.log.snapshots.read(latest)  # type: ignore[arg-type]
    assert [endpoint.port for endpoint in response.node_endpoints] == [9093]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"end_offset": 1}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"end_offset": 0, "epoch": 0}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"position": 1 << 40}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"name": "a"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_invalid_snapshot_fetch_is_an_error(fields: dict[str, Any], code: ErrorCode) -> None:
    quorum = Quorum(**SMALL)
    quorum.write_snapshot()
    [data] = quorum.snapshot(**fields).topics[0].partitions
    assert data.error_code == code
    assert data.unaligned_records == b""


def test_a_snapshot_fetch_of_another_cluster_is_refused(quorum: Quorum) -> None:
    assert quorum.snapshot(cluster_id="another").error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def delay_durability(quorum: Quorum) -> None:
    """Let all responses wait until quorum-state is synced, which `quorum.turn` does."""
    driver = quorum.node.quorum
    driver._do([Remember(driver.log.election(), is_promise=True)])


def submit(quorum: Quorum, client: VirtualClient, version: int, request: Any) -> None:
    """Send a request, which must not have to wait for earlier ones."""
    frame = memoryview(bytearray(encode_request(request, version, 1, "me")))[4:]
    assert not quorum.node.must_wait(client.channel, frame)
    quorum.node.handle_frame(client.channel, frame)


@pytest.mark.parametrize("is_synced_first", [False, True])
@pytest.mark.parametrize("fetches", [1, 2, 3])
def test_request_behind_fetches_that_wait_for_a_sync_completes_them(
    quorum: Quorum, fetches: int, *, is_synced_first: bool
) -> None:
    """The clock does not advance: the request does not wait for the end of a long poll."""
    client = quorum.connect("CONTROLLER", ListenerRole.CONTROLLER)
    delay_durability(quorum)
    for _ in range(fetches):
        submit(quorum, client, LATEST, quorum.request())
    if is_synced_first:
        quorum.turn()
        assert client.take_bytes() == b""
    submit(quorum, client, 4, ApiVersionsRequest(client_software_name="me", client_software_version="1"))
    quorum.turn()
    received, position = client.take_bytes(), 0
    for api_key, version in [*[(ApiKey.FETCH, LATEST)] * fetches, (ApiKey.API_VERSIONS, 4)]:
        end = position + 4 + int.from_bytes(received[position : position + 4], "big")
        response_class = API_VERSIONS[api_key].response_class
        response: Any = decode_response(response_class, version, received[position + 4 : end])[1]
        assert response.error_code == ErrorCode.NONE
        position = end
    assert position == len(received)


def test_queued_fetch_that_waits_for_a_sync_delays_the_fetch_behind_it() -> None:
    quorum = Quorum(**{"metadata.max.idle.interval.ms": "0"})
    client = quorum.connect("CONTROLLER", ListenerRole.CONTROLLER)
    for _ in range(3):
        submit(quorum, client, LATEST, quorum.request(max_wait_ms=300))
    delay_durability(quorum)
    quorum.node.quorum.cancel_wait(client.channel.fetches.complete)  # type: ignore[arg-type]
    assert client.channel.fetches.complete is not None
    client.channel.fetches.complete()  # its response waits for the sync, and the next Fetch starts
    for _ in range(3):
        quorum.turn()
    assert only_partition(client.receive(LATEST, FetchRequest)).records == b""
    for _ in range(2):
        quorum.host.advance(299)
        assert client.take_bytes() == b"", "each Fetch has its own wait"
        quorum.host.advance(1)
        assert only_partition(client.receive(LATEST, FetchRequest)).records == b""
        quorum.turn()


def test_closed_connection_drops_a_fetch_that_waits_for_a_sync(quorum: Quorum) -> None:
    client = quorum.connect("CONTROLLER", ListenerRole.CONTROLLER)
    delay_durability(quorum)
    submit(quorum, client, LATEST, quorum.request())
    quorum.node.channel_closed(client.channel)
    quorum.turn()
    assert client.channel.fetches.complete is None


def test_no_response_reveals_an_epoch_before_it_is_durable(quorum: Quorum) -> None:
    waiting, _ = quorum.send(LATEST, quorum.request())
    driver = quorum.node.quorum
    driver._do([Remember(driver.log.election(), is_promise=True)])
    fetcher = quorum.connect("CONTROLLER", ListenerRole.CONTROLLER)
    fetcher.submit(LATEST, quorum.request(fetch_offset=0, last_fetched_epoch=0))
    driver._waiters.call_all()
    assert (fetcher.take_bytes(), waiting.take_bytes()) == (b"", b"")
    quorum.turn()
    assert only_partition(fetcher.receive(LATEST, FetchRequest)).records
    assert only_partition(waiting.receive(LATEST, FetchRequest)).error_code == ErrorCode.NONE
