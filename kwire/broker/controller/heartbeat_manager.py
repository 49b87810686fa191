"""Broker sessions and metadata offsets, as the active controller knows them from heartbeats. KIP-631.

This is soft state: the metadata log does not contain it, so heartbeats write no records. A controller that
becomes active starts without this state, and gives every unfenced broker a new session.

The broker of a combined node needs no session: if the broker stops, its controller stops, too.
"""

from __future__ import annotations

from kwire.broker.controller.commands import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    Command,
    RegisterBroker,
    UnregisterBroker,
)
from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.host.host import InternodeTime

UNKNOWN = -1


class _BrokerHeartbeatState:
    """The session and the offsets of one registered broker. UNKNOWN (-1) is an unknown offset."""

    __slots__ = (
        "broker_epoch",
        "controlled_shutdown_offset",
        "last_contact_ms",
        "metadata_offset",
        "registration_offset",
    )

    def __init__(self, broker_epoch: int, registration_offset: int) -> None:
        self.broker_epoch = broker_epoch
        self.registration_offset = registration_offset
        self.last_contact_ms: InternodeTime | None = None
        self.metadata_offset = UNKNOWN
        self.controlled_shutdown_offset = UNKNOWN


class BrokerHeartbeatManager:
    """The heartbeat state of all brokers, on one controller."""

    def __init__(self, own_broker_id: int | None, session_timeout_ms: int) -> None:
        """Start without brokers.

        `own_broker_id` is the broker of this node; None on a controller-only node.
        """
        self.now_ms = InternodeTime(0)
        """The monotonic time of the current command in ms, set by the caller."""
        self.own_broker_id = own_broker_id
        self.session_timeout_ms = session_timeout_ms
        self._brokers: dict[int, _BrokerHeartbeatState] = {}

    # --- events

    def activate(self, image: MetadataImage) -> None:
        """Start a new session for every unfenced broker when this controller becomes active."""
        self._brokers.clear()
        for broker in image.brokers.values():
            # The offset of the registration is unknown here. The end of the image is a safe upper bound.
            known = _BrokerHeartbeatState(broker.broker_epoch, image.offset)
            if not broker.fenced and broker.broker_id != self.own_broker_id:
                known.last_contact_ms = self.now_ms
            self._brokers[broker.broker_id] = known

    def command_received(self, command: Command) -> None:
        """Extend the broker's session if the command is a heartbeat with the broker's current epoch."""
        if isinstance(command, BrokerHeartbeat):
            known = self._brokers.get(command.broker_id)
            if known is not None and known.broker_epoch == command.broker_epoch:
                known.last_contact_ms = self.now_ms

    def command_decided(self, command: Command, response: object, offset: int) -> None:
        """Update the heartbeat state of the command's broker, after the command's records were appended.

        `response` is that of the command. `offset` is the last appended offset, committed or not.
        """
        if isinstance(command, RegisterBroker) and isinstance(response, int):
            known = self._brokers.get(command.broker_id)
            if known is None or known.broker_epoch != response:
                known = self._brokers[command.broker_id] = _BrokerHeartbeatState(response, offset)
                if command.broker_id == self.own_broker_id:
                    known.last_contact_ms = self.now_ms
            else:
                known.registration_offset = offset
        elif isinstance(command, BrokerHeartbeat) and isinstance(response, BrokerHeartbeatReply):
            known = self._brokers.get(command.broker_id)
            if known is None or known.broker_epoch != command.broker_epoch:
                known = self._brokers[command.broker_id] = _BrokerHeartbeatState(command.broker_epoch, offset)
            known.metadata_offset = command.current_metadata_offset
            if response.is_fenced:
                known.controlled_shutdown_offset = UNKNOWN
            elif response.in_controlled_shutdown and known.controlled_shutdown_offset == UNKNOWN:
                known.controlled_shutdown_offset = offset
            if response.should_shut_down:
                # The broker stops now. Its next incarnation may register at once, without a session timeout.
                known.last_contact_ms = None
        elif isinstance(command, UnregisterBroker):
            self._brokers.pop(command.broker_id, None)

    def remove_expired_sessions(self, image: MetadataImage) -> list[BrokerImage]:
        """End the sessions that timed out, and return those of their brokers that are still unfenced."""
        found = []
        for broker_id, known in self._brokers.items():
            if known.last_contact_ms is None or broker_id == self.own_broker_id:
                continue
            if self.now_ms - known.last_contact_ms > self.session_timeout_ms:
                known.last_contact_ms = None
                broker = image.brokers.get(broker_id)
                if broker is not None and not broker.fenced and self._state_of(broker) is known:
                    found.append(broker)
        return found

    def restart_sessions(self) -> None:
        """Restart all sessions after this process was suspended and could not receive heartbeats."""
        for known in self._brokers.values():
            if known.last_contact_ms is not None:
                known.last_contact_ms = self.now_ms

    # --- queries

    def next_expiry_ms(self) -> InternodeTime | None:
        """Return the monotonic time at which the next session can time out, in ms; None without sessions."""
        heard = [
            known.last_contact_ms
            for broker_id, known in self._brokers.items()
            if known.last_contact_ms is not None and broker_id != self.own_broker_id
        ]
        return min(heard) + self.session_timeout_ms + 1 if heard else None

    def has_valid_session(self, broker: BrokerImage) -> bool:
        """Return whether this incarnation of the broker sent a heartbeat within the session timeout.

        The session of this node's own broker does not time out.
        """
        known = self._state_of(broker)
        if known is None or known.last_contact_ms is None:
            return False
        is_own = broker.broker_id == self.own_broker_id
        return is_own or self.now_ms - known.last_contact_ms <= self.session_timeout_ms

    def registration_offset(self, broker: BrokerImage) -> int:
        """Return the metadata offset that the broker must reach to have applied its own registration."""
        known = self._state_of(broker)
        return broker.broker_epoch if known is None else known.registration_offset

    def controlled_shutdown_offset(self, broker: BrokerImage) -> int:
        """Return the offset that the other brokers must apply before this broker may stop.

        Return -1 if this broker is not in controlled shutdown.
        """
        known = self._state_of(broker)
        return UNKNOWN if known is None else known.controlled_shutdown_offset

    def lowest_active_offset(self, image: MetadataImage) -> int | None:
        """Return the lowest metadata offset that active brokers have applied; None without active brokers.

        The offset is -1 if an active broker has not sent a heartbeat to this controller yet.
        """
        offsets = []
        for broker in image.brokers.values():
            known = self._state_of(broker)
            if not broker.fenced and (known is None or known.controlled_shutdown_offset == UNKNOWN):
                offsets.append(UNKNOWN if known is None else known.metadata_offset)
        return min(offsets, default=None)

    def _state_of(self, broker: BrokerImage) -> _BrokerHeartbeatState | None:
        known = self._brokers.get(broker.broker_id)
        return known if known is not None and known.broker_epoch == broker.broker_epoch else None
