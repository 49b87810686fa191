"""The console: what a producer notices of somebody who reads in it.

One record at a time, with a pause of a millisecond before each, so that the processors have time to spare: in
quiet, twice, so that it shows what the same is worth; while a key is searched for that is not there, 8 MiB of
a topic a page; and while pages of messages are turned. Each page comes a second after the one before, or as
soon as that has come: then the first ones, which the console gives at once, are read beside a producer before
anything is measured. The reader is a process of its own, and so is the console. Apache Kafka has none. The
reader is idle to the scheduler: it stands for a browser, which is somebody else's, mostly on another machine,
and what it takes of the processors is not the console's.

For comparison beside a process that only copies memory, as nice as the console is and as long for each page
as it and the reader take together: what a machine makes of anything that runs beside a broker.
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
"""What values are cut out of, so that none is packed by those before it."""
AGAIN = ", in quiet again"
FIRST_SECONDS = 3.0
PRODUCER = {"linger.ms": 20, "compression.type": "zstd", "queue.buffering.max.messages": 200_000}
READS = {
    "8 MiB searched a second": ("from=AT&key=not-there", 1.0),
    "searched without a pause": ("from=AT&key=not-there", 0.0),
    "a page a second": ("from=AT", 1.0),
    "pages without a pause": ("from=AT", 0.0),
}
"""What is asked for, again and again, and for how many seconds each page is read."""
STEP = 20_000
"""Offsets from one page to the next."""

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
COPIED = ", memory copied for as long"
BESIDE_IT = "8 MiB searched a second"
"""The reader for whose time it is copied."""


class _WithConsole(Kwire):
    """kwire, with its console on a port of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.http_port = free_port()

    def command(self) -> list[str]:
        return [*super().command(), "--console", "--http", str(self.http_port)]

    def console_ticks(self) -> int:
        """Processor time of the console, which is the broker's child."""
        assert self._process is not None
        return sum(map(cpu_ticks, children(self._process.pid)))


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """`rounds` times `seconds` of single records, in quiet and beside each kind of reader."""
    if Kwire.name not in names:
        return []
    figures = {
        (label, percent): Figure(f"produce one record{label}, p{percent}", "ms")
        for label in ("", AGAIN, *(f", {read}" for read in READS))
        for percent in (50, 99)
    }
    pages = {read: Figure(f"{read}: pages", "1/s") for read in READS}
    busy = Figure(f"{BESIDE_IT}: processor time of console and reader", "s/page")
    for percent in (50, 99):
        figures[COPIED, percent] = Figure(f"produce one record{COPIED}, p{percent}", "ms")
    broker = _WithConsole()
    try:
        broker.start()
        end = _fill(broker)
        for _ in range(rounds):
            _add(figures, "", acknowledgements(broker, seconds, PAUSE_SECONDS))
            for read, (query, pause) in READS.items():
                with _reading(broker, query, end, pause) as (reader, read_pages):
                    if not pause:
                        acknowledgements(broker, FIRST_SECONDS, PAUSE_SECONDS)
                    before, begun = _ticks(broker, reader), time.monotonic()
                    taken = acknowledgements(broker, seconds, PAUSE_SECONDS)
                    spent = (_ticks(broker, reader) - before) / os.sysconf("SC_CLK_TCK")
                    ended = time.monotonic()
                count = sum(begun <= float(at) <= ended for at in read_pages)
                pages[read].add(broker.name, count / (ended - begun))
                _add(figures, f", {read}", taken)
                if read == BESIDE_IT:
                    busy.add(broker.name, spent / max(1, count))
            _add(figures, AGAIN, acknowledgements(broker, seconds, PAUSE_SECONDS))
            with _beside(COPIER, str(busy.median(broker.name))):
                _add(figures, COPIED, acknowledgements(broker, seconds, PAUSE_SECONDS))
    finally:
        broker.discard()
    return [*figures.values(), *pages.values(), busy]


def _ticks(broker: _WithConsole, reader: int) -> int:
    return broker.console_ticks() + cpu_ticks(reader)


def _add(figures: dict[tuple[str, int], Figure], label: str, taken: list[float]) -> None:
    for percent in (50, 99):
        figures[label, percent].add(Kwire.name, percentile(taken, percent) * 1e3)


def _fill(broker: Kwire) -> int:
    """A topic of one partition; where it ends."""
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result(30)
    producer = Producer({**client, **PRODUCER})
    count = TOPIC_BYTES // VALUE_BYTES
    draw = random.Random(2)
    for number in range(count):
        at = draw.randrange(len(POOL) - VALUE_BYTES)
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
def _reading(broker: _WithConsole, query: str, end: int, pause: float) -> Iterator[tuple[int, list[str]]]:
    """Somebody who reads until the block ends, by process id; then there is a line for each page."""
    url = f"http://127.0.0.1:{broker.http_port}/console/topics/{TOPIC}/0"
    with _beside(READER, url, query, str(end), str(pause)) as beside:
        yield beside


@contextmanager
def _beside(program: str, *arguments: str) -> Iterator[tuple[int, list[str]]]:
    """A program that runs until the block ends, by process id; then there is what it has said."""
    said: list[str] = []
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            time.sleep(1)  # its first page has the console started
            yield process.pid, said
        finally:
            process.kill()
        said.extend(process.stdout)
