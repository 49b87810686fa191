"""kwire with a planted fault, as a broker that the load can start and kill."""

from __future__ import annotations

import sys

from interop.brokers import Broker
from interop.reference import HERE


class FaultyKwire(Broker):
    """kwire with one of the faults in `faults`."""

    name = "faulty-kwire"

    def __init__(self, fault: str, overrides: dict[str, str]) -> None:
        super().__init__(overrides)
        self._fault = fault
        self.environment["PYTHONPATH"] = str(HERE.parent)

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "interop.exactly_once.faulty_broker", self._fault),
            *("serve", str(self.properties_path)),
        ]
