"""The effect of kwire's console on the latency of a producer.

The producer sends single records with a pause of a millisecond. Two measurements without a reader show the
noise. Then a reader searches for a key that does not exist (8 MiB of a topic per page), or reads page after
page of messages, with a pause of one second between pages or without a pause. Without a pause, the reader
reads the first pages before the measurement, because the console serves them faster. Reader and console are
separate processes. The reader has the scheduling class SCHED_IDLE, because it represents a browser, which
usually runs on another machine.

In another measurement, for comparison, a process only copies memory. It has the same nice value as the
console, and takes as much processor time per page as console and reader together. Apache Kafka has no
console.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import Kwire, children, cpu_ticks, free_port
from bench.figures import Figure, percentile
from bench.latency import acknowledgements

TOPIC = "big"
TOPIC_BYTES = 256_000_000
VALUE_BYTES = 600
PAUSE_SECONDS = 0.001
POOL = random.Random(1).randbytes(500_000).hex().encode()
"""Random data from which values are taken, so that similar values do not compress well."""
IDLE = " of one record, no reader"
IDLE_AGAIN = ", no reader, again"
FIRST_SECONDS = 3.0
PRODUCER = {"linger.ms": 20, "compression.type": "zstd", "queue.buffering.max.messages": 200_000}
READS = {
    "one 8 MiB search per second": ("from=AT&key=not-there", 1.0),
    "searches without a pause": ("from=AT&key=not-there", 0.0),
    "one page per second": ("from=AT", 1.0),
    "pages without a pause": ("from=AT", 0.0),
}
"""By reader, the query and the pause after each page in seconds. AT stands for the page's first offset."""
STEP = 20_000
"""The number of offsets from one page to the next."""

READER = f"""
import os, sys, time, urllib.request
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
url, query, end, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
at = 0
print("ready", flush=True)
while True:
    with urllib.request.urlopen(url + "?" + query.replace("AT", str(at))) as answer:
        answer.read()
    at = (at + {STEP}) % end
    print(time.monotonic(), flush=True)
    time.sleep(pause)
"""


COPIER = """
import os, sys, time
os.nice(10)
busy = float(sys.argv[1])
memory = bytearray(64 << 20)
print("ready", flush=True)
while True:
    until = time.process_time() + busy
    while time.process_time() < until:
        memory[: 4 << 20] = memory[8 << 20 : 12 << 20]
    time.sleep(1)
"""
COPYING = ", a process that copies memory"
REFERENCE_READ = "one 8 MiB search per second"
"""The reader that determines how much processor time the copying process takes."""


class _WithConsole(Kwire):
    """kwire with its console on a separate port."""

    def __init__(self) -> None:
        super().__init__()
        self.http_port = free_port()

    def command(self) -> list[str]:
        return [*super().command(), "--console", "--http", str(self.http_port)]

    def console_ticks(self) -> int:
        """Return the processor time, in clock ticks, of the console, which is a child of the broker."""
        assert self._process is not None
        return sum(map(cpu_ticks, children(self._process.pid)))


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure the latency of single records without a reader and with each reader, each for `seconds`."""
    if Kwire.name not in names:
        return []
    figures = {
        (label, percent): Figure(f"p{percent}{label}", "ms")
        for label in (IDLE, IDLE_AGAIN, *(f", {read}" for read in READS))
        for percent in (50, 99)
    }
    pages = {read: Figure(f"pages: {read}", "1/s") for read in READS}
    cpu_per_page = Figure(f"CPU of console and reader: {REFERENCE_READ}", "s/page")
    for percent in (50, 99):
        figures[COPYING, percent] = Figure(f"p{percent}{COPYING}", "ms")
    broker = _WithConsole()
    try:
        broker.start()
        end = _fill(broker)
        for _ in range(rounds):
            _add(figures, IDLE, acknowledgements(broker, seconds, PAUSE_SECONDS))
            for read, (query, pause) in READS.items():
                with _running_reader(broker, query, end, pause) as (reader, read_pages):
                    if not pause:
                        acknowledgements(broker, FIRST_SECONDS, PAUSE_SECONDS)
                    before, begun = _ticks(broker, reader), time.monotonic()
                    latencies = acknowledgements(broker, seconds, PAUSE_SECONDS)
                    spent = (_ticks(broker, reader) - before) / os.sysconf("SC_CLK_TCK")
                    ended = time.monotonic()
                count = sum(begun <= float(at) <= ended for at in read_pages)
                pages[read].add(broker.name, count / (ended - begun))
                _add(figures, f", {read}", latencies)
                if read == REFERENCE_READ:
                    cpu_per_page.add(broker.name, spent / max(1, count))
            _add(figures, IDLE_AGAIN, acknowledgements(broker, seconds, PAUSE_SECONDS))
            with _background_process(COPIER, str(cpu_per_page.median(broker.name))):
                _add(figures, COPYING, acknowledgements(broker, seconds, PAUSE_SECONDS))
    finally:
        broker.discard()
    return [*figures.values(), *pages.values(), cpu_per_page]


def _ticks(broker: _WithConsole, reader: int) -> int:
    return broker.console_ticks() + cpu_ticks(reader)


def _add(figures: dict[tuple[str, int], Figure], label: str, latencies: list[float]) -> None:
    for percent in (50, 99):
        figures[label, percent].add(Kwire.name, percentile(latencies, percent) * 1e3)


def _fill(broker: Kwire) -> int:
    """Create and fill a topic with one partition, and return the end offset of the partition."""
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result(30)
    producer = Producer({**client, **PRODUCER})
    count = TOPIC_BYTES // VALUE_BYTES
    rng = random.Random(2)
    for number in range(count):
        at = rng.randrange(len(POOL) - VALUE_BYTES)
        while True:
            try:
                producer.produce(TOPIC, POOL[at : at + VALUE_BYTES], f"key-{number}", partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(60):
        raise RuntimeError("the topic was not written within a minute")
    return count


@contextmanager
def _running_reader(
    broker: _WithConsole, query: str, end: int, pause: float
) -> Iterator[tuple[int, list[str]]]:
    """Run a reader during the block. Yield its process id, and a list of lines.

    After the block, the list contains one line per page: the time when the reader received the page.
    """
    url = f"http://127.0.0.1:{broker.http_port}/console/topics/{TOPIC}/0"
    with _background_process(READER, url, query, str(end), str(pause)) as reader:
        yield reader


@contextmanager
def _background_process(program: str, *arguments: str) -> Iterator[tuple[int, list[str]]]:
    """Run a program during the block. Yield its process id, and a list.

    After the block, the list contains the lines that the program printed after its first line.
    """
    output: list[str] = []
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            time.sleep(1)  # the reader's first page starts the console
            yield process.pid, output
        finally:
            process.kill()
        output.extend(process.stdout)
