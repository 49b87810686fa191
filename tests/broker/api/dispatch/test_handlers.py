"""The table of supported APIs and the tables of handlers agree."""

from __future__ import annotations

import pytest

from kwire.broker.api.dispatch.handlers import (
    BEFORE_FORWARDING,
    CONTROLLER_HANDLERS,
    HANDLERS,
    import_handler,
)
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole


def test_every_supported_api_has_a_handler() -> None:
    assert HANDLERS.keys() == SUPPORTED_APIS.keys()
    assert all(SUPPORTED_APIS[key].handled_by.value.is_forwarded for key in BEFORE_FORWARDING)
    assert all(
        ListenerRole.CONTROLLER in SUPPORTED_APIS[key].handled_by.value.roles for key in CONTROLLER_HANDLERS
    )


@pytest.mark.parametrize(
    "name", sorted({*HANDLERS.values(), *BEFORE_FORWARDING.values(), *CONTROLLER_HANDLERS.values()})
)
def test_every_handler_can_be_imported(name: str) -> None:
    assert callable(import_handler(name))
