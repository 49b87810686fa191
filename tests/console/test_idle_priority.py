"""What waits for processors that nobody else wants."""

from __future__ import annotations

import os

import pytest

from kwire.console.idle_priority import run_at_idle_priority


def test_it_is_as_if_it_were_called() -> None:
    assert run_at_idle_priority(lambda: 7) == 7
    with pytest.raises(LookupError, match="not there"):
        run_at_idle_priority(lambda: _fail("not there"))


def _fail(why: str) -> None:
    raise LookupError(why)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has threads that are idle")
def test_only_the_work_is_idle() -> None:
    before = os.sched_getscheduler(0)
    assert run_at_idle_priority(lambda: os.sched_getscheduler(0)) == os.SCHED_IDLE
    assert os.sched_getscheduler(0) == before


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has threads that are idle")
def test_where_it_is_forbidden_to_be_idle_the_work_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert run_at_idle_priority(lambda: 7) == 7
