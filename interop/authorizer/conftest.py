"""The two brokers of the matrix, Apache Kafka and kwire, with the same resources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.authorizer.resources import create_resources
from interop.authorizer.world import World
from interop.brokers import ApacheKafka, Kwire

Worlds = tuple[World, World]


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """Apache Kafka and kwire, in this order."""
    pair = World(ApacheKafka), World(Kwire)
    try:
        for world in pair:
            world.start()
            create_resources(world)
        yield pair
    finally:
        for world in pair:
            world.discard()
