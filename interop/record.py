"""Observations of Apache Kafka that are stored for later runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from interop.reference import NODE_SUFFIX, TARGET

OBSERVATIONS = TARGET / f"observations{NODE_SUFFIX}"


class Record:
    """Stored observations of Apache Kafka, with which ``--only kwire`` compares kwire."""

    def path(self, name: str) -> Path:
        return OBSERVATIONS / f"{name}.json"

    def save(self, name: str, observation: Any) -> None:
        OBSERVATIONS.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(json.dumps(observation, indent=1))

    def load(self, name: str) -> Any:
        return json.loads(self.path(name).read_text())
