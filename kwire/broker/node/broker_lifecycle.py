"""The life of a broker in its cluster, from its registration to its controlled shutdown. KIP-631.

STARTING: nobody knows of it. REGISTERED: the controller has written its registration, whose epoch the broker
goes by. CAUGHT_UP: its metadata has that registration, and all that came before it, so that its logs can be
opened. OPEN: they are, and its replicas are taken up. UNFENCED: it may lead, and clients may be told of it.
LEAVING: it asks for others to lead from here on. GONE: it may end.

All of it goes by heartbeats to the active controller, be that this node or another: what the broker wants is
in each, and what it may do is in the answer. One is under way at a time. Whatever fails is asked again, with
pauses that grow, as in Apache Kafka, but for heartbeats never above their interval: there it is the channel
that goes on asking. A session that was lost costs nothing but being fenced: the next heartbeat unfences it,
and is sent at once where the metadata tells of the fence after failures. A controller that does not know the
registration any more has it again.
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
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

RETRY_BACKOFF_MS: Final = 100
"""How long the controller is left alone after it has refused; twice as long after each further time."""
RETRY_JITTER: Final = 0.02
CATCH_UP_INTERVAL_MS: Final = 10
"""How soon the next heartbeat follows while there is nothing to wait for but the metadata."""
FIRST_SHUTDOWN_INTERVAL_MS: Final = 50
"""How soon the next heartbeat follows the first one of a broker that leaves: mostly it may end by then."""
SHUTDOWN_INTERVAL_MS: Final = 500
"""And the further ones: it waits until the others have heard of it, and for no heartbeat of its own."""
SESSION_END_INTERVAL_MS: Final = 500
"""How often a broker looks whether the session of its last life has ended.

