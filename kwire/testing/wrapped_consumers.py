"""The wrappers of consumers. They record reads, positions, commits and assignments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kwire.testing.observations import ANY_OFFSET, Observations, Partition
from kwire.testing.wrapped_client import WrappedClient, class_of, known_bytes, unique_name

Assignment = Callable[[Iterable[Any]], None]


class WrappedConsumer(WrappedClient):
    """The base of the wrappers of all consumers."""

    def __init__(self, seen: Observations, inner: Any, name: str, group: str) -> None:
        super().__init__(seen, inner, name)
        self._kwire_group = group
        self._kwire_next: dict[Partition, int] = {}
        """The offset after the last record of each partition that the program got."""
        seen.members[group].add(name)

    def _kwire_read(self, found: Iterable[tuple[Partition, int, bytes]]) -> None:
        found = list(found)
        self._kwire_seen.add_reads(self._kwire_name, found, self._kwire_level())
        self._kwire_next.update({partition: offset + 1 for partition, offset, _ in found})

    def _kwire_level(self) -> str:
        return ""

    def _kwire_seek(self, partitions: Iterable[Any], offset: int = ANY_OFFSET) -> None:
        for one in partitions:
            partition = one.topic, one.partition
            self._kwire_next.pop(partition, None)
            self._kwire_seen.add_seek(self._kwire_name, partition, offset)

    def _kwire_assigned(self, partitions: Iterable[Any]) -> None:
        several = [(one.topic, one.partition) for one in partitions]
        self._kwire_seek(partitions)
        self._kwire_seen.add_ownership(self._kwire_group, self._kwire_name, several, assigned=True)

    def _kwire_revoked(self, partitions: Iterable[Any]) -> None:
        several = [(one.topic, one.partition) for one in partitions]
        for partition in several:
            self._kwire_next.pop(partition, None)
        self._kwire_seen.add_ownership(self._kwire_group, self._kwire_name, several, assigned=False)

    def _kwire_release(self) -> None:
        """Record that the consumer gives up all partitions. Not every client calls its listener then."""
        self._kwire_revoked(self._kwire_inner.assignment())

    def _kwire_committed(self, offsets: Mapping[Partition, int]) -> None:
        for partition, offset in offsets.items():
            self._kwire_seen.add_commit(self._kwire_group, partition, offset)

    def _kwire_commit_offsets(self, offsets: Any) -> dict[Partition, int]:
        """Return the offsets of a commit: those that the program passes, or the positions."""
        if offsets is None:
            return dict(self._kwire_next)
        if not isinstance(offsets, Mapping):
            return {}
        return {
            (one.topic, one.partition): int(each if isinstance(each, int) else each[0])
            for one, each in offsets.items()
        }


class _ListenerConsumer(WrappedConsumer):
    """The subscriptions of kafka-python and aiokafka, which take a listener."""

    _kwire_package: str
    _kwire_attribute: str
    """The attribute of the client's subscription state that has the listener."""

    def __init__(self, seen: Observations, inner: Any, name: str, group: str) -> None:
        super().__init__(seen, inner, name, group)
        topics = inner.subscription()
        if topics:  # from the constructor
            listener = getattr(inner._subscription, self._kwire_attribute, None)
            inner.subscribe(topics=list(topics), listener=self._kwire_listener(listener))

    def subscribe(self, topics: Any = (), pattern: Any = None, listener: Any = None) -> Any:
        """Subscribe to topics, and record the assignments."""
        return self._kwire_inner.subscribe(
            topics=topics, pattern=pattern, listener=self._kwire_listener(listener)
        )

    def unsubscribe(self) -> Any:
        """Leave the group."""
        self._kwire_release()
        return self._kwire_inner.unsubscribe()

    def assign(self, partitions: Any) -> Any:
        """Assign partitions without a group."""
        partitions = list(partitions)
        result = self._kwire_inner.assign(partitions)
        self._kwire_seek(partitions)
        return result

    def seek(self, partition: Any, offset: Any) -> Any:
        """Set the position in a partition."""
        result = self._kwire_inner.seek(partition, offset)
        self._kwire_seek([partition], int(getattr(offset, "offset", offset)))
        return result

    def _kwire_listener(self, own: Any) -> Any:
        """Return a listener that records the assignments, and calls the program's listener."""
        module = sys.modules[self._kwire_package]
        base = getattr(module, "AsyncConsumerRebalanceListener", None)
        if base is None or not isinstance(own, base):
            base = module.ConsumerRebalanceListener

        def call(record: Assignment, *names: str) -> Callable[[Any, Any], Any]:
            def on_change(_: Any, partitions: Any) -> Any:
                record(partitions)
                found = next((getattr(own, name) for name in names if hasattr(own, name)), None)
                return None if found is None else found(partitions)

            return on_change

        methods = {
            "on_partitions_assigned": call(self._kwire_assigned, "on_partitions_assigned"),
            "on_partitions_revoked": call(self._kwire_revoked, "on_partitions_revoked"),
            "on_partitions_lost": call(self._kwire_revoked, "on_partitions_lost", "on_partitions_revoked"),
        }
        return type("RecordingListener", (base,), methods)()


