"""Findings of `kwire doctor` about the machine."""

from __future__ import annotations

import pytest

from kwire.cli.doctor.finding import OK, PROBLEM, WARNING
from kwire.cli.doctor.machine import MachineFacts, findings, gather_facts

GOOD_FACTS = MachineFacts(
    python=(3, 11),
    platform="linux",
    cores=4,
    max_open_files=100_000,
    memory_bytes=8 << 30,
    free_memory_bytes=4 << 30,
    is_clock_synchronized=True,
    max_backlog=4096,
    record_validation="native",
    has_re2=True,
)


def test_good_machine_has_no_findings() -> None:
    assert {one.severity for one in findings(GOOD_FACTS, 50)} == {OK}


@pytest.mark.parametrize(
    ("facts", "severity", "fix"),
    [
        ({"platform": "win32"}, PROBLEM, "run the broker on Linux or macOS"),
        ({"python": (3, 10)}, PROBLEM, "install Python 3.11"),
        ({"max_open_files": 1024}, PROBLEM, "ulimit -n 65536"),
        ({"max_open_files": 10_000}, WARNING, "ulimit -n 65536"),
        ({"free_memory_bytes": 1 << 20}, WARNING, "add memory"),
        ({"cores": 1}, WARNING, "use two"),
        ({"is_clock_synchronized": False}, WARNING, "run chrony"),
        ({"max_backlog": 10}, WARNING, "net.core.somaxconn=50"),
        ({"record_validation": "Python"}, WARNING, "install the wheel for this system"),
        ({"has_re2": False}, WARNING, "pip install 'kwire[regex]'"),
    ],
)
def test_finding_has_a_severity_and_a_fix(facts: dict[str, object], severity: str, fix: str) -> None:
    machine = MachineFacts(**{**GOOD_FACTS._asdict(), **facts})
    (found,) = [one for one in findings(machine, 50) if one.severity != OK]
    assert found.severity == severity
    assert fix in (found.fix or "")


def test_unknown_facts_are_no_findings() -> None:
    unknown = GOOD_FACTS._replace(
        memory_bytes=None, free_memory_bytes=None, is_clock_synchronized=None, max_backlog=None
    )
    assert {one.severity for one in findings(unknown, 50)} == {OK}


def test_facts_of_this_machine_are_plausible() -> None:
    machine = gather_facts()
    assert machine.cores >= 1
    assert machine.max_open_files > 0
    assert machine.free_memory_bytes is None or 0 < machine.free_memory_bytes <= (machine.memory_bytes or 0)
