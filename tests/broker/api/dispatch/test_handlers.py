"""The table of supported APIs and the tables of handlers agree."""

from __future__ import annotations

import pytest

from kwire.broker.api.dispatch.handlers import (
    BEFORE_FORWARDING,
    CONTROLLER_HANDLERS,
    HANDLERS,
    import_handler,
)
from kwire.broker.api.request.needs import ByHandler, ItemNeed, Need
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole, SupportedApi
from kwire.wire.registry import API_VERSIONS


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


def test_an_api_without_declared_needs_cannot_be_served() -> None:
    with pytest.raises(TypeError, match="needs"):
        SupportedApi(0, 1)  # type: ignore[call-arg]


def test_every_supported_api_declares_its_needs_or_why_its_handler_decides() -> None:
    for key, api in SUPPORTED_APIS.items():
        assert api.needs, key
        for need in api.needs:
            assert isinstance(need, Need | ItemNeed | ByHandler), key
            assert not isinstance(need, ByHandler) or need.reason, key
            if isinstance(need, Need) and need.field:
                fields = API_VERSIONS[key].request_class.declared_fields
                assert need.field in fields, key