class KafkaPythonConsumer(_ListenerConsumer):
    """The wrapper of `kafka.KafkaConsumer`."""

    _kwire_package = "kafka"
    _kwire_attribute = "rebalance_listener"

    def _kwire_level(self) -> str:
        return f"a {self._kwire_inner.config.get('isolation_level', 'read_uncommitted')} consumer"

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next records by partition."""
        found = self._kwire_inner.poll(*args, **kwargs)
        self._kwire_read(_read(one) for several in found.values() for one in several)
        return found

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        found = next(self._kwire_inner)
        self._kwire_read([_read(found)])
        return found

    def commit(self, offsets: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Commit offsets, and wait for the response."""
        committed = self._kwire_commit_offsets(offsets)
        result = self._kwire_inner.commit(offsets, *args, **kwargs)
        self._kwire_committed(committed)
        return result

    def commit_async(self, offsets: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Commit offsets, and return a future."""
        committed = self._kwire_commit_offsets(offsets)
        future = self._kwire_inner.commit_async(offsets, *args, **kwargs)
        future.add_callback(lambda _: self._kwire_committed(committed))
        return future

    def seek_to_beginning(self, *partitions: Any) -> Any:
        """Set the positions to the log start."""
        result = self._kwire_inner.seek_to_beginning(*partitions)
        self._kwire_seek(partitions or self._kwire_inner.assignment())
        return result

    def seek_to_end(self, *partitions: Any) -> Any:
        """Set the positions to the end."""
        result = self._kwire_inner.seek_to_end(*partitions)
        self._kwire_seek(partitions or self._kwire_inner.assignment())
        return result


class AiokafkaConsumer(_ListenerConsumer):
    """The wrapper of `aiokafka.AIOKafkaConsumer`."""

    _kwire_package = "aiokafka"
    _kwire_attribute = "listener"

    def _kwire_level(self) -> str:
        return f"a {getattr(self._kwire_inner, '_isolation_level', 'read_uncommitted')} consumer"

    async def getone(self, *partitions: Any) -> Any:
        """Return the next record."""
        found = await self._kwire_inner.getone(*partitions)
        self._kwire_read([_read(found)])
        return found

    async def getmany(self, *partitions: Any, **kwargs: Any) -> Any:
        """Return the next records by partition."""
        found = await self._kwire_inner.getmany(*partitions, **kwargs)
        self._kwire_read(_read(one) for several in found.values() for one in several)
        return found

    async def stop(self) -> None:
        """Leave the group, and close the consumer."""
        self._kwire_release()
        await self._kwire_inner.stop()

    async def __aexit__(self, *error: Any) -> None:
        await self.stop()

    def __aiter__(self) -> Any:
        self._kwire_inner.__aiter__()
        return self

    async def __anext__(self) -> Any:
        found = await self._kwire_inner.__anext__()
        self._kwire_read([_read(found)])
        return found

    async def commit(self, offsets: Any = None) -> Any:
        """Commit offsets, and wait for the response."""
        committed = self._kwire_commit_offsets(offsets)
        result = await self._kwire_inner.commit(offsets)
        self._kwire_committed(committed)
        return result

    async def seek_to_beginning(self, *partitions: Any) -> Any:
        """Set the positions to the log start."""
        result = await self._kwire_inner.seek_to_beginning(*partitions)
        self._kwire_seek(partitions or self._kwire_inner.assignment())
        return result

    async def seek_to_end(self, *partitions: Any) -> Any:
        """Set the positions to the end."""
        result = await self._kwire_inner.seek_to_end(*partitions)
        self._kwire_seek(partitions or self._kwire_inner.assignment())
        return result

    async def seek_to_committed(self, *partitions: Any) -> Any:
        """Set the positions to the committed offsets."""
        result = await self._kwire_inner.seek_to_committed(*partitions)
        self._kwire_seek(partitions or self._kwire_inner.assignment())
        return result


class ConfluentConsumer(WrappedConsumer):
    """The wrapper of `confluent_kafka.Consumer`."""

    def subscribe(
        self, topics: Any, on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None
    ) -> Any:
        """Subscribe to topics, and record the assignments."""

        def call(record: Assignment, *callbacks: Any) -> Callable[[Any, Any], None]:
            def on_change(_: Any, partitions: Any) -> None:
                record(partitions)
                for callback in callbacks:
                    if callback is not None:
                        callback(self, partitions)
                        return

            return on_change

        callbacks = {
            "on_assign": call(self._kwire_assigned, on_assign),
            "on_revoke": call(self._kwire_revoked, on_revoke),
        }
        if on_lost is not None:
            callbacks["on_lost"] = call(self._kwire_revoked, on_lost)
        return self._kwire_inner.subscribe(topics, **callbacks)

    def assign(self, partitions: Any) -> Any:
        """Assign partitions, with the offsets to start at."""
        result = self._kwire_inner.assign(partitions)
        self._kwire_start(partitions)
        return result

    def incremental_assign(self, partitions: Any) -> Any:
        """Assign more partitions, with the offsets to start at."""
        result = self._kwire_inner.incremental_assign(partitions)
        self._kwire_start(partitions)
        return result

    def seek(self, partition: Any) -> Any:
        """Set the position in a partition."""
        result = self._kwire_inner.seek(partition)
        self._kwire_start([partition])
        return result

    def _kwire_start(self, partitions: Iterable[Any]) -> None:
        for one in partitions:  # negative offsets are logical
            self._kwire_seek([one], one.offset if one.offset >= 0 else ANY_OFFSET)

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next record, an error, or None."""
        found = self._kwire_inner.poll(*args, **kwargs)
        self._kwire_read(_messages([found]))
        return found

    def consume(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next records and errors."""
        found = self._kwire_inner.consume(*args, **kwargs)
        self._kwire_read(_messages(found))
        return found

    def commit(self, *args: Any, **kwargs: Any) -> Any:
        """Commit offsets. Asynchronous commits are not recorded."""
        found = self._kwire_inner.commit(*args, **kwargs)
        self._kwire_committed(
            {
                (one.topic, one.partition): one.offset
                for one in found or ()
                if one.error is None and one.offset >= 0
            }
        )
        return found


CLASSES: Final[dict[tuple[str, str], type[WrappedClient]]] = {
    ("kafka", "KafkaConsumer"): KafkaPythonConsumer,
    ("aiokafka", "AIOKafkaConsumer"): AiokafkaConsumer,
    ("cimpl", "Consumer"): ConfluentConsumer,
}
"""The wrappers, by package and class of the consumer. confluent-kafka's classes are from the module cimpl."""


def wrap_consumer(seen: Observations, consumer: Any, name: str | None, group: str | None) -> Any:
    """Return the wrapper of a consumer. Raises TypeError if the class of the consumer is not supported."""
    kind: Any = class_of(consumer, CLASSES)
    name = unique_name(seen, name, consumer, "consumer")
    config = getattr(consumer, "config", None)
    found = config.get("group_id") if isinstance(config, Mapping) else getattr(consumer, "_group_id", None)
    return kind(seen, consumer, name, group or found or name)


def _read(record: Any) -> tuple[Partition, int, bytes]:
    return (record.topic, record.partition), record.offset, known_bytes(record.value)


def _messages(found: Iterable[Any]) -> list[tuple[Partition, int, bytes]]:
    """Return the records among the results of a poll, without errors."""
    return [
        ((one.topic(), one.partition()), one.offset(), known_bytes(one.value()))
        for one in found
        if one is not None and one.error() is None
    ]
