"""The metadata publisher in isolation: it receives committed batches and publishes images and deltas."""

from __future__ import annotations

import pytest

from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.publisher import MetadataPublisher
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kwire.wire.registry import UnknownRecord
from kwire.wire.schema import Message


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=id_of(name))


def id_of(name: str) -> Uuid:
    return Uuid(name.encode().ljust(16, b"-"))


class PublisherHarness:
    """A publisher, the changes that it published, and the end offset of the log."""

    def __init__(self) -> None:
        self.publisher = MetadataPublisher(VirtualHost())
        self.published: list[tuple[int, set[str]]] = []
        self.end_offset = 0
        self.publisher.subscribe(self.record)

    def record(self, image: MetadataImage, delta: MetadataDelta) -> None:
        assert image is self.publisher.image
        self.published.append((image.offset, {created.name for created in delta.created_topics}))

    def batch(self, *records: Message, delta: MetadataDelta | None = None) -> MetadataBatch:
        base_offset, self.end_offset = self.end_offset, self.end_offset + len(records)
        return MetadataBatch(base_offset, self.end_offset - 1, 3, list(records), delta=delta)

    def commit(self, *records: Message) -> None:
        self.publisher.handle_commit([self.batch(*records)])

    @property
    def topics(self) -> set[str]:
        return set(self.publisher.image.topics)


@pytest.fixture
def harness() -> PublisherHarness:
    return PublisherHarness()


def test_batches_committed_together_are_published_as_one_change(harness: PublisherHarness) -> None:
    harness.publisher.handle_commit([harness.batch(topic("a"), topic("b")), harness.batch(topic("c"))])
    assert harness.published == [(2, {"a", "b", "c"})]
    assert (harness.publisher.image.offset, harness.publisher.image.epoch) == (2, 3)


def test_a_published_image_never_changes(harness: PublisherHarness) -> None:
    harness.commit(topic("a"))
    before = harness.publisher.image
    harness.commit(topic("b"))
    assert set(before.topics) == {"a"}
    assert harness.topics == {"a", "b"}


def test_control_batches_advance_only_the_offset(harness: PublisherHarness) -> None:
    harness.publisher.handle_commit([MetadataBatch(0, 0, 1, [])])
    assert harness.published == [(0, set())]


def test_the_delta_of_the_active_controller_is_reused(harness: PublisherHarness) -> None:
    harness.commit(topic("a"))
    delta = MetadataDelta(harness.publisher.image)
    delta.replay(topic("b"))
    decided = delta.apply(1, 3)
    harness.publisher.handle_commit([harness.batch(topic("b"), delta=delta)])
    assert harness.publisher.image is decided
    assert harness.published == [(0, {"a"}), (1, {"b"})]


def test_a_delta_of_another_image_is_replaced(harness: PublisherHarness) -> None:
    delta = MetadataDelta(harness.publisher.image)
    delta.replay(topic("b"))
    harness.commit(topic("a"))
    harness.publisher.handle_commit([harness.batch(topic("b"), delta=delta)])
    assert harness.topics == {"a", "b"}


def test_a_metadata_transaction_is_published_when_it_ends(harness: PublisherHarness) -> None:
    harness.commit(BeginTransactionRecord(name="t"), topic("a"))
    assert harness.publisher.is_transaction_open
    assert harness.topics == set()
    harness.commit(topic("b"))
    harness.commit(EndTransactionRecord())
    assert not harness.publisher.is_transaction_open
    assert harness.topics == {"a", "b"}
    assert harness.published[-1] == (3, {"a", "b"})


def test_the_active_controller_can_abort_a_transaction(harness: PublisherHarness) -> None:
    harness.commit(BeginTransactionRecord(name="t"), topic("a"))
    delta = MetadataDelta(harness.publisher.image)
    delta.replay(AbortTransactionRecord())
    harness.publisher.handle_commit([harness.batch(AbortTransactionRecord(), delta=delta)])
    assert not harness.publisher.is_transaction_open
    assert harness.topics == set()


