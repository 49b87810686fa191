"""Fixtures for network faults and disk faults.

Both kinds of faults need root on Linux. Without root, the tests that use them are skipped with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from interop.cluster.disks import Disk, DiskUnavailable
from interop.cluster.network import Network, NetworkUnavailable, create_network


@pytest.fixture(name="network")
def fixture_network() -> Iterator[Network]:
    try:
        found = create_network()
    except NetworkUnavailable as error:
        warnings.warn(f"no network was cut: {error}", stacklevel=1)
        pytest.skip(f"no network namespaces can be made here: {error}")
    try:
        yield found
    finally:
        found.discard()


@pytest.fixture(name="small")
def fixture_small() -> Iterator[Disk]:
    try:
        found = Disk()
    except DiskUnavailable as error:
        warnings.warn(f"no disk was filled: {error}", stacklevel=1)
        pytest.skip(f"no disk can be made here: {error}")
    try:
        yield found
    finally:
        found.discard()
