"""The configuration of a restore."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.pipeline.config import ConfigError, JobConfig
from kwire.pipeline.jobs.restore import RestoreConfig, directory_config

TABLE = {"directory": "/srv/archive", "job": "back", "client": {"bootstrap.servers": "h:1"}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"client": {}}, r'restore\.client\."bootstrap\.servers" is missing: set it to the target cluster'),
        ({"start_offset": 5, "end_offset": 5}, r"restore\.end_offset is exclusive and must be larger than"),
        (
            {"start_ms": 6, "end_ms": 5},
            r"restore\.end_ms is exclusive and must be larger than start_ms \(6\), not 5",
        ),
        ({"job": ""}, r"restore\.job is empty"),
    ],
)
def test_a_configuration_error_is_named(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        RestoreConfig.of(JobConfig({"restore": {**TABLE, **changes}}))


def test_a_range_of_times_may_be_before_1970() -> None:
    told = {**TABLE, "start_ms": -10, "end_ms": -5, "topics": "a, b"}
    found = RestoreConfig.of(JobConfig({"restore": told})).wanted
    assert (found.start_ms, found.end_ms, found.topics) == (-10, -5, frozenset({"a", "b"}))
    told = {key: value for key, value in told.items() if key != "client"}
    into = directory_config(JobConfig({"restore": {**told, "into_directory": "/srv/new"}}))
    assert into is not None
    assert into.wanted == found
