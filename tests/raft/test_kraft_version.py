"""A quorum whose voters stood in the configuration becomes a dynamic one while it runs (KIP-853)."""

from __future__ import annotations

from broker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from broker.raft.service import Quorum
from kwire.primitives import ZERO_UUID
from tests.raft.test_snapshots import HOUR_MS, Bench

SETTINGS = {
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


def upgrade(bench: Bench, *, validate_only: bool = False) -> object:
    updates = {"kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE)}
    return bench.run(UpdateFeatures(updates, validate_only, bench.metadata.kraft_version))


def quorum(bench: Bench) -> Quorum:
    found = bench.metadata.quorum()
    assert found.high_watermark == found.log_end_offset == bench.metadata.image.offset + 1
    return found


def test_the_version_of_the_quorum_goes_up() -> None:
    bench = Bench(**SETTINGS)
    before = quorum(bench)
    assert (before.directory_id, before.endpoints) == (ZERO_UUID, [("CONTROLLER", "127.0.0.1", 9093)])
    assert upgrade(bench, validate_only=True) is None
    assert bench.metadata.kraft_version == 0
    assert upgrade(bench) is None
    assert bench.metadata.kraft_version == 1
    after = quorum(bench)
    assert after.directory_id != ZERO_UUID
    assert after.endpoints == [("CONTROLLER", "localhost", 9093)]
    # Two control records, and the one that the reply waited for.
    assert after.log_end_offset == before.log_end_offset + 3
    assert upgrade(bench) is None
    assert quorum(bench).log_end_offset == after.log_end_offset + 1


def test_it_stays_up() -> None:
    bench = Bench(**SETTINGS)
    assert upgrade(bench) is None
    found = quorum(bench)
    bench.crash()
    assert bench.metadata.kraft_version == 1
    assert quorum(bench).directory_id == found.directory_id
    assert quorum(bench).leader_epoch == found.leader_epoch + 1
    bench.host.advance(HOUR_MS)
    bench.settle()
    assert bench.names()
    bench.stop()
    bench.start()
    assert bench.metadata.kraft_version == 1
