"""The life cycle of a broker in its cluster, from registration to controlled shutdown. KIP-631.

- STARTING: the broker is not registered.
- REGISTERED: the controller has written the registration and assigned a broker epoch.
- CAUGHT_UP: the local metadata includes the registration, so the broker can open its logs.
- OPEN: the logs are open, and the replicas are leaders or followers.
- UNFENCED: the broker may lead partitions, and clients may connect.
- CONTROLLED_SHUTDOWN: the controller moves the broker's leaders to other brokers.
- STOPPED: the broker may stop.

The broker sends heartbeats to the active controller, on this node or another one. A heartbeat contains the
state that the broker wants, and the response contains the state that the controller allows. One request is in
flight at a time. While there is no active controller, the request waits for one (`RemoteController`). Failed
requests are retried with exponential backoff as in Apache Kafka, but heartbeats are sent at least once per
heartbeat interval. A new active controller ends the backoff.

If the session times out, the broker is only fenced: the next heartbeat unfences the broker. If the metadata
shows that the broker was fenced after failed heartbeats, the broker sends a heartbeat at once. If the
controller no longer knows the registration, the broker registers again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final

from kwire.broker.controller.commands import BrokerHeartbeat, BrokerHeartbeatReply, RegisterBroker
from kwire.broker.controller.port import ControllerPort
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import CORDONED_LEVEL, DIRECTORIES_LEVEL
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.host.host import Host, InternodeTime, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

RETRY_BACKOFF_MS: Final = 100
"""The backoff after the first error of the controller. It doubles with each further error."""
RETRY_JITTER: Final = 0.02
CATCH_UP_INTERVAL_MS: Final = 10
"""The heartbeat interval while the broker waits only for its metadata to catch up."""
FIRST_SHUTDOWN_INTERVAL_MS: Final = 50
"""The pause after the first heartbeat of a controlled shutdown. Most shutdowns need no longer pause."""
SHUTDOWN_INTERVAL_MS: Final = 500
"""The interval of further heartbeats, while the shutdown waits until other brokers have the new metadata."""
SESSION_END_INTERVAL_MS: Final = 500
"""The interval of registration attempts while the session of the broker's previous run has not timed out.

Even after a clean shutdown, Kafka's controllers wait until that session times out. With exponential backoff,
the registration could take up to twice as long.
"""
REGISTRATION_LOST: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
"""The errors with which the controller reports that it no longer knows the registration."""


class LifecycleStage(Enum):
    """A stage in the life cycle of a broker."""

    STARTING = auto()
    REGISTERED = auto()
    CAUGHT_UP = auto()
    OPEN = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    STOPPED = auto()


class LifecycleEvent(Enum):
    """An event that moves the broker to another stage."""

    REGISTRATION_WRITTEN = auto()
    REGISTRATION_SEEN = auto()
    OPENED = auto()
    UNFENCING_WRITTEN = auto()
    SHUTDOWN_REQUESTED = auto()
    SHUTDOWN_ALLOWED = auto()


TRANSITIONS: Final[dict[LifecycleStage, dict[LifecycleEvent, LifecycleStage]]] = {
    LifecycleStage.STARTING: {
        LifecycleEvent.REGISTRATION_WRITTEN: LifecycleStage.REGISTERED,
        LifecycleEvent.SHUTDOWN_REQUESTED: LifecycleStage.STOPPED,
    },
    LifecycleStage.REGISTERED: {
        LifecycleEvent.REGISTRATION_SEEN: LifecycleStage.CAUGHT_UP,
        LifecycleEvent.SHUTDOWN_REQUESTED: LifecycleStage.STOPPED,
    },
    LifecycleStage.CAUGHT_UP: {
        LifecycleEvent.OPENED: LifecycleStage.OPEN,
        LifecycleEvent.SHUTDOWN_REQUESTED: LifecycleStage.STOPPED,
    },
    LifecycleStage.OPEN: {
        LifecycleEvent.UNFENCING_WRITTEN: LifecycleStage.UNFENCED,
        LifecycleEvent.SHUTDOWN_REQUESTED: LifecycleStage.STOPPED,
    },
    LifecycleStage.UNFENCED: {LifecycleEvent.SHUTDOWN_REQUESTED: LifecycleStage.CONTROLLED_SHUTDOWN},
    LifecycleStage.CONTROLLED_SHUTDOWN: {LifecycleEvent.SHUTDOWN_ALLOWED: LifecycleStage.STOPPED},
    LifecycleStage.STOPPED: {},
}
"""All legal transitions; any other is a bug of kwire. A fenced broker has no leaders and can stop at once."""


KAFKA_STATES: Final = {
    LifecycleStage.STARTING: 1,
    LifecycleStage.REGISTERED: 1,
    LifecycleStage.CAUGHT_UP: 2,
    LifecycleStage.OPEN: 1,
    LifecycleStage.UNFENCED: 3,
    LifecycleStage.CONTROLLED_SHUTDOWN: 6,
    LifecycleStage.STOPPED: 7,
}
"""Kafka's BrokerState numbers: starting, recovery, running, pending controlled shutdown, shutting down."""


