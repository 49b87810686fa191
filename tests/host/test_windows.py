"""Rates, averages and maxima of the last 30 to 60 seconds."""

from __future__ import annotations

import math

from kwire.host.windows import WINDOW_MS, Windows


def test_without_values_the_rate_is_zero_and_the_average_unknown() -> None:
    empty = Windows()
    assert empty.per_second(0) == 0
    assert math.isnan(empty.average(0))
    assert math.isnan(empty.maximum(0))


def test_values_of_two_windows_count_and_older_ones_do_not() -> None:
    windows = Windows()
    for second in range(90):
        windows.record(second, second * 1000)
    now_ms = 90_000
    assert windows.maximum(now_ms) == 89
    assert windows.average(now_ms) == sum(range(60, 90)) / 30  # the window that began at 30 s has expired
    assert windows.average(now_ms - 1) == sum(range(30, 90)) / 60
    assert math.isnan(windows.average(now_ms + WINDOW_MS))


def test_a_rate_in_the_first_window_counts_a_window_without_values_before_it() -> None:
    # As in Kafka: a single burst right after the start is no high rate.
    windows = Windows()
    windows.record(60, 0)
    assert windows.per_second(0) == 2
    assert windows.per_second(WINDOW_MS) == 2
    windows.record(60, WINDOW_MS)
    assert windows.per_second(WINDOW_MS) == 4
