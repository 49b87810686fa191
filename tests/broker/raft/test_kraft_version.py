"""Upgrade from static to dynamic voters while the quorum runs (KIP-853)."""

from __future__ import annotations

from kwire.broker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kwire.broker.metadata.batches import control_type
from kwire.broker.raft.leading import Description
from kwire.wire.batch import batches, records
from kwire.wire.codegen import decode
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.raft import LeaderChangeMessage
from tests.broker.raft.test_snapshots import DIRECTORY, HOUR_MS, MetadataHarness

SETTINGS = {
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


def upgrade(harness: MetadataHarness, *, validate_only: bool = False) -> object:
    updates = {"kraft.version": FeatureUpdate(1, UpgradeType.UPGRADE)}
    return harness.run(UpdateFeatures(updates, validate_only, harness.quorum.kraft_version))


def describe_quorum(harness: MetadataHarness) -> Description:
    found = harness.quorum.describe()
    assert found is not None
    [voter] = found.voters
    assert found.high_watermark == voter.end_offset == harness.image.offset + 1
    return found


def only_voter(found: Description) -> tuple[Uuid, list[tuple[str, str, int]]]:
    """Return the directory and the endpoints of the only voter."""
    [only] = found.voter_set
    return only.key.directory_id, [tuple(one) for one in only.endpoints]  # type: ignore[misc]


def test_upgrade_to_kraft_version_1_writes_the_voters() -> None:
    harness = MetadataHarness(**SETTINGS)
    before = describe_quorum(harness)
    assert only_voter(before) == (ZERO_UUID, [("CONTROLLER", "127.0.0.1", 9093)])
    assert upgrade(harness, validate_only=True) is None
    assert harness.quorum.kraft_version == 0
    assert upgrade(harness) is None
    assert harness.quorum.kraft_version == 1
    after = describe_quorum(harness)
    assert only_voter(after) == (
        harness.quorum.log.directory_id,
        [("CONTROLLER", "localhost", 9093)],
    )
    # Two control records, and the record that the response waits for.
    assert after.high_watermark == before.high_watermark + 3
    assert upgrade(harness) is None
    assert describe_quorum(harness).high_watermark == after.high_watermark + 1


def test_leader_change_messages_have_version_0() -> None:
    """Kafka's metadata tools read no later version."""
    harness = MetadataHarness(**SETTINGS)
    upgrade(harness)
    harness.stop()
    harness.start()
    found = []
    for name in harness.names(".log"):
        data = harness.disk.read(f"{DIRECTORY}/{name}")
        for position, header in batches(data):
            found += [
                decode(LeaderChangeMessage, 0, record.value)
                for record in records(data, position, header, max_bytes=1 << 20)
                if record.value is not None and control_type(record.key) == 2 and header.is_control
            ]
    assert [(message.version, message.leader_id) for message, _ in found] == [(0, 1), (0, 1)]
    assert [voter.voter_directory_id for message, _ in found for voter in message.voters] == [ZERO_UUID] * 2


def test_kraft_version_survives_a_crash_and_a_snapshot() -> None:
    harness = MetadataHarness(**SETTINGS)
    assert upgrade(harness) is None
    found = describe_quorum(harness)
    harness.crash()
    assert harness.quorum.kraft_version == 1
    assert only_voter(describe_quorum(harness)) == only_voter(found)
    assert describe_quorum(harness).epoch == found.epoch + 1
    harness.host.advance(HOUR_MS)
    harness.settle()
    assert harness.names()
    harness.stop()
    harness.start()
    assert harness.quorum.kraft_version == 1
