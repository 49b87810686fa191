"""Client instances, which get telemetry subscriptions and push metrics. KIP-714.

This module is a state machine without I/O. It is called with the time, and with subscriptions, requests and
closed connections. It decides as Apache Kafka's `ClientMetricsManager` does. A client instance keeps its id
when it connects to another broker. So this broker may drop an instance: when its connection is closed, when
it expires, or when there are too many instances.

A client may push metrics to another broker than the one that returned its subscription. So the subscription
id must be the same as Kafka's, which depends on the iteration order of a Java hash set.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.client_metrics import ClientMetricsSubscription, parse_subscription
from kwire.wire.compression import Codec
from kwire.wire.crc import crc32c
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java_strings import hash_set_order
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, Uuid, uuid_to_text

MAX_INSTANCES: Final = 16_384
MIN_EXPIRY_MS: Final = 60_000
EXPIRY_INTERVALS: Final = 3
NEVER_MS: Final = -(1 << 62)
ALL: Final = "*"
CODECS: Final = frozenset(Codec)
DEFAULT_INTERVAL_MS: Final = parse_subscription({}).interval_ms
ONE_UUID: Final = Uuid(bytes(15) + b"\x01")
RETRIABLE_AT_ONCE: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
"""The errors after which a client may request its subscription again at once."""


class ClientMetadata(NamedTuple):
    """The metadata of a client, from a request and its connection."""

    client_id: str
    """The client id. It is empty if the request had none."""
    software_name: str
    software_version: str
    address: str
    port: int
    connection: int

    def selectors(self, instance_id: Uuid) -> Mapping[str, str]:
        """Return the values that the match patterns of subscriptions are compared with."""
        return {
            "client_instance_id": uuid_to_text(instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.address,
            "client_source_port": str(self.port),
        }


class ClientInstance:
    """A client instance, with its subscription and the times of its requests."""

    __slots__ = (
        "client",
        "connection",
        "expires_ms",
        "id",
        "interval_ms",
        "is_terminating",
        "last_error",
        "last_get_ms",
        "last_push_ms",
        "metrics",
        "subscription_id",
        "version",
    )

    def __init__(
        self, instance_id: Uuid, client: ClientMetadata, metrics: list[str], interval_ms: int, version: int
    ) -> None:
        self.id = instance_id
        self.client = client
        """The client's metadata from the first request of the instance."""
        self.metrics = metrics
        self.interval_ms = interval_ms
        self.version = version
        """The version of the subscriptions from which `metrics` and `interval_ms` were computed."""
        self.subscription_id = subscription_id(metrics, interval_ms, instance_id)
        self.connection = client.connection
        self.expires_ms = NEVER_MS
        self.last_get_ms = NEVER_MS
        """The time at which the instance last got its subscription."""
        self.last_push_ms = NEVER_MS
        self.is_terminating = False
        self.last_error = ErrorCode.NONE

    @property
    def expiry_ms(self) -> int:
        """The time in ms after which the instance expires if it sends no request."""
        return max(MIN_EXPIRY_MS, EXPIRY_INTERVALS * self.interval_ms)

    def record_get(self, now_ms: int) -> bool:
        """Record a request for the subscription. Return whether the push interval has passed.

        After an error in `RETRIABLE_AT_ONCE`, always return True.
        """
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return self.last_error in RETRIABLE_AT_ONCE
        self.last_get_ms = now_ms
        return True

    def record_push(self, now_ms: int) -> bool:
        """Record a push. Return whether the push interval has passed.

        Always return True for the first push after a request for the subscription: the client sends that push
        after a random part of the interval (jitter).
        """
        if self.last_get_ms <= self.last_push_ms and now_ms - self.last_push_ms < self.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


def subscription_id(metrics: list[str], interval_ms: int, instance_id: Uuid) -> int:
    """Return the subscription id of a client instance, by Kafka's formula."""
    value = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    for at in range(0, 16, 4):
        value ^= int.from_bytes(instance_id[at : at + 4], "big")
    return value - (1 << 32) if value >> 31 else value


