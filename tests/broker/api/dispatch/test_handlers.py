"""The table of what is served and those of what answers it say the same."""

from __future__ import annotations

import pytest

from kwire.broker.api.dispatch.handlers import AS_CONTROLLER, FIRST, HANDLERS, imported
from kwire.broker.api.request.table import SERVED, ListenerRole


def test_what_is_served_has_a_handler_and_nothing_else() -> None:
    assert HANDLERS.keys() == SERVED.keys()
    assert all(SERVED[key].by.value.is_forwarded for key in FIRST)
    assert all(ListenerRole.CONTROLLER in SERVED[key].by.value.roles for key in AS_CONTROLLER)


@pytest.mark.parametrize("name", sorted({*HANDLERS.values(), *FIRST.values(), *AS_CONTROLLER.values()}))
def test_every_handler_is_there(name: str) -> None:
    assert callable(imported(name))