def test_the_error_for_corrupt_metadata_contains_the_offset(harness: PublisherHarness) -> None:
    harness.commit(topic("a"))
    before = harness.publisher.image
    with pytest.raises(CorruptMetadata, match="metadata at offset 1: removal of an unknown topic"):
        harness.commit(RemoveTopicRecord(topic_id=id_of("b")))
    assert harness.publisher.image is before
    with pytest.raises(CorruptMetadata, match=r"metadata at offset 2: not a metadata record.*record_type=99"):
        harness.commit(UnknownRecord(record_type=99, version=0, value=b"\x01\x63\x00"))
    assert harness.publisher.image is before


def test_a_gap_in_partition_numbers_is_corrupt_metadata(harness: PublisherHarness) -> None:
    """A gap is found only after all records of the commit have been replayed."""
    harness.commit(topic("a"))
    before = harness.publisher.image
    partition = PartitionRecord(partition_id=1, topic_id=id_of("a"), replicas=[1], isr=[1], leader=1)
    with pytest.raises(CorruptMetadata, match="metadata at offset 1: partition numbers of topic a"):
        harness.commit(partition)
    assert harness.publisher.image is before


def test_a_feature_level_of_a_future_release_is_refused(harness: PublisherHarness) -> None:
    with pytest.raises(CorruptMetadata, match=r"the cluster has group\.version at level 9"):
        harness.commit(FeatureLevelRecord(name="group.version", feature_level=9))
    assert harness.publisher.image.features == {}


def test_a_failing_subscriber_does_not_stop_the_others(
    harness: PublisherHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(image: MetadataImage, delta: MetadataDelta) -> None:
        raise RuntimeError("planned failure")

    late: list[int] = []
    harness.publisher.subscribe(fail)
    harness.publisher.subscribe(lambda image, delta: late.append(image.offset))
    harness.commit(topic("a"))
    assert late == [0]
    assert "failed to apply the change at metadata offset" in caplog.text


def test_a_closed_publisher_notifies_no_subscriber(harness: PublisherHarness) -> None:
    harness.publisher.close()
    harness.commit(topic("a"))
    assert harness.published == []
    assert harness.topics == {"a"}


def test_a_snapshot_replaces_the_image_and_publishes_the_difference(harness: PublisherHarness) -> None:
    harness.commit(
        topic("kept"), topic("gone"), topic("anew"), FeatureLevelRecord(name="group.version", feature_level=1)
    )
    harness.commit(BeginTransactionRecord(name="cut short"), topic("never"))
    deltas: list[MetadataDelta] = []
    harness.publisher.subscribe(lambda image, delta: deltas.append(delta))
    again = TopicRecord(name="anew", topic_id=id_of("another"))
    records = [topic("kept"), again, topic("new"), FeatureLevelRecord(name="group.version", feature_level=1)]
    harness.publisher.handle_snapshot([MetadataBatch(99, 99, 7, [record]) for record in records])
    [delta] = deltas
    assert {created.topic_id for created in delta.created_topics} == {id_of("another"), id_of("new")}
    assert {deleted.name for deleted in delta.deleted_topics} == {"gone", "anew"}
    assert not delta.altered_topics
    assert not delta.features_changed
    assert harness.topics == {"kept", "anew", "new"}
    assert (harness.publisher.image.offset, harness.publisher.image.epoch) == (99, 7)
    assert not harness.publisher.is_transaction_open


def test_a_corrupt_snapshot_changes_nothing(harness: PublisherHarness) -> None:
    harness.commit(topic("a"))
    with pytest.raises(CorruptMetadata):
        harness.publisher.handle_snapshot([MetadataBatch(9, 9, 3, [RemoveTopicRecord(topic_id=id_of("b"))])])
    assert harness.topics == {"a"}
