"""Metrics of the process, with the names of Prometheus' client libraries."""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kwire.broker.observe.exposition import Exposition
from kwire.host.platform.processes import OPEN_FILES

PROC: Final = Path("/proc/self")
START_TICKS: Final = 19
RESIDENT_PAGES: Final = 21
VIRTUAL_BYTES: Final = 20
"""Field positions in /proc/self/stat, counted after the process name, which may contain blanks. proc(5)."""


def disk_metrics(prefixes: Iterable[str], out: Exposition) -> None:
    """Write how many bytes the process has read from and written to disks, under Kafka's names for Linux."""
    try:
        lines = (PROC / "io").read_text().splitlines()
    except OSError:
        return
    counts = dict(line.split(": ") for line in lines)
    for prefix in prefixes:
        out.gauge(f"{prefix}_linux_disk_read_bytes", int(counts["read_bytes"]))
        out.gauge(f"{prefix}_linux_disk_write_bytes", int(counts["write_bytes"]))


def process_metrics(out: Exposition) -> None:
    """Write the metrics of the process. Without /proc, some metrics are omitted."""
    times = os.times()
    out.counter("process_cpu_seconds_total", round(times.user + times.system, 2))
    max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    out.gauge("process_max_fds", max_fds)
    try:
        out.gauge("process_open_fds", len(os.listdir(OPEN_FILES)))
    except OSError as error:
        if error.errno == errno.EMFILE:
            out.gauge("process_open_fds", max_fds)
    if sys.platform != "linux":
        return
    try:
        fields = (PROC / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return
    since_boot = int(fields[START_TICKS]) / os.sysconf("SC_CLK_TCK")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    out.gauge("process_start_time_seconds", round(booted + since_boot, 2))
    out.gauge("process_virtual_memory_bytes", int(fields[VIRTUAL_BYTES]))
    out.gauge("process_resident_memory_bytes", int(fields[RESIDENT_PAGES]) * resource.getpagesize())
