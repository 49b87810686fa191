"""A quorum whose voters stood in the configuration becomes a dynamic one while it runs (KIP-853)."""

from __future__ import annotations

from kwire.broker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kwire.broker.metadata.batches import control_type
from kwire.broker.raft.quorum import QuorumDescription
from kwire.wire.batch import batches, records
from kwire.wire.codegen import decode
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.stored.raft import LeaderChangeMessage
from tests.broker.raft.test_snapshots import DIRECTORY, HOUR_MS, Bench

SETTINGS = {
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


def upgrade(bench: Bench, *, validate_only: bool = False) -> object:
    updates = {"kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE)}
    return bench.run(UpdateFeatures(updates, validate_only, bench.quorum.kraft_version))


def quorum(bench: Bench) -> QuorumDescription:
    found = bench.quorum.describe()
    assert found.high_watermark == found.log_end_offset == bench.image.offset + 1
    return found


def test_the_version_of_the_quorum_goes_up() -> None:
    bench = Bench(**SETTINGS)
    before = quorum(bench)
    assert (before.directory_id, before.endpoints) == (ZERO_UUID, [("CONTROLLER", "127.0.0.1", 9093)])
    assert upgrade(bench, validate_only=True) is None
    assert bench.quorum.kraft_version == 0
    assert upgrade(bench) is None
    assert bench.quorum.kraft_version == 1
    after = quorum(bench)
    assert after.directory_id != ZERO_UUID
    assert after.endpoints == [("CONTROLLER", "localhost", 9093)]
    # Two control records, and the one that the reply waited for.
    assert after.log_end_offset == before.log_end_offset + 3
    assert upgrade(bench) is None
    assert quorum(bench).log_end_offset == after.log_end_offset + 1


def test_leaders_say_so_as_kafkas_do() -> None:
    """In version 0 always: Kafka's tools for its metadata read nothing else."""
    bench = Bench(**SETTINGS)
    upgrade(bench)
    bench.stop()
    bench.start()
    found = []
    for name in bench.names(".log"):
        data = bench.disk.read(f"{DIRECTORY}/{name}")
        for position, header in batches(data):
            found += [
                decode(LeaderChangeMessage, 0, record.value)
                for record in records(data, position, header, max_bytes=1 << 20)
                if record.value is not None and control_type(record.key) == 2 and header.is_control
            ]
    assert [(message.version, message.leader_id) for message, _ in found] == [(0, 1), (0, 1)]
    assert [voter.voter_directory_id for message, _ in found for voter in message.voters] == [ZERO_UUID] * 2


def test_it_stays_up() -> None:
    bench = Bench(**SETTINGS)
    assert upgrade(bench) is None
    found = quorum(bench)
    bench.crash()
    assert bench.quorum.kraft_version == 1
    assert quorum(bench).directory_id == found.directory_id
    assert quorum(bench).leader_epoch == found.leader_epoch + 1
    bench.host.advance(HOUR_MS)
    bench.settle()
    assert bench.names()
    bench.stop()
    bench.start()
    assert bench.quorum.kraft_version == 1