class ClientInstances:
    """All client instances of a broker, and the client metrics subscriptions."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._subscriptions: dict[str, ClientMetricsSubscription] = {}
        self._version = 0
        self._instances: OrderedDict[Uuid, ClientInstance] = OrderedDict()
        self._by_connection: dict[int, Uuid] = {}

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def has_subscriptions(self) -> bool:
        """Whether there is a valid client metrics subscription."""
        return bool(self._subscriptions)

    def subscribe(self, name: str, subscription: ClientMetricsSubscription | None) -> None:
        """Set a subscription; None deletes it. Client instances get the change on their next request."""
        if subscription is not None:
            self._subscriptions[name] = subscription
        elif self._subscriptions.pop(name, None) is None:
            return
        self._version += 1

    def get(self, instance_id: Uuid, client: ClientMetadata, now_ms: int) -> ClientInstance:
        """Return the instance with its subscription. An `instance_id` of 0 creates an instance.

        Raises ApiError THROTTLING_QUOTA_EXCEEDED if the request comes too early.
        """
        instance = self._instance(self._new_id() if instance_id == ZERO_UUID else instance_id, client, now_ms)
        if not instance.record_get(now_ms):
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.last_error = ErrorCode.NONE
        return instance

    def push(
        self,
        instance_id: Uuid,
        client: ClientMetadata,
        now_ms: int,
        *,
        of_subscription: int,
        terminating: bool,
        compression: int,
        is_too_large: bool,
    ) -> ClientInstance:
        """Check whether a push can be accepted. Return the client instance.

        `of_subscription` is the subscription id in the push. Raises ApiError INVALID_REQUEST,
        THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE or
        TELEMETRY_TOO_LARGE.
        """
        if instance_id in (ZERO_UUID, ONE_UUID):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        instance = self._instance(instance_id, client, now_ms)
        try:
            if instance.is_terminating:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            if not instance.record_push(now_ms) and not terminating:
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            if of_subscription != instance.subscription_id:
                raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
            if compression not in CODECS:
                raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            if is_too_large:
                raise ApiError(ErrorCode.TELEMETRY_TOO_LARGE)
        except ApiError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = terminating
        instance.last_error = ErrorCode.NONE
        return instance

    def disconnected(self, connection: int) -> Uuid | None:
        """Remove the instance that got its subscription over this connection. Return its id, or None."""
        gone = self._by_connection.pop(connection, None)
        if gone is not None:
            self._instances.pop(gone, None)
        return gone

    def expire(self, now_ms: int) -> None:
        for instance in [one for one in self._instances.values() if one.expires_ms <= now_ms]:
            self._forget(instance)

    def _forget(self, instance: ClientInstance) -> None:
        self._by_connection.pop(instance.connection, None)
        self._instances.pop(instance.id, None)

    def _new_id(self) -> Uuid:
        while (made := new_uuid(self._rng)) in self._instances:
            pass
        return made

    def _instance(self, instance_id: Uuid, client: ClientMetadata, now_ms: int) -> ClientInstance:
        """Return the instance with this id, with the current subscriptions. Create it if necessary."""
        known = self._instances.get(instance_id)
        if known is not None and known.expires_ms <= now_ms:
            self._forget(known)
            known = None
        if known is None or known.version < self._version:
            known = self._subscribed(instance_id, client if known is None else known.client)
            self._instances[instance_id] = known
            self._by_connection[client.connection] = instance_id
            if len(self._instances) > MAX_INSTANCES:
                self._instances.popitem(last=False)
        self._instances.move_to_end(instance_id)
        known.connection = client.connection
        known.expires_ms = now_ms + known.expiry_ms
        return known

    def _subscribed(self, instance_id: Uuid, client: ClientMetadata) -> ClientInstance:
        metrics: list[str] = []
        interval_ms = DEFAULT_INTERVAL_MS
        selectors = client.selectors(instance_id)
        for subscription in self._subscriptions.values():
            if subscription.matches(selectors):
                # When Java copies a list into a set, the set gets a capacity for all elements of the list.
                count = len(subscription.metrics)
                metrics += hash_set_order(subscription.metrics, max(16, int(count / 0.75) + 1))
                interval_ms = min(interval_ms, subscription.interval_ms)
        metrics = [ALL] if ALL in metrics else hash_set_order(metrics)
        return ClientInstance(instance_id, client, metrics, interval_ms, self._version)
