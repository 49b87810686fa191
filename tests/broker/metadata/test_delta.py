"""Changes from one metadata image to the next, and isolation of the earlier image."""

from __future__ import annotations

import pytest

from kwire.broker.metadata.delta import MetadataDelta, merge_change
from kwire.broker.metadata.image import MetadataImage, PartitionImage
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

TOPIC_ID, OTHER_ID = Uuid(b"t" * 16), Uuid(b"u" * 16)
TOPIC = 2


def topic(name: str = "t", topic_id: Uuid = TOPIC_ID, partitions: int = 1) -> list[object]:
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            PartitionRecord(
                partition_id=index, topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0
            )
            for index in range(partitions)
        ),
    ]


def apply_records(image: MetadataImage, *records: object) -> tuple[MetadataImage, MetadataDelta]:
    delta = MetadataDelta(image)
    delta.replay_all(records)
    return delta.apply(image.offset + len(records), 1), delta


def test_applying_a_delta_does_not_change_the_previous_image() -> None:
    empty = MetadataImage()
    first, _ = apply_records(empty, *topic())
    second, _ = apply_records(
        first, PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=2, isr=[2])
    )
    assert (empty.topics, empty.offset) == ({}, -1)
    assert [image.topics["t"].partitions[0].leader for image in (first, second)] == [1, 2]
    assert first.brokers is second.brokers, "unchanged parts are shared"


def test_partitions_with_equal_state_share_one_object() -> None:
    first, _ = apply_records(MetadataImage(), *topic(partitions=3), *topic("u", OTHER_ID))
    zero, one, two = first.topics["t"].partitions
    assert zero is one is two is first.topics["u"].partitions[0]
    second, _ = apply_records(first, PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=2))
    assert [partition.leader for partition in second.topics["t"].partitions] == [1, 2, 1], "only one changes"


def test_delta_lists_created_altered_and_deleted_topics() -> None:
    first, created = apply_records(MetadataImage(), *topic(), *topic("u", OTHER_ID))
    assert sorted(one.name for one in created.created_topics) == ["t", "u"]
    assert not created.altered_topics
    assert not created.deleted_topics
    second, altered = apply_records(first, *topic("t", TOPIC_ID, 2)[2:], RemoveTopicRecord(topic_id=OTHER_ID))
    [change] = altered.altered_topics
    assert change.before is first.topics["t"]
    assert change.after is second.topics["t"]
    assert len(second.topics["t"].partitions) == 2
    assert altered.deleted_topics == [first.topics["u"]]
    assert list(second.topics_by_id) == [TOPIC_ID]


def test_a_topic_recreated_with_the_same_name_is_a_new_topic() -> None:
    first, _ = apply_records(
        MetadataImage(),
        *topic(),
        ConfigRecord(resource_type=TOPIC, resource_name="t", name="retention.ms", value="1"),
    )
    second, delta = apply_records(first, RemoveTopicRecord(topic_id=TOPIC_ID), *topic("t", OTHER_ID))
    assert [one.topic_id for one in delta.deleted_topics] == [TOPIC_ID]
    assert [one.topic_id for one in delta.created_topics] == [OTHER_ID]
    assert second.config(TOPIC, "t") == {}, "the settings of the old topic are gone"


def test_between_returns_the_delta_of_two_images() -> None:
    first, _ = apply_records(
        MetadataImage(), *topic(), FeatureLevelRecord(name="group.version", feature_level=1)
    )
    second, _ = apply_records(
        first,
        *topic("u", OTHER_ID),
        RemoveTopicRecord(topic_id=TOPIC_ID),
        ConfigRecord(resource_type=TOPIC, resource_name="u", name="retention.ms", value="1"),
    )
    delta = MetadataDelta.between(first, second)
    assert [one.name for one in delta.created_topics] == ["u"]
    assert [one.name for one in delta.deleted_topics] == ["t"]
    assert set(delta.changed_configs) == {(TOPIC, "u")}
    assert MetadataDelta.between(second, second).topic_changes == []


def test_a_partition_change_without_a_leader_keeps_the_leader_epoch() -> None:
    before = PartitionImage((1, 2), (1, 2), leader=1, leader_epoch=4, partition_epoch=7)
    smaller = merge_change(before, PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1]))
    assert (smaller.isr, smaller.leader_epoch, smaller.partition_epoch) == ((1,), 4, 8)
    for leader in (2, 1, -1):
        change = PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=leader)
        changed = merge_change(before, change)
        assert (changed.leader, changed.leader_epoch, changed.partition_epoch) == (leader, 5, 8)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (PartitionChangeRecord(partition_id=0, topic_id=OTHER_ID, leader=1), "of an unknown topic"),
        (PartitionChangeRecord(partition_id=5, topic_id=TOPIC_ID, leader=1), "which does not exist"),
        (RemoveTopicRecord(topic_id=OTHER_ID), "removal of an unknown topic"),
        (TopicRecord(name="t", topic_id=OTHER_ID), "already exists with another id"),
        (PartitionRecord(partition_id=2, topic_id=TOPIC_ID), "have gaps"),
        (UnregisterBrokerRecord(broker_id=7, broker_epoch=0), "which is not registered"),
        (object(), "not a metadata record"),
    ],
)
def test_a_record_that_contradicts_the_image_is_refused(record: object, text: str) -> None:
    image, _ = apply_records(MetadataImage(), *topic())
    with pytest.raises(ValueError, match=text):
        apply_records(image, record)
