"""Server-side assignors of consumer groups. KIP-848."""

from __future__ import annotations

from collections.abc import Mapping

from kwire.coordinator.groups.assignors import range as range_assignor
from kwire.coordinator.groups.assignors import uniform
from kwire.coordinator.groups.assignors.spec import Assignor

ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform.assign, "range": range_assignor.assign}
"""The assignors by the names in requests. The first one is Kafka's default."""
