"""The registration of a controller with the active controller. KIP-919.

A controller registers once the metadata.version supports controller registrations. It registers again if its
registration is removed or replaced. Failures are retried with exponential backoff, as in Apache Kafka. A new
active controller ends the backoff.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.controller.commands import RegisterController
from kwire.broker.controller.port import ControllerPort
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import CONTROLLER_REGISTRATION_LEVEL
from kwire.broker.node.broker_lifecycle import RETRY_BACKOFF_MS, RETRY_JITTER
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError

MAX_BACKOFF_MS: Final = 120_000


class ControllerRegistration:
    """The registration of one controller."""

    def __init__(self, controller: ControllerPort, host: Host, command: RegisterController) -> None:
        self._controller = controller
        self._host = host
        self._command = command
        self._in_flight = False
        self._is_accepted = False
        """Whether the controller has accepted the registration but the local metadata lacks it."""
        self._failures = 0
        self._has_new_leader = False
        """Whether there is a new active controller since the request in flight was sent."""
        self._timer: Timer | None = None
        self._image = MetadataImage()
        self._rng = host.random("controller registration")
        self._is_stopped = False

    def register(self) -> None:
        """Register now without checking the metadata. A sole voter uses this: it is the active controller."""
        self._in_flight, self._has_new_leader = True, False
        self._controller.submit(self._command, self._handle_reply)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Register if the new metadata lacks this controller's registration and supports registrations."""
        self._image = image
        if self._is_known():
            self._is_accepted = False  # so that the controller registers again if its registration is removed
        elif self._timer is None and not self._is_accepted:
            self._register_if_due()

    def retry_now(self) -> None:
        """Retry without backoff, because there is a new active controller."""
        self._failures, self._is_accepted, self._has_new_leader = 0, False, True
        self._register_if_due()

    def _is_known(self) -> bool:
        known = self._image.controllers.get(self._command.controller_id)
        return known is not None and known.incarnation_id == self._command.incarnation_id

    def _register_if_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_early = self._image.metadata_version < CONTROLLER_REGISTRATION_LEVEL
        if not (self._is_known() or is_early or self._in_flight or self._is_stopped):
            self.register()

    def _handle_reply(self, reply: ApiError | None) -> None:
        self._in_flight = False
        if self._is_stopped:
            return
        if reply is None:
            self._is_accepted, self._failures = not self._is_known(), 0
            return
        if self._has_new_leader:
            self._register_if_due()
            return
        backoff_ms = min(MAX_BACKOFF_MS, RETRY_BACKOFF_MS * 2 ** min(self._failures, 30))
        self._failures += 1
        delay_ms = int(backoff_ms * self._rng.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER))
        self._timer = self._host.internode_clock.schedule(delay_ms, self._register_if_due)
