"""The life of a broker in its cluster, from its registration to its controlled shutdown. KIP-631.

STARTING: nobody knows of it. REGISTERED: the controller has written its registration, whose offset is the
broker's epoch. CAUGHT_UP: its metadata has that registration, and all that came before it. UNFENCED: it may
lead, and clients may be told of it. LEAVING: others lead from here on.

Everything goes through the port to the active controller. While there is none, the broker asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from kwire.broker.controller.commands import (
    Command,
    RegisterBroker,
    ShutDownBroker,
    UnfenceBroker,
)
from kwire.broker.controller.port import ControllerPort
from kwire.broker.host.host import Host, Timer
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.wire.errors import ApiError

RETRY_BACKOFF_MS: Final = 100
"""How long the controller is left alone after it has refused."""


class Stage(Enum):
    """How far a broker has come."""

    STARTING = auto()
    REGISTERED = auto()
    CAUGHT_UP = auto()
    UNFENCED = auto()
    LEAVING = auto()


class Event(Enum):
    """What takes it further."""

    REGISTRATION_WRITTEN = auto()
    REGISTRATION_SEEN = auto()
    UNFENCING_WRITTEN = auto()
    END_ASKED = auto()


MOVES: Final[dict[Stage, dict[Event, Stage]]] = {
    Stage.STARTING: {Event.REGISTRATION_WRITTEN: Stage.REGISTERED, Event.END_ASKED: Stage.LEAVING},
    Stage.REGISTERED: {Event.REGISTRATION_SEEN: Stage.CAUGHT_UP, Event.END_ASKED: Stage.LEAVING},
    Stage.CAUGHT_UP: {Event.UNFENCING_WRITTEN: Stage.UNFENCED, Event.END_ASKED: Stage.LEAVING},
    Stage.UNFENCED: {Event.END_ASKED: Stage.LEAVING},
    Stage.LEAVING: {},
}
"""The moves that there are: anything else is a fault of ours."""


class BrokerLife:
    """The life of one broker."""

    def __init__(
        self,
        controller: ControllerPort,
        host: Host,
        node_id: int,
        *,
        image: Callable[[], MetadataImage],
        on_unfenced: Callable[[], None] = lambda: None,
    ) -> None:
        """`image` tells the metadata of now; `on_unfenced` is called when the broker may be told of."""
        self.stage = Stage.STARTING
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """The epoch of the registration."""
        self._controller = controller
        self._host = host
        self._node_id = node_id
        self._image = image
        self._on_unfenced = on_unfenced
        self._retry: Timer | None = None
        self._logger = host.logger("kwire.node")

    def start(self, registration: RegisterBroker) -> None:
        """Register, and go on from there."""
        self._ask(registration, self._registered)

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """The metadata was published: perhaps the registration is there."""
        if self.stage is Stage.REGISTERED:
            self._look_for_registration(image)

    def _look_for_registration(self, image: MetadataImage) -> None:
        if image.offset >= self.broker_epoch:
            self._move(Event.REGISTRATION_SEEN)
            self._ask(UnfenceBroker(self._node_id), self._unfenced)

    def leave(self) -> None:
        """Have others lead, if anybody knows of the broker. Nothing waits for it here."""
        was_known = self.stage is not Stage.STARTING
        self._move(Event.END_ASKED)
        if self._retry is not None:
            self._retry.cancel()
        if was_known:
            self._controller.submit(ShutDownBroker(self._node_id), self._left)

    # --- the answers

    def _registered(self, reply: int) -> None:
        self.broker_epoch = reply
        self._move(Event.REGISTRATION_WRITTEN)
        self._look_for_registration(self._image())

    def _unfenced(self, reply: None) -> None:
        self._move(Event.UNFENCING_WRITTEN)
        self._on_unfenced()

    def _left(self, reply: ApiError | None) -> None:
        if reply is not None:
            self._logger.warning("the controller did not take the end of this broker: %s", reply)

    def _ask(self, command: Command, on_done: Callable[[Any], None]) -> None:
        """Ask until the command is taken, or the broker leaves."""

        def answered(reply: Any) -> None:
            if self.stage is Stage.LEAVING:
                return
            if isinstance(reply, ApiError):
                self._logger.warning("the controller refused %s: %s", type(command).__name__, reply)
                self._retry = self._host.schedule(RETRY_BACKOFF_MS, lambda: self._ask(command, on_done))
            else:
                on_done(reply)

        self._controller.submit(command, answered)

    def _move(self, event: Event) -> None:
        following = MOVES[self.stage].get(event)
        assert following is not None, f"{event.name} comes in the stage {self.stage.name}"
        self.stage = following
