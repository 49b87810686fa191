"""Functions that run with idle scheduling priority."""

from __future__ import annotations

import os
import sys

import pytest

from kwire.console.idle_priority import run_at_idle_priority
from kwire.host.system_os import os as system_calls


def test_result_and_error_are_passed_through() -> None:
    assert run_at_idle_priority(lambda: 7) == 7
    with pytest.raises(LookupError, match="not there"):
        run_at_idle_priority(lambda: _fail("not there"))


def _fail(reason: str) -> None:
    raise LookupError(reason)


@pytest.mark.linux("SCHED_IDLE")
def test_only_the_called_function_runs_with_idle_priority() -> None:
    if sys.platform == "linux":
        before = os.sched_getscheduler(0)
        assert run_at_idle_priority(lambda: os.sched_getscheduler(0)) == os.SCHED_IDLE
        assert os.sched_getscheduler(0) == before


@pytest.mark.linux("SCHED_IDLE")
def test_function_runs_without_permission_for_idle_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(system_calls, "sched_setscheduler", refuse)
    assert run_at_idle_priority(lambda: 7) == 7
