"""The limit of file descriptors (`ulimit -n`) in processes that kwire owns."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from kwire.testing import Broker
from tests.durability.child import BrokerProcess


@pytest.mark.linux("prlimit")
def test_serve_raises_its_soft_limit_to_the_hard_limit(tmp_path: Path) -> None:
    if sys.platform == "linux":
        process = BrokerProcess(tmp_path / "data", tmp_path / "log", {}, open_files=(256, 1024))
        process.start()
        try:
            assert process.wait_until_it_serves()
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (1024, 1024)
            process.stop()
        finally:
            process.kill()


def test_embedded_broker_leaves_the_limit_of_its_process_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = (before[0] - 1, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, lowered)
    try:
        with Broker():
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == lowered
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
