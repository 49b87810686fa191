"""The jobs `archive` and `restore`: records a second, and processor time for a million of them.

    python -m bench.archive [--records N[,N…]] [--partitions N[,N…]] [--rounds N] [--only BROKER]

A topic with records of 100 bytes is archived through the wire (Spark's Kafka source) and from the broker's
data directory, as far as it goes now; that archive is restored into a new topic, with the same offsets, and
into a data directory. Spark stays up on `local[2]`, and does everything once before it counts.

CPU is that of Spark with its Python workers and that of the broker.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import product

from confluent_kafka.admin import AdminClient

from bench.brokers import BROKERS, Broker, missing
from bench.figures import Figure, table
from bench.segments import MissingSpark, Spark, fill, require_spark

RECORDS = (1_000_000,)
PARTITIONS = (10,)
RESTORED = "restored"

FROM_TOPICS, FROM_FILES, TO_TOPICS, TO_FILES = (
    "archive from topics",
    "archive from a data directory",
    "restore into topics",
    "restore into a data directory",
)
JOBS = (FROM_TOPICS, FROM_FILES, TO_TOPICS, TO_FILES)


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """As the command without options. How much is archived is given by records, not by `seconds`."""
    try:
        return of(names, RECORDS, PARTITIONS, rounds, JOBS)
    except MissingSpark as error:
        print(error, file=sys.stderr)
        return []


def of(
    names: list[str],
    records_counts: tuple[int, ...],
    partitions: tuple[int, ...],
    rounds: int,
    jobs: tuple[str, ...],
) -> list[Figure]:
    """Measure jobs on brokers with topics of so many records, in each of these numbers of partitions."""
    require_spark()
    figures: dict[str, Figure] = {}
    for name, records_count, number in product(names, records_counts, partitions):
        broker = BROKERS[name]()
        try:
            broker.start()
            topic = f"records-{number}"
            fill(broker, topic, number, records_count)
            with Spark(broker, topic, "bench.archive_job") as spark:
                _rounds(broker, spark, records_count, number, rounds, jobs, figures)
        finally:
            broker.discard()
    return list(figures.values())


def _rounds(
    broker: Broker,
    spark: Spark,
    records_count: int,
    partitions: int,
    rounds: int,
    jobs: tuple[str, ...],
    figures: dict[str, Figure],
) -> None:
    what = f"{records_count:,} records in {partitions} partition{'s' if partitions > 1 else ''}"
    for number, job in product(range(rounds + 1), jobs):
        idle = broker.cpu_seconds()
        count, seconds, cpu_seconds = spark.do(job)
        cpu_seconds += broker.cpu_seconds() - idle
        if count != records_count:
            raise RuntimeError(f"{job}: {count} records of {records_count}")
        if job == TO_TOPICS:
            _delete_restored(broker)
        rate = f"{records_count / seconds:,.0f} records/s, {cpu_seconds:.1f} s of CPU"
        print(f"round {number}, {what}, {job}: {rate}", file=sys.stderr, flush=True)
        if number:
            for name, unit, value in (
                (f"{job}, {what}", "records/s", records_count / seconds),
                (f"{job}, {what}, CPU", "µs/record", cpu_seconds / records_count * 1e6),
            ):
                figures.setdefault(name, Figure(name, unit)).add(broker.name, value)


def _delete_restored(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    restored = [topic for topic in admin.list_topics(timeout=30).topics if topic.endswith(RESTORED)]
    for future in admin.delete_topics(restored).values():
        future.result(30)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=__doc__)
    for option, default in (("records", RECORDS), ("partitions", PARTITIONS)):
        told = ",".join(map(str, default))
        parser.add_argument(f"--{option}", default=told, help=f"one or several numbers (default: {told})")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--only", action="append", choices=list(BROKERS), help="one broker; may be repeated")
    parser.add_argument("--job", action="append", choices=JOBS, help="one job; may be repeated")
    options = parser.parse_args()
    names = options.only or [name for name in BROKERS if missing(name) is None]
    records_counts, partitions = (
        tuple(int(number) for number in text.split(",")) for text in (options.records, options.partitions)
    )
    jobs = tuple(job for job in JOBS if options.job is None or job in options.job)
    load = os.getloadavg()[0]
    try:
        figures = of(names, records_counts, partitions, options.rounds, jobs)
    except MissingSpark as error:
        print(error, file=sys.stderr)
        return 1
    print(table(figures))
    print(f"\n{os.cpu_count()} cores, load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