Kafka's controllers wait for that even after a clean end, and pauses that grow would overshoot it by as much.
"""
REGISTRATION_LOST: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
"""The registration is not what the controller goes by any more."""


class LifecycleStage(Enum):
    """How far a broker has come."""

    STARTING = auto()
    REGISTERED = auto()
    CAUGHT_UP = auto()
    OPEN = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    STOPPED = auto()


class LifecycleEvent(Enum):
    """What takes it further."""

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
"""The moves that there are: anything else is a fault of ours. Who leads nothing has nothing to hand over."""


KAFKA_STATES: Final = {
    LifecycleStage.STARTING: 1,
    LifecycleStage.REGISTERED: 1,
    LifecycleStage.CAUGHT_UP: 2,
    LifecycleStage.OPEN: 1,
    LifecycleStage.UNFENCED: 3,
    LifecycleStage.CONTROLLED_SHUTDOWN: 6,
    LifecycleStage.STOPPED: 7,
}
"""Starting, recovery, running, pending controlled shutdown, shutting down."""


class LifecycleSettings(NamedTuple):
    """The settings that a life goes by."""

    heartbeat_interval_ms: int
    session_timeout_ms: int
    """The longest pause between two attempts."""
    registration_timeout_ms: int
    """How long a broker tries to be registered before it gives up."""
    directory_timeout_ms: int
    """How long it tries to tell of a log directory that has failed before it gives up."""


class BrokerLifecycleManager:
    """The life of one broker."""

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
        """`image` tells the metadata of now; `is_alone` whether nobody is to hear of the broker but the
        controller of its own node, which needs no heartbeats. On the loop, never from within another call:

        `on_caught_up` is called when the logs can be opened (to be followed by `opened`), `on_unfenced` when
        clients may be told of the broker, `on_gone` when it may end, and `on_failed` with the reason when it
        must.
        """
        self.stage = LifecycleStage.STARTING
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """The epoch of the registration."""
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
        """Whether another heartbeat is to follow the one that is under way at once."""
        self._failures = 0
        """How often in a row the controller has not taken what it was asked."""
        self._logged_refusal: str | None = None
        self._duplicate_since_ms: int | None = None
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
        """The state of the broker, as Apache Kafka numbers it."""
        return KAFKA_STATES[self.stage]

    @property
    def not_ready_reason(self) -> str:
        """Why clients should not come to the broker, as far as it knows; empty where they may."""
        if self.stage in (LifecycleStage.CONTROLLED_SHUTDOWN, LifecycleStage.STOPPED):
            return "the broker is leaving its cluster"
        if self.stage is not LifecycleStage.UNFENCED:
            return f"the broker is not unfenced yet (stage {self.stage.name})"
        return ""

    def start(self, registration: RegisterBroker) -> None:
        """Register, and go on from there."""
        self._registration = registration
        self._deadlines.append(
            self._host.internode_clock.schedule(
                self._settings.registration_timeout_ms, self._registration_timed_out
            )
        )
        self._send_next()

    def opened(self) -> None:
        """The logs are open, and the replicas taken up: the broker can be unfenced."""
        if self.stage is LifecycleStage.CAUGHT_UP:
            self._transition(LifecycleEvent.OPENED)
            self._send_next()

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid]) -> None:
        """Have the controller know which log directories have failed, and which take nothing new. KIP-858."""
        if any(directory not in self._failed_directories for directory in failed):
            in_time = partial(self._directories_timed_out, failed)
            self._deadlines.append(
                self._host.internode_clock.schedule(self._settings.directory_timeout_ms, in_time)
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
        """Have others lead, where anybody counts on the broker; `on_gone` follows."""
        if self.stage in (LifecycleStage.CONTROLLED_SHUTDOWN, LifecycleStage.STOPPED):
            return
        self._transition(LifecycleEvent.SHUTDOWN_REQUESTED)
        if self._is_stopped():
            self._stop()
        else:
            self._logger.info("ending as soon as the controller has had others lead what this broker leads")
            self._send_next()

    def stop(self) -> None:
        """Say nothing more to anybody. The broker ends, whoever still counts on it."""
        self.stage = LifecycleStage.STOPPED
        self._cancel_all()

    def send_now(self) -> None:
        """Send what is to be sent next now, without the pause before it."""
        if self.stage is not LifecycleStage.STOPPED:
            self._send_next()

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """The metadata was published: perhaps the registration is there."""
        if self.stage is LifecycleStage.REGISTERED:
            self._check_registration(image)
        elif delta.features_changed and self._lacks_directories(image):
            self._is_registered = False
            self._send_next()
        elif self.stage is LifecycleStage.UNFENCED and not self._in_flight:
            if self._timer is None:
                self._schedule_next(0)  # it may be alone no more
            elif self._failures and self._is_fenced(image):
                # Who has told of it can be reached again; and clients may know of no broker meanwhile.
                self._send_next()

    def _is_fenced(self, image: MetadataImage) -> bool:
        known = image.brokers.get(self._node_id)
        return known is not None and known.broker_epoch == self.broker_epoch and known.fenced

    def _lacks_directories(self, image: MetadataImage) -> bool:
        """Whether the cluster was too old to know of log directories when it registered, and is not now."""
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

    # --- asking

    def _send_next(self) -> None:
        """Ask the controller now, or as soon as it has answered what it was asked last."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._in_flight:
            self._send_again = True
            return
        self._in_flight = True
        if self._is_registered:
            heartbeat = self._heartbeat()

            def answered(reply: BrokerHeartbeatReply | ApiError) -> None:
                self._handle_heartbeat_reply(reply, heartbeat.offline_log_dirs)

            self._controller.submit(heartbeat, answered)
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
        """Say again that the broker lives, if anybody is to hear of it."""
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
        self._failures += 1
        self._send_again = False
        self._schedule(int(delay_ms * self._rng.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER)))

    # --- the answers

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
        # KIP-966: should it have to register again, it has lost nothing since.
        self._registration = self._registration._replace(previous_broker_epoch=reply)
        self._logger.info("registered as broker %d, in epoch %d", self._node_id, reply)
        if self.stage is LifecycleStage.STARTING:
            self._transition(LifecycleEvent.REGISTRATION_WRITTEN)
            self._check_registration(self._image())
        self._schedule(0)

    def _log_refusal(self, refusal: ApiError) -> None:
        """Log why the broker is not registered, and what to do; once, and not with each attempt."""
        if refusal.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            self._check_duplicate()
            return
        elif refusal.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            text = (
                "the controller is of another cluster than these log directories: point "
                "controller.quorum.voters or controller.quorum.bootstrap.servers to the right one"
            )
        elif refusal.code is ErrorCode.UNSUPPORTED_VERSION:
            text = f"the controller does not let this broker in: {self._unsupported_feature()}"
        else:
            text = f"the controller does not register this broker yet: {refusal}"
        self._log_once(text, refusal)

    def _check_duplicate(self) -> None:
        """Another life of this broker has a session: its last one, or that of another process."""
        now_ms = self._host.internode_clock.monotonic_ms()
        if self._duplicate_since_ms is None:
            self._duplicate_since_ms = now_ms
            self._logger.info("waiting for the session of this broker's last life to end")
        elif now_ms - self._duplicate_since_ms > 2 * self._settings.session_timeout_ms:
            text = f"another broker runs with node.id {self._node_id}: give one of the two another node.id"
            if text != self._logged_refusal:
                self._logged_refusal = text
                self._logger.error("%s", text)

    def _log_once(self, text: str, refusal: ApiError) -> None:
        if text != self._logged_refusal:
            self._logged_refusal = text
            # There need be none for a while, which is nobody's fault.
            level = logging.INFO if refusal.code is ErrorCode.NOT_CONTROLLER else logging.WARNING
            self._logger.log(level, "%s", text)

    def _unsupported_feature(self) -> str:
        """Which feature of the cluster this broker cannot serve, as far as its metadata tells by now."""
        assert self._registration is not None
        offered = self._registration.features
        levels = {
            name: level
            for name, level in self._image().features.items()
            if not offered.get(name, (0, 0))[0] <= level <= offered.get(name, (0, 0))[1]
        }
        if not levels:
            return "the cluster has finalized a feature that this release does not serve"
        shown = ", ".join(f"{name} is at level {level}" for name, level in levels.items())
        downgrades = " ".join(f"--feature {name}={offered.get(name, (0, 0))[1]}" for name in levels)
        return (
            f"in the cluster {shown}, which this release does not serve; to take it down, run "
            f"kafka-features downgrade {downgrades}, or format the cluster with {downgrades}"
        )

    def _handle_heartbeat_reply(self, reply: BrokerHeartbeatReply | ApiError, told: Sequence[Uuid]) -> None:
        self._in_flight = False
        if self._is_stopped():
            return
        if isinstance(reply, ApiError):
            self._log_once(f"the controller did not take a heartbeat: {reply}", reply)
            if reply.code in REGISTRATION_LOST:
                self._is_registered = False
            self._schedule_after_failure(self._settings.heartbeat_interval_ms)
            return
        self._failures, self._logged_refusal = 0, None
        self._reported_failed.update(told)
        interval_ms = self._settings.heartbeat_interval_ms
        if self.stage is LifecycleStage.REGISTERED:
            interval_ms = CATCH_UP_INTERVAL_MS
        elif self.stage is LifecycleStage.OPEN and not reply.is_fenced:
            self._transition(LifecycleEvent.UNFENCING_WRITTEN)
            # In Kafka's words, for which whoever starts containers for tests waits in the log.
            self._logger.info("unfenced: Transitioning from RECOVERY to RUNNING")
            self._host.call_soon(self._on_unfenced)
        elif self.stage is LifecycleStage.CONTROLLED_SHUTDOWN:
            if reply.should_shut_down:
                self._transition(LifecycleEvent.SHUTDOWN_ALLOWED)
                self._stop()
                return
            interval_ms = SHUTDOWN_INTERVAL_MS if self._shutdown_pending else FIRST_SHUTDOWN_INTERVAL_MS
            self._shutdown_pending = True
        self._schedule_next(interval_ms)

    # --- ends

    def _registration_timed_out(self) -> None:
        if self.stage is LifecycleStage.STARTING:
            self._on_failed(
                f"no controller has registered this broker in {self._settings.registration_timeout_ms} ms "
                "(initial.broker.registration.timeout.ms): start a majority of the controllers, and see that "
                "controller.quorum.bootstrap.servers or controller.quorum.voters names them"
            )

    def _directories_timed_out(self, failed: Sequence[Uuid]) -> None:
        if not self._reported_failed.issuperset(failed) and not self._is_stopped():
            self._on_failed(
                f"no controller has accepted the report of a failed log directory for "
                f"{self._settings.directory_timeout_ms} ms (log.dir.failure.timeout.ms)"
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
        following = TRANSITIONS[self.stage].get(event)
        assert following is not None, f"{event.name} comes in the stage {self.stage.name}"
        self.stage = following
