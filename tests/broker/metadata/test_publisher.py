"""The publisher alone: committed batches in, images and deltas out."""

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
    RemoveTopicRecord,
    TopicRecord,
)
from kwire.wire.registry import UnknownRecord
from kwire.wire.schema import Message


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=id_of(name))


def id_of(name: str) -> Uuid:
    return Uuid(name.encode().ljust(16, b"-"))


class Bench:
    """A publisher, what it has told, and where the log ends."""

    def __init__(self) -> None:
        self.publisher = MetadataPublisher(VirtualHost())
        self.told: list[tuple[int, set[str]]] = []
        self.end_offset = 0
        self.publisher.subscribe(self.hear)

    def hear(self, image: MetadataImage, delta: MetadataDelta) -> None:
        assert image is self.publisher.image
        self.told.append((image.offset, {created.name for created in delta.created_topics}))

    def batch(self, *records: Message, delta: MetadataDelta | None = None) -> MetadataBatch:
        base_offset, self.end_offset = self.end_offset, self.end_offset + len(records)
        return MetadataBatch(base_offset, self.end_offset - 1, 3, list(records), delta=delta)

    def commit(self, *records: Message) -> None:
        self.publisher.handle_commit([self.batch(*records)])

    @property
    def topics(self) -> set[str]:
        return set(self.publisher.image.topics)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_batches_that_come_together_are_one_change(bench: Bench) -> None:
    assert bench.publisher.is_empty
    bench.publisher.handle_commit([bench.batch(topic("a"), topic("b")), bench.batch(topic("c"))])
    assert bench.told == [(2, {"a", "b", "c"})]
    assert (bench.publisher.image.offset, bench.publisher.image.epoch) == (2, 3)
    assert not bench.publisher.is_empty


def test_an_image_that_was_given_out_never_changes(bench: Bench) -> None:
    bench.commit(topic("a"))
    before = bench.publisher.image
    bench.commit(topic("b"))
    assert set(before.topics) == {"a"}
    assert bench.topics == {"a", "b"}


def test_control_batches_move_the_offset_alone(bench: Bench) -> None:
    bench.publisher.handle_commit([MetadataBatch(0, 0, 1, [])])
    assert bench.told == [(0, set())]
    assert bench.publisher.is_empty


def test_what_was_decided_here_is_not_made_again(bench: Bench) -> None:
    bench.commit(topic("a"))
    delta = MetadataDelta(bench.publisher.image)
    delta.replay(topic("b"))
    decided = delta.apply(1, 3)
    bench.publisher.handle_commit([bench.batch(topic("b"), delta=delta)])
    assert bench.publisher.image is decided
    assert bench.told == [(0, {"a"}), (1, {"b"})]


def test_what_was_decided_upon_something_else_is_made_again(bench: Bench) -> None:
    delta = MetadataDelta(bench.publisher.image)
    delta.replay(topic("b"))
    bench.commit(topic("a"))
    bench.publisher.handle_commit([bench.batch(topic("b"), delta=delta)])
    assert bench.topics == {"a", "b"}


def test_a_transaction_is_held_back_until_it_ends(bench: Bench) -> None:
    bench.commit(BeginTransactionRecord(name="t"), topic("a"))
    assert bench.publisher.is_transaction_open
    assert bench.publisher.is_empty
    assert bench.topics == set()
    bench.commit(topic("b"))
    bench.commit(EndTransactionRecord())
    assert not bench.publisher.is_transaction_open
    assert bench.topics == {"a", "b"}
    assert bench.told[-1] == (3, {"a", "b"})


def test_who_aborts_a_transaction_may_have_decided_so_here(bench: Bench) -> None:
    bench.commit(BeginTransactionRecord(name="t"), topic("a"))
    delta = MetadataDelta(bench.publisher.image)
    delta.replay(AbortTransactionRecord())
    bench.publisher.handle_commit([bench.batch(AbortTransactionRecord(), delta=delta)])
    assert not bench.publisher.is_transaction_open
    assert bench.topics == set()


def test_what_contradicts_the_log_is_told_with_its_place(bench: Bench) -> None:
    bench.commit(topic("a"))
    before = bench.publisher.image
    with pytest.raises(CorruptMetadata, match="metadata at offset 1: removal of an unknown topic"):
        bench.commit(RemoveTopicRecord(topic_id=id_of("b")))
    assert bench.publisher.image is before
    with pytest.raises(CorruptMetadata, match=r"metadata at offset 2: not a metadata record.*record_type=99"):
        bench.commit(UnknownRecord(record_type=99, version=0, value=b"\x01\x63\x00"))
    assert bench.publisher.image is before


def test_a_level_of_a_release_to_come_is_refused(bench: Bench) -> None:
    with pytest.raises(CorruptMetadata, match=r"the cluster has group\.version at level 9"):
        bench.commit(FeatureLevelRecord(name="group.version", feature_level=9))
    assert bench.publisher.image.features == {}


def test_who_fails_to_follow_holds_up_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(image: MetadataImage, delta: MetadataDelta) -> None:
        raise RuntimeError("it cannot")

    late: list[int] = []
    bench.publisher.subscribe(fail)
    bench.publisher.subscribe(lambda image, delta: late.append(image.offset))
    bench.commit(topic("a"))
    assert late == [0]
    assert "Subscriber failed to apply a metadata change" in caplog.text


def test_a_closed_publisher_tells_nobody(bench: Bench) -> None:
    bench.publisher.close()
    bench.commit(topic("a"))
    assert bench.told == []
    assert bench.topics == {"a"}


def test_a_snapshot_takes_the_place_of_all_and_tells_what_is_different(bench: Bench) -> None:
    bench.commit(
        topic("kept"), topic("gone"), topic("anew"), FeatureLevelRecord(name="group.version", feature_level=1)
    )
    bench.commit(BeginTransactionRecord(name="cut short"), topic("never"))
    deltas: list[MetadataDelta] = []
    bench.publisher.subscribe(lambda image, delta: deltas.append(delta))
    again = TopicRecord(name="anew", topic_id=id_of("another"))
    said = [topic("kept"), again, topic("new"), FeatureLevelRecord(name="group.version", feature_level=1)]
    bench.publisher.handle_snapshot([MetadataBatch(99, 99, 7, [record]) for record in said])
    [delta] = deltas
    assert {created.topic_id for created in delta.created_topics} == {id_of("another"), id_of("new")}
    assert {deleted.name for deleted in delta.deleted_topics} == {"gone", "anew"}
    assert not delta.altered_topics
    assert not delta.features_changed
    assert bench.topics == {"kept", "anew", "new"}
    assert (bench.publisher.image.offset, bench.publisher.image.epoch) == (99, 7)
    assert not bench.publisher.is_transaction_open


def test_a_snapshot_that_makes_no_sense_changes_nothing(bench: Bench) -> None:
    bench.commit(topic("a"))
    with pytest.raises(CorruptMetadata):
        bench.publisher.handle_snapshot([MetadataBatch(9, 9, 3, [RemoveTopicRecord(topic_id=id_of("b"))])])
    assert bench.topics == {"a"}
