"""What the active controller knows of brokers beside the image: who was heard of when, and what it said.

It is soft: a controller that becomes active knows none of it, and gives every broker that is not fenced a
whole session to make itself heard (KIP-631). Nothing of it is in the log, so heartbeats cost no records.

A broker of the controller's own node needs no session: while it is gone, so is this controller.
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

UNKNOWN = -1


class _BrokerHeartbeatState:
    """One life of a broker, from its registration on."""

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
        self.last_contact_ms: int | None = None
        self.metadata_offset = UNKNOWN
        self.controlled_shutdown_offset = UNKNOWN


class BrokerHeartbeatManager:
    """Which brokers live, as far as one active controller has heard."""

    def __init__(self, own_broker_id: int | None, session_timeout_ms: int) -> None:
        """`own_broker_id`: of the broker that the controller's node is, too; None where it is none."""
        self.now_ms = 0
        """The monotonic moment of what is decided now: whoever has it decided sets it."""
        self.own_broker_id = own_broker_id
        self._session_timeout_ms = session_timeout_ms
        self._brokers: dict[int, _BrokerHeartbeatState] = {}

    # --- what happens

    def activate(self, image: MetadataImage) -> None:
        """This controller becomes active: whoever may lead has a whole session from now on."""
        self._brokers.clear()
        for broker in image.brokers.values():
            # Where its registration stands is not known any more; it is certainly no later than this.
            known = _BrokerHeartbeatState(broker.broker_epoch, image.offset)
            if not broker.fenced and broker.broker_id != self.own_broker_id:
                known.last_contact_ms = self.now_ms
            self._brokers[broker.broker_id] = known

    def command_received(self, command: Command) -> None:
        """A command came: if it is a heartbeat of a broker's present life, that broker lives."""
        if isinstance(command, BrokerHeartbeat):
            known = self._brokers.get(command.broker_id)
            if known is not None and known.broker_epoch == command.broker_epoch:
                known.last_contact_ms = self.now_ms

    def command_decided(self, command: Command, response: object, offset: int) -> None:
        """A command was decided; `offset` is that of the last record that is decided by now."""
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
                # It goes with the controller's leave: whoever registers in its stead need not wait.
                known.last_contact_ms = None
        elif isinstance(command, UnregisterBroker):
            self._brokers.pop(command.broker_id, None)

    def remove_expired_sessions(self, image: MetadataImage) -> list[BrokerImage]:
        """The brokers that may lead, and whose sessions are over. Each is told of once."""
        found = []
        for broker_id, known in self._brokers.items():
            if known.last_contact_ms is None or broker_id == self.own_broker_id:
                continue
            if self.now_ms - known.last_contact_ms > self._session_timeout_ms:
                known.last_contact_ms = None
                broker = image.brokers.get(broker_id)
                if broker is not None and not broker.fenced and self._state_of(broker) is known:
                    found.append(broker)
        return found

    def restart_sessions(self) -> None:
        """This controller itself was asleep, and could hear of nobody: that is not held against them."""
        for known in self._brokers.values():
            if known.last_contact_ms is not None:
                known.last_contact_ms = self.now_ms

    # --- what is asked

    def next_expiry_ms(self) -> int | None:
        """The moment at which the first session can be over; None where there is none."""
        heard = [
            known.last_contact_ms
            for broker_id, known in self._brokers.items()
            if known.last_contact_ms is not None and broker_id != self.own_broker_id
        ]
        return min(heard) + self._session_timeout_ms + 1 if heard else None

    def has_valid_session(self, broker: BrokerImage) -> bool:
        """Whether this life of the broker was heard of lately."""
        known = self._state_of(broker)
        if known is None or known.last_contact_ms is None:
            return False
        is_own = broker.broker_id == self.own_broker_id
        return is_own or self.now_ms - known.last_contact_ms <= self._session_timeout_ms

    def registration_offset(self, broker: BrokerImage) -> int:
        """The offset of its registration, or a later one: who has followed up to it, knows of it."""
        known = self._state_of(broker)
        return broker.broker_epoch if known is None else known.registration_offset

    def controlled_shutdown_offset(self, broker: BrokerImage) -> int:
        """What the others must have followed before the broker may end; -1 where it does not want to."""
        known = self._state_of(broker)
        return UNKNOWN if known is None else known.controlled_shutdown_offset

    def lowest_active_offset(self, image: MetadataImage) -> int | None:
        """How far all those have followed the metadata that serve; None where nobody does."""
        offsets = []
        for broker in image.brokers.values():
            known = self._state_of(broker)
            if not broker.fenced and (known is None or known.controlled_shutdown_offset == UNKNOWN):
                offsets.append(UNKNOWN if known is None else known.metadata_offset)
        return min(offsets, default=None)

    def _state_of(self, broker: BrokerImage) -> _BrokerHeartbeatState | None:
        known = self._brokers.get(broker.broker_id)
        return known if known is not None and known.broker_epoch == broker.broker_epoch else None
