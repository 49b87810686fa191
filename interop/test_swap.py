"""Apache Kafka and kwire take turns on one data directory, and neither may see a difference.

First, Apache Kafka takes every turn alone. The log messages of this run, and the output of kafka-dump-log on
its files, are accepted in the runs with kwire.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from interop.scenario import Difference, compare, explain, table
from interop.swap.content import Workload
from interop.swap.dump_log import dump_errors_by_shape
from interop.swap.observation import observe
from interop.swap.shared_directory import Shared, log_messages_by_shape

# Accepted differences. Remove an entry once kwire behaves like Apache Kafka.
KNOWN_DIFFERENCES: list[tuple[str, str, str]] = []
ON_A_BUSY_MACHINE = [
    "EventPerformanceMonitor",
    "processExpiredBrokerHeartbeat",
    "sent a heartbeat request but received error REQUEST_TIMED_OUT",
]
"""Messages that Apache Kafka logs if the machine delays it."""
BY_CHANCE_ALONE = [
    "handleResponse: unexpected callback exception",
    "creation failed for __consumer_offsets with error 'TOPIC_ALREADY_EXISTS'",
    "due to Stopped load",
]
"""Messages that Apache Kafka logs occasionally, also without kwire.

In Apache Kafka's ReplicaAlterLogDirsThread, the end of a move races with the response that permits the end: 2
of 456 moves by Apache Kafka 4.3.1 alone logged the message. A client may look up a coordinator before the
broker knows the new topic. And a test may stop the broker while its group coordinator loads.
"""
AFTER_A_KILL = re.compile(r"Failed atomic move of \S+-delete/\d+\.timeindex to ")
"""Logged if the previous broker was killed while it deleted a directory file by file."""
ENDINGS = ["stop", "stop", "kill", "kill", "torn", "torn", "stop", "stop"]
ENDINGS_ALONE = ["stop", "kill", "torn", "stop"]
ENDINGS_DYNAMIC = ["kill", "stop", "stop"]


@dataclass
class SwapResult:
    """The observations from all turns of the brokers."""

    differences: list[Difference] = field(default_factory=list)
    """Differences between the state at the end of a turn and the state that the next broker reports."""
    logged: dict[str, dict[str, str]] = field(default_factory=dict)
    """By broker: an example of each shape of warning and error in its log, by shape."""
    dump_errors_by_shape: dict[str, str] = field(default_factory=dict)
    """An example of each shape of kafka-dump-log's error messages, by shape."""


def run_turns(name: str, order: list[str], endings: list[str], *, dynamic_quorum: bool = False) -> SwapResult:
    result, shared = SwapResult(), Shared(name, dynamic_quorum=dynamic_quorum)
    workload = Workload(shared.log_dirs)
    left, last = None, ""
    try:
        for turn, how in enumerate(endings):
            broker = shared.start(order[turn % len(order)])
            if left is not None:
                where = f"turn {turn + 1}, {broker.name} after {last}"
                result.differences += compare(where, left, observe(broker))
            workload.run_turn(broker)
            left, last = observe(broker), f"{broker.name} {how}"
            shared.end(how)
            messages = log_messages_by_shape(broker.log_text())
            if turn and endings[turn - 1] != "stop":
                messages = {shape: line for shape, line in messages.items() if not AFTER_A_KILL.search(line)}
            result.logged.setdefault(broker.name, {}).update(messages)
            if how == "stop":
                for shape, line in dump_errors_by_shape(shared).items():
                    result.dump_errors_by_shape[shape] = f"after {last}: {line}"
    finally:
        shared.discard()
    return result


@pytest.fixture(scope="module")
def alone() -> SwapResult:
    """Run all turns with Apache Kafka only, and return the result."""
    return run_turns("alone", ["apache"], ENDINGS_ALONE)


@pytest.mark.parametrize(
    "order", [["apache", "kwire"], ["kwire", "apache"]], ids=["apache_first", "kwire_first"]
)
def test_brokers_alternate_on_a_static_quorum(
    order: list[str], alone: SwapResult, differences: list[Difference]
) -> None:
    report_differences(run_turns(f"{order[0]}-first", order, ENDINGS), alone, differences)


@pytest.mark.parametrize(
    "order", [["apache", "kwire"], ["kwire", "apache"]], ids=["apache_first", "kwire_first"]
)
def test_brokers_take_turns_in_a_dynamic_quorum(
    order: list[str], alone: SwapResult, differences: list[Difference]
) -> None:
    """Let the brokers take turns with a dynamic quorum (KIP-853), which the first broker formats."""
    result = run_turns(f"{order[0]}-first-dynamic", order, ENDINGS_DYNAMIC, dynamic_quorum=True)
    report_differences(result, alone, differences)
    assert not [line for line in result.logged["kwire"].values() if "bootstrap.servers" in line]


def report_differences(result: SwapResult, alone: SwapResult, differences: list[Difference]) -> None:
    """Fail if there is an unexplained difference or an unexpected message."""
    found = [explain(difference, KNOWN_DIFFERENCES) for difference in result.differences]
    differences.extend({difference.path: difference for difference in found}.values())
    wrong = [table([difference]) for difference in found if not difference.reason]
    for what, here, there in (
        ("kafka-dump-log", result.dump_errors_by_shape, alone.dump_errors_by_shape),
        ("Apache Kafka", result.logged["apache"], alone.logged["apache"]),
    ):
        new = [line for shape, line in here.items() if shape not in there]
        wrong += [
            f"{what} says: {line}"
            for line in new
            if not any(word in line for word in (*ON_A_BUSY_MACHINE, *BY_CHANCE_ALONE))
        ]
    if wrong:
        pytest.fail("\n" + "\n".join(wrong), pytrace=False)


def test_apache_kafka_alone_changes_nothing(alone: SwapResult) -> None:
    """Check that Apache Kafka alone shows no differences, because the comparison relies on that."""
    print("\n".join([*alone.logged["apache"].values(), *alone.dump_errors_by_shape.values()]))
    assert not alone.differences, "\n" + table(alone.differences)
