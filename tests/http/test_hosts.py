"""Allowed values of the Host header."""

from __future__ import annotations

import pytest

from kwire.http.hosts import is_known_name, is_local_name


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("127.4.5.6:1", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("rebound.example:8080", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("10.0.0.1:8080", False),
        ("", False),
    ],
)
def test_local_hosts(host: str, is_local: bool) -> None:
    assert is_local_name(host) == is_local


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("10.0.0.1:8080", True),
        ("[fe80::1]:8080", True),
        ("localhost", True),
        ("Broker-1.example:80", True),
        ("broker-1.example.evil.example", False),
        ("", False),
    ],
)
def test_allowed_hosts(host: str, is_ours: bool) -> None:
    assert is_known_name(host, {"broker-1.Example"}) == is_ours
