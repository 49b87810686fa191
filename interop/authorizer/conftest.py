"""The brokers of the matrix, Apache Kafka and kwire, with the same resources."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from interop.authorizer.audit_trail import TracingKafka
from interop.authorizer.comparison import Worlds
from interop.authorizer.resources import create_resources
from interop.authorizer.world import World
from interop.brokers import Kwire


@contextmanager
def started(overrides: dict[str, str] | None = None) -> Iterator[Worlds]:
    """Start both brokers and create the resources."""

    def start(world: World) -> None:
        world.start()
        create_resources(world)

    pair = World(TracingKafka, overrides), World(Kwire, overrides)
    try:
        with ThreadPoolExecutor(2) as executor:
            list(executor.map(start, pair))
        yield pair
    finally:
        for world in pair:
            world.discard()


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    with started() as pair:
        yield pair


@pytest.fixture(scope="session")
def open_worlds() -> Iterator[Worlds]:
    """Start brokers on which everyone may use a resource that has no ACL."""
    with started({"allow.everyone.if.no.acl.found": "true"}) as pair:
        yield pair
