"""The hosts of listeners on which users of the HTTP port may log in before the listeners are bound."""

from __future__ import annotations

import pytest

from kwire.broker.observe.login_listeners import _may_be_loopback


@pytest.mark.parametrize(
    ("host", "expected", "with_names"),
    [
        ("", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("10.0.0.1", False, False),
        ("fe80::1%eth0", False, False),
        ("127.0.0.1", True, True),
        ("127.1.2.3", True, True),
        ("::1", True, True),
        ("localhost", True, True),
        ("broker-1.example", True, False),
    ],
)
def test_loopback_hosts(host: str, expected: bool, with_names: bool) -> None:
    assert _may_be_loopback(host) is expected
    assert _may_be_loopback(host, is_name_loopback=False) is with_names
