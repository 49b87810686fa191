"""The topics of the metadata image, in the form that the group coordinator uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kwire.broker.metadata.image import MetadataImage, TopicImage
from kwire.coordinator.ports import Topic
from kwire.wire.primitives import Uuid


class NodeTopics:
    """`TopicsView` of the group coordinator, implemented by a node."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    @property
    def version(self) -> int:
        """The offset of the last metadata record in the image."""
        return self._image().offset

    def by_name(self, name: str) -> Topic | None:
        return _topic(self._image().topics.get(name))

    def by_id(self, topic_id: bytes) -> Topic | None:
        return _topic(self._image().topics_by_id.get(Uuid(topic_id)))

    def names(self) -> Iterable[str]:
        return self._image().topics.keys()

    def racks(self, topic: Topic) -> Sequence[Sequence[str]]:
        """Return the racks of the replicas of each partition, by partition. Missing racks are omitted."""
        image = self._image()
        found = image.topics.get(topic.name)
        partitions = () if found is None else found.partitions
        racks = {broker_id: broker.rack for broker_id, broker in image.brokers.items() if broker.rack}
        return [[racks[replica] for replica in one.replicas if replica in racks] for one in partitions]


def _topic(image: TopicImage | None) -> Topic | None:
    return None if image is None else Topic(image.topic_id, image.name, len(image.partitions))
