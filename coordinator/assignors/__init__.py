"""Server-side assignors of consumer groups. KIP-848."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.assignors import range as range_assignor
from coordinator.assignors import uniform
from coordinator.assignors.spec import Assignor

ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform.assign, "range": range_assignor.assign}
"""By the names that clients ask for; the first is Kafka's default."""
