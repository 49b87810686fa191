"""The registration of a controller: when it is sent, and when a failure is retried."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import RegisterController
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import registered_features
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import CONTROLLER_REGISTRATION_LEVEL
from kwire.broker.node.controller_registration import ControllerRegistration
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import FeatureLevelRecord

COMMAND = RegisterController(1, Uuid(b"i" * 16), [], registered_features())
TIMED_OUT = ApiError(ErrorCode.REQUEST_TIMED_OUT)


class RegistrationHarness:
    def __init__(self) -> None:
        self.host = VirtualHost()
        self.pending: list[Any] = []
        self.registration = ControllerRegistration(self, self.host, COMMAND)
        image = MetadataImage()
        delta = MetadataDelta(image)
        delta.replay_all(
            [FeatureLevelRecord(name="metadata.version", feature_level=CONTROLLER_REGISTRATION_LEVEL)]
        )
        self.registration.image_changed(delta.apply(1, 1), delta)

    def submit(self, command: Any, on_done: Any) -> None:
        assert (command, self.pending) == (COMMAND, [])
        self.pending.append(on_done)

    def respond(self, reply: ApiError | None) -> None:
        self.pending.pop()(reply)


@pytest.fixture
def harness() -> RegistrationHarness:
    return RegistrationHarness()


def test_backoff_doubles_with_each_failure(harness: RegistrationHarness) -> None:
    for backoff_ms in (100, 200, 400, 800):
        harness.respond(TIMED_OUT)
        harness.host.advance(int(0.97 * backoff_ms))
        assert harness.pending == []
        harness.host.advance(int(0.06 * backoff_ms))
        assert len(harness.pending) == 1


def test_new_leader_ends_the_backoff(harness: RegistrationHarness) -> None:
    for backoff_ms in (100, 200, 400, 800):
        harness.respond(TIMED_OUT)
        harness.host.advance(2 * backoff_ms)
    harness.respond(TIMED_OUT)
    harness.registration.retry_now()
    harness.respond(None)
    assert harness.host.timers == 0


def test_new_leader_during_a_request_ends_the_backoff_of_its_failure(harness: RegistrationHarness) -> None:
    harness.registration.retry_now()
    assert len(harness.pending) == 1
    harness.respond(TIMED_OUT)
    assert len(harness.pending) == 1
    harness.respond(TIMED_OUT)
    assert harness.pending == []
