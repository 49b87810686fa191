"""All scenarios of clients and tools, run on Apache Kafka first and then on kwire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop.brokers import Broker
from interop.scenario import Difference, Scenario
from interop.side_by_side import run_and_compare, scenarios

if TYPE_CHECKING:
    from interop.record import Record


@scenarios(raw=False)
def test_kwire_does_what_apache_kafka_does(
    scenario: Scenario,
    apache: Broker | None,
    kwire: Broker | None,
    record: Record,
    differences: list[Difference],
) -> None:
    run_and_compare(scenario, apache, kwire, record, differences, alone=scenario.is_alone)
