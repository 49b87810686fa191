"""What is made of a machine's facts."""

from __future__ import annotations

import pytest

from kwire.cli.doctor.finding import GOOD, PROBLEM, WARNING
from kwire.cli.doctor.machine import Machine, findings, look

FINE = Machine(
    python=(3, 11),
    platform="linux",
    cores=4,
    open_files=100_000,
    most_open_files=100_000,
    memory_bytes=8 << 30,
    free_memory_bytes=4 << 30,
    is_clock_synchronised=True,
    longest_backlog=4096,
)


def test_a_fine_machine_needs_nothing() -> None:
    assert {one.verdict for one in findings(FINE, 50)} == {GOOD}


@pytest.mark.parametrize(
    ("facts", "verdict", "to_do"),
    [
        ({"platform": "darwin"}, PROBLEM, "run the broker on Linux"),
        ({"python": (3, 10)}, PROBLEM, "install Python 3.11"),
        ({"open_files": 1024}, PROBLEM, "ulimit -n 65536"),
        ({"open_files": 10_000}, WARNING, "ulimit -n 65536"),
        ({"open_files": 1024, "most_open_files": 4096}, PROBLEM, "raise the hard limit of 4,096"),
        ({"free_memory_bytes": 1 << 20}, WARNING, "give the machine more"),
        ({"cores": 1}, WARNING, "give it two"),
        ({"is_clock_synchronised": False}, WARNING, "run chrony"),
        ({"longest_backlog": 10}, WARNING, "net.core.somaxconn=50"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(facts: dict[str, object], verdict: str, to_do: str) -> None:
    machine = Machine(**{**FINE._asdict(), **facts})  # type: ignore[arg-type]
    (found,) = [one for one in findings(machine, 50) if one.verdict != GOOD]
    assert found.verdict == verdict
    assert to_do in (found.to_do or "")


def test_what_cannot_be_told_is_no_fault() -> None:
    unknown = FINE._replace(
        memory_bytes=None, free_memory_bytes=None, is_clock_synchronised=None, longest_backlog=None
    )
    assert {one.verdict for one in findings(unknown, 50)} == {GOOD}


def test_this_machine_has_facts() -> None:
    machine = look()
    assert machine.cores >= 1
    assert 0 < machine.open_files <= machine.most_open_files
    assert machine.free_memory_bytes is None or 0 < machine.free_memory_bytes <= (machine.memory_bytes or 0)
