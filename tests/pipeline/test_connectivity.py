"""The connection check before a job."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from kwire.pipeline.config import ConfigError, JobConfig
from kwire.pipeline.connectivity import check_reachable


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_one_reachable_server_is_enough(port: int) -> None:
    check_reachable("k", f"127.0.0.1:{free_port()}, PLAINTEXT://127.0.0.1:{port}", 5)


def test_unreachable_servers_are_reported_within_the_timeout() -> None:
    servers = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        check_reachable('input.options."kafka.bootstrap.servers"', servers, 0.7)
    assert time.monotonic() - began < 5
    assert str(caught.value) == (
        f'cannot connect to {servers}: check input.options."kafka.bootstrap.servers", and that a broker '
        f"runs there"
    )


@pytest.mark.parametrize("servers", ["one two:9092", "one:port", "one:1:2"])
def test_an_invalid_address_is_reported(servers: str) -> None:
    with pytest.raises(ConfigError, match="k must be a list like 'one:9092,two:9092', not"):
        check_reachable("k", servers, 0)


def test_servers_are_found_in_the_tables_of_a_job() -> None:
    config = JobConfig(
        {
            "input": {"format": "kafka", "options": {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}},
            "side": {"format": "kwire", "options": {"kafka.bootstrap.servers": "b:1"}},
            "mirror": {"client": {"bootstrap.servers": "c:1"}, "job": "m"},
            "other": {"client": {"bootstrap.servers": "d:1"}},
        }
    )
    assert list(config.servers(["input", "side", "mirror", "values"])) == [
        ('input.options."kafka.bootstrap.servers"', "a:1"),
        ('mirror.client."bootstrap.servers"', "c:1"),
    ]