class LifecycleSettings(NamedTuple):
    """The settings of the life cycle."""

    heartbeat_interval_ms: int
    session_timeout_ms: int
    """The session timeout, which is also the longest backoff."""
    registration_timeout_ms: int
    """The time after which a broker gives up if no controller has registered it."""
    directory_timeout_ms: int
    """The time after which a broker gives up if no controller accepts its report of a failed directory."""
    missing_rights: str
    """The advice for operators if controllers deny the requests of this broker."""


class BrokerLifecycleManager:
    """The life cycle of one broker."""

    def __init__(
        self,
        controller: ControllerPort,
        host: Host,
        node_id: int,
        settings: LifecycleSettings,
        *,
        image: Callable[[], MetadataImage],
        is_only_broker: Callable[[], bool] = lambda: False,
        on_caught_up: Callable[[], None] = lambda: None,
        on_unfenced: Callable[[], None] = lambda: None,
        on_shutdown_allowed: Callable[[], None] = lambda: None,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`image` returns the current metadata.

        `is_only_broker` returns whether this is the only broker and its node the only controller. Such a
        broker needs no heartbeats. `on_caught_up` is called when the logs can be opened; the caller must then
        call `opened`. `on_unfenced` is called when clients may connect, `on_shutdown_allowed` when the broker
        may stop, and `on_failed` with the reason why it must stop. All callbacks are called from the event
        loop, never within a call of this class.
        """
        self.stage = LifecycleStage.STARTING
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """The broker epoch of the current registration."""
        self._controller = controller
        self._host = host
        self._node_id = node_id
        self._settings = settings
        self._image = image
        self._is_only_broker = is_only_broker
        self._on_caught_up = on_caught_up
        self._on_unfenced = on_unfenced
        self._on_shutdown_allowed = on_shutdown_allowed
        self._on_failed = on_failed
        self._registration: RegisterBroker | None = None
        self._is_registered = False
        self._in_flight = False
        self._send_again = False
        """Whether to send another request as soon as the one in flight has its response."""
        self._failures = 0
        """The number of consecutive errors from the controller."""
        self._logged_refusal: str | None = None
        self._duplicate_since_ms: InternodeTime | None = None
        self._shutdown_pending = False
        self._failed_directories: Sequence[Uuid] = ()
        self._cordoned_directories: Sequence[Uuid] = ()
        self._reported_failed: set[Uuid] = set()
        self._timer: Timer | None = None
        self._deadlines: list[Timer] = []
        self._rng = host.random("heartbeats")
        self._logger = host.logger("kwire.node")

    @property
    def kafka_state(self) -> int:
        """The state of the broker as Kafka's BrokerState."""
        return KAFKA_STATES[self.stage]

    @property
    def not_ready_reason(self) -> str:
        """The reason why clients should not use the broker, or an empty string if they may use the broker."""
        if self.stage in (LifecycleStage.CONTROLLED_SHUTDOWN, LifecycleStage.STOPPED):
            return "the broker is in controlled shutdown"
        if self.stage is not LifecycleStage.UNFENCED:
            return f"the broker is not unfenced yet (stage {self.stage.name})"
        return ""

    def start(self, registration: RegisterBroker) -> None:
        """Start to register the broker."""
        self._registration = registration
        self._deadlines.append(
            self._host.internode_clock.schedule(
                self._settings.registration_timeout_ms, self._registration_timed_out
            )
        )
        self._send_next()

    def opened(self) -> None:
        """Request to be unfenced, after the logs were opened and the replicas became leaders or followers."""
        if self.stage is LifecycleStage.CAUGHT_UP:
            self._transition(LifecycleEvent.OPENED)
            self._send_next()

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid]) -> None:
        """Report all failed and all cordoned log directories to the controller. KIP-858, KIP-1066."""
        if any(directory not in self._failed_directories for directory in failed):
            timed_out = partial(self._directories_timed_out, failed)
            self._deadlines.append(
                self._host.internode_clock.schedule(self._settings.directory_timeout_ms, timed_out)
            )
        is_new = (failed, cordoned) != (self._failed_directories, self._cordoned_directories)
        self._failed_directories, self._cordoned_directories = failed, cordoned
        if is_new and self.stage in (
            LifecycleStage.OPEN,
            LifecycleStage.UNFENCED,
            LifecycleStage.CONTROLLED_SHUTDOWN,
        ):
            self._send_next()

    def begin_controlled_shutdown(self) -> None:
        """Wait for the controller to move this broker's leaders, then call `on_shutdown_allowed`.

        A fenced broker may stop at once.
        """
        if self.stage in (LifecycleStage.CONTROLLED_SHUTDOWN, LifecycleStage.STOPPED):
            return
        self._transition(LifecycleEvent.SHUTDOWN_REQUESTED)
        if self._is_stopped():
            self._stop()
        else:
            self._logger.info(
                "Beginning controlled shutdown: waiting for the controller to move the leaders of this broker"
            )
            self._send_next()

    def stop(self) -> None:
        """Stop at once, without a controlled shutdown."""
        self.stage = LifecycleStage.STOPPED
        self._cancel_all()

    def send_now(self) -> None:
        """Send the next request now, without waiting for the interval or the backoff.

        If the request in flight fails, the next one is then sent without a backoff.
        """
        if self.stage is not LifecycleStage.STOPPED:
            self._failures = 0
            self._send_next()

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Send the next request now if new metadata requires it.

        The metadata requires it if this broker was registered or fenced, must register its directory ids, or
        is no longer the only broker, or if the session of its previous run has ended.
        """
        if self.stage is LifecycleStage.REGISTERED:
            self._check_registration(image)
        elif self._duplicate_since_ms is not None and not self._is_stopped():
            before, after = delta.image.brokers.get(self._node_id), image.brokers.get(self._node_id)
            if before is not None and not before.fenced and (after is None or after.fenced):
                self._send_next()  # the session of the previous run has ended
        elif delta.features_changed and self._lacks_directories(image):
            self._is_registered = False
            self._send_next()
        elif self.stage is LifecycleStage.UNFENCED and not self._in_flight:
            if self._timer is None:
                self._schedule_next(0)  # heartbeats may be needed now, because of another broker
            elif self._failures and self._is_fenced(image):
                # The controller is reachable again. Until the broker is unfenced, clients cannot use it.
                self._send_next()

    def _is_fenced(self, image: MetadataImage) -> bool:
        known = image.brokers.get(self._node_id)
        return known is not None and known.broker_epoch == self.broker_epoch and known.fenced

    def _lacks_directories(self, image: MetadataImage) -> bool:
        """Whether the cluster supports log directory ids now but did not when the broker registered."""
        known = image.brokers.get(self._node_id)
        return (
            self._registration is not None
            and known is not None
            and known.broker_epoch == self.broker_epoch
            and image.metadata_version >= DIRECTORIES_LEVEL
            and not known.log_dirs
            and bool(self._registration.log_dirs)
            and not self._is_stopped()
        )

    def _check_registration(self, image: MetadataImage) -> None:
        known = image.brokers.get(self._node_id)
        if known is not None and known.broker_epoch == self.broker_epoch:
            self._transition(LifecycleEvent.REGISTRATION_SEEN)
            self._host.call_soon(self._on_caught_up)

    # --- requests

    def _send_next(self) -> None:
        """Send the next request now, or as soon as the one in flight has its response."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._in_flight:
            self._send_again = True
            return
        self._in_flight = True
        if self._is_registered:
            heartbeat = self._heartbeat()

            def on_done(reply: BrokerHeartbeatReply | ApiError) -> None:
                self._handle_heartbeat_reply(reply, heartbeat.offline_log_dirs)

            self._controller.submit(heartbeat, on_done)
        else:
            assert self._registration is not None
            self._controller.submit(self._registration, self._handle_registration_reply)

    def _heartbeat(self) -> BrokerHeartbeat:
        image = self._image()
        is_caught_up = self.stage not in (LifecycleStage.STARTING, LifecycleStage.REGISTERED)
        knows_of_cordons = is_caught_up and image.metadata_version >= CORDONED_LEVEL
        return BrokerHeartbeat(
            self._node_id,
            self.broker_epoch,
            image.offset,
            want_fence=self.stage
            in (LifecycleStage.STARTING, LifecycleStage.REGISTERED, LifecycleStage.CAUGHT_UP),
            want_shut_down=self.stage is LifecycleStage.CONTROLLED_SHUTDOWN,
            offline_log_dirs=tuple(self._failed_directories),
            cordoned_log_dirs=tuple(self._cordoned_directories) if knows_of_cordons else None,
        )

    def _schedule_next(self, delay_ms: int) -> None:
        """Schedule the next heartbeat, if heartbeats are needed."""
        if self.stage is not LifecycleStage.UNFENCED or self._send_again or not self._is_only_broker():
            self._schedule(delay_ms)

    def _schedule(self, delay_ms: int) -> None:
        if self._send_again:
            delay_ms, self._send_again = 0, False
        if self.stage is not LifecycleStage.STOPPED:
            self._timer = self._host.internode_clock.schedule(delay_ms, self._send_next)

    def _schedule_after_failure(self, longest_ms: int | None = None) -> None:
        delay_ms = min(
            longest_ms or self._settings.session_timeout_ms, RETRY_BACKOFF_MS * 2 ** min(self._failures, 30)
        )
        if not self._send_again:
            self._failures += 1
        self._schedule(int(delay_ms * self._rng.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER)))

    # --- replies

    def _handle_registration_reply(self, reply: int | ApiError) -> None:
        self._in_flight = False
        if self._is_stopped():
            return
        if isinstance(reply, ApiError):
            self._log_refusal(reply)
            is_early = reply.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            self._schedule_after_failure(SESSION_END_INTERVAL_MS if is_early else None)
            return
        assert self._registration is not None
        self._failures, self._logged_refusal, self._duplicate_since_ms = 0, None, None
        self._is_registered, self.broker_epoch = True, reply
        # KIP-966: if the broker has to register again, it has lost no records since this registration.
        self._registration = self._registration._replace(previous_broker_epoch=reply)
        self._logger.info("Registered broker %d with broker epoch %d", self._node_id, reply)
        if self.stage is LifecycleStage.STARTING:
            self._transition(LifecycleEvent.REGISTRATION_WRITTEN)
            self._check_registration(self._image())
        self._schedule(0)

    def _log_refusal(self, refusal: ApiError) -> None:
        """Log why the broker cannot register and what to do. Each reason is logged once."""
        if refusal.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            self._check_duplicate()
            return
        elif refusal.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            text = (
                "The controller belongs to another cluster than these log directories: set "
                "controller.quorum.voters or controller.quorum.bootstrap.servers to the right controllers"
            )
        elif refusal.code is ErrorCode.UNSUPPORTED_VERSION:
            text = f"The controller rejects this broker: {self._unsupported_feature()}"
        elif refusal.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            text = f"The controller did not register this broker, will retry: {self._settings.missing_rights}"
        else:
            text = f"The controller did not register this broker, will retry: {refusal}"
        self._log_once(text, refusal)

    def _check_duplicate(self) -> None:
        """Log that the controller has a session of this broker id: of the previous run or a second broker."""
        now_ms = self._host.internode_clock.monotonic_ms()
        if self._duplicate_since_ms is None:
            self._duplicate_since_ms = now_ms
            self._logger.info(
                "Broker %d still has a session, probably of its previous run: waiting until it times out "
                "(broker.session.timeout.ms)",
                self._node_id,
            )
        elif now_ms - self._duplicate_since_ms > 2 * self._settings.session_timeout_ms:
            text = (
                f"Cannot register broker {self._node_id} (DUPLICATE_BROKER_REGISTRATION), will retry: "
                "another running broker has the same node.id. Change the node.id of one of the two brokers"
            )
            if text != self._logged_refusal:
                self._logged_refusal = text
                self._logger.error("%s", text)

    def _log_once(self, text: str, refusal: ApiError) -> None:
        if text != self._logged_refusal:
            self._logged_refusal = text
            # A cluster may be without an active controller for a while. That alone is not a problem.
            level = logging.INFO if refusal.code is ErrorCode.NOT_CONTROLLER else logging.WARNING
            self._logger.log(level, "%s", text)

    def _unsupported_feature(self) -> str:
        """Describe which features of the cluster this broker does not support, according to its metadata."""
        assert self._registration is not None
        offered = self._registration.features
        levels = {
            name: level
            for name, level in self._image().features.items()
            if not offered.get(name, (0, 0))[0] <= level <= offered.get(name, (0, 0))[1]
        }
        if not levels:
            return (
                "the cluster has finalized a feature level that this release does not support; the next "
                "message names the feature, after this broker has fetched the metadata"
            )
        shown = ", ".join(f"{name} at level {level}" for name, level in levels.items())
        downgrades = " ".join(f"--feature {name}={offered.get(name, (0, 0))[1]}" for name in levels)
        return (
            f"the cluster has {shown}, which this release does not support; to downgrade, run "
            f"kafka-features downgrade {downgrades}, or format the cluster with {downgrades}"
        )

    def _handle_heartbeat_reply(
        self, reply: BrokerHeartbeatReply | ApiError, reported: Sequence[Uuid]
    ) -> None:
        self._in_flight = False
        if self._is_stopped():
            return
        if isinstance(reply, ApiError):
            self._log_once(f"The controller returned an error for a heartbeat: {reply}", reply)
            if reply.code in REGISTRATION_LOST:
                self._is_registered = False
            self._schedule_after_failure(self._settings.heartbeat_interval_ms)
            return
        self._failures, self._logged_refusal = 0, None
        self._reported_failed.update(reported)
        interval_ms = self._settings.heartbeat_interval_ms
        if self.stage is LifecycleStage.REGISTERED:
            interval_ms = CATCH_UP_INTERVAL_MS
        elif self.stage is LifecycleStage.OPEN and not reply.is_fenced:
            self._transition(LifecycleEvent.UNFENCING_WRITTEN)
            # Kafka's wording: tools that start containers for tests wait for this line.
            self._logger.info("The broker has been unfenced. Transitioning from RECOVERY to RUNNING.")
            self._host.call_soon(self._on_unfenced)
        elif self.stage is LifecycleStage.CONTROLLED_SHUTDOWN:
            if reply.should_shut_down:
                self._transition(LifecycleEvent.SHUTDOWN_ALLOWED)
                self._stop()
                return
            interval_ms = SHUTDOWN_INTERVAL_MS if self._shutdown_pending else FIRST_SHUTDOWN_INTERVAL_MS
            self._shutdown_pending = True
        self._schedule_next(interval_ms)

    # --- end

    def _registration_timed_out(self) -> None:
        if self.stage is LifecycleStage.STARTING:
            self._on_failed(
                f"no controller has registered this broker in {self._settings.registration_timeout_ms} ms "
                "(initial.broker.registration.timeout.ms): start a majority of the controllers, and check "
                "controller.quorum.bootstrap.servers or controller.quorum.voters"
            )

    def _directories_timed_out(self, failed: Sequence[Uuid]) -> None:
        if not self._reported_failed.issuperset(failed) and not self._is_stopped():
            self._on_failed(
                f"no controller has accepted the report of a failed log directory for "
                f"{self._settings.directory_timeout_ms} ms (log.dir.failure.timeout.ms): start a majority of "
                f"the controllers"
            )

    def _stop(self) -> None:
        self._cancel_all()
        self._host.call_soon(self._on_shutdown_allowed)

    def _cancel_all(self) -> None:
        for timer in [self._timer, *self._deadlines]:
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._deadlines.clear()

    def _is_stopped(self) -> bool:
        return self.stage is LifecycleStage.STOPPED

    def _transition(self, event: LifecycleEvent) -> None:
        next_stage = TRANSITIONS[self.stage].get(event)
        assert next_stage is not None, f"event {event.name} in stage {self.stage.name}"
        self.stage = next_stage
