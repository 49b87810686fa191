"""The functions of `time` that libraries for tests do not replace."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import freezegun
import time_machine

from kwire.host import system_time
from kwire.host.clock import SystemClock

A_MINUTE_NS = 60_000_000_000


def test_clocks_agree_with_the_module_time() -> None:
    for name in ("monotonic", "perf_counter"):
        function, replaced = getattr(system_time, name), getattr(time, name)
        assert replaced() <= function() <= replaced()
    assert (
        time.time_ns() // 1_000_000 <= system_time.libc_time_ns() // 1_000_000 <= time.time_ns() // 1_000_000
    )
    assert system_time.strftime("%Y", system_time.localtime(0)) == time.strftime("%Y", time.localtime(0))


def test_clocks_go_on_while_the_module_time_is_frozen(tmp_path: Path) -> None:
    (tmp_path / "now").write_bytes(b"")
    written_ns = (tmp_path / "now").stat().st_mtime_ns
    before_ns = time.monotonic_ns()
    with freezegun.freeze_time("2001-09-09"), mock.patch("time.sleep"):
        assert before_ns < system_time.monotonic_ns() < before_ns + A_MINUTE_NS
        assert abs(system_time.libc_time_ns() - written_ns) < A_MINUTE_NS
        began_s = system_time.perf_counter()
        system_time.sleep(0.001)
        assert system_time.perf_counter() - began_s >= 0.001
    with time_machine.travel("2001-09-09", tick=False):
        assert abs(system_time.libc_time_ns() - written_ns) < A_MINUTE_NS
        assert abs(SystemClock(system_time.libc_time_ns).now_ms() - written_ns // 1_000_000) < 60_000
