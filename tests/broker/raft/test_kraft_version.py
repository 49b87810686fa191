"""A quorum whose voters stood in the configuration becomes a dynamic one while it runs (KIP-853)."""

from __future__ import annotations

from kwire.broker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kwire.broker.metadata.batches import control_type
from kwire.broker.raft.leading import Description
from kwire.wire.batch import batches, records
from kwire.wire.codegen import decode
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.raft import LeaderChangeMessage
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


def quorum(bench: Bench) -> Description:
    found = bench.quorum.describe()
    assert found is not None
    [voter] = found.voters
    assert found.high_watermark == voter.end_offset == bench.image.offset + 1
    return found


def voter(found: Description) -> tuple[Uuid, list[tuple[str, str, int]]]:
    """The directory and the endpoints of the only voter."""
    [only] = found.voter_set
    return only.key.directory_id, [tuple(one) for one in only.endpoints]  # type: ignore[misc]


def test_the_version_of_the_quorum_goes_up() -> None:
    bench = Bench(**SETTINGS)
    before = quorum(bench)
    assert voter(before) == (ZERO_UUID, [("CONTROLLER", "127.0.0.1", 9093)])
    assert upgrade(bench, validate_only=True) is None
    assert bench.quorum.kraft_version == 0
    assert upgrade(bench) is None
    assert bench.quorum.kraft_version == 1
    after = quorum(bench)
    assert voter(after) == (bench.quorum.log.directory_id, [("CONTROLLER", "localhost", 9093)])
    # Two control records, and the one that the reply waited for.
    assert after.high_watermark == before.high_watermark + 3
    assert upgrade(bench) is None
    assert quorum(bench).high_watermark == after.high_watermark + 1


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
    assert voter(quorum(bench)) == voter(found)
    assert quorum(bench).epoch == found.epoch + 1
    bench.host.advance(HOUR_MS)
    bench.settle()
    assert bench.names()
    bench.stop()
    bench.start()
    assert bench.quorum.kraft_version == 1
