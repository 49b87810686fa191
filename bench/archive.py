"""The jobs `archive` and `restore`: records per second, and processor time per record.

    python -m bench.archive [--records N[,N…]] [--partitions N[,N…]] [--rounds N] [--only BROKER]
        [--job JOB]

The job `archive` archives a topic with records of 100 bytes, once through Spark's Kafka source and once from
the broker's data directory. The job `restore` restores the archive to a new topic with the same offsets, and
to a data directory. One Spark on `local[2]` runs all jobs, and the first round does not count.

The processor time is that of Spark, its Python workers and the broker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import product

from confluent_kafka.admin import AdminClient

from bench import spark
from bench.brokers import Broker
from bench.figures import Figure

RECORDS = (1_000_000,)
PARTITIONS = (10,)
RESTORED = "restored"
SPARK_SIDE = "bench.archive_job"

FROM_TOPICS, FROM_FILES, TO_TOPICS, TO_FILES = (
    "archive from topics",
    "archive from a data directory",
    "restore into topics",
    "restore into a data directory",
)
JOBS = (FROM_TOPICS, FROM_FILES, TO_TOPICS, TO_FILES)


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure with the default options. `seconds` has no effect, because the number of records is fixed."""
    return spark.measure(names, RECORDS, PARTITIONS, SPARK_SIDE, partial(_rounds, rounds, JOBS))


def _rounds(
    rounds: int, jobs: tuple[str, ...], topic: spark.Topic, up: spark.Spark
) -> Iterator[spark.Sample]:
    for number, job in product(range(rounds + 1), jobs):
        elapsed = topic.time_job(f"round {number}, {job}", partial(up.run, job))
        if job == TO_TOPICS:
            _delete_restored(topic.broker)
        if number:
            yield from topic.rates(job, *elapsed)


def _delete_restored(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    restored = [topic for topic in admin.list_topics(timeout=30).topics if topic.endswith(RESTORED)]
    for future in admin.delete_topics(restored).values():
        future.result(30)


def main() -> int:
    parser = spark.make_parser("bench.archive", __doc__, RECORDS, PARTITIONS)
    parser.add_argument("--job", action="append", choices=JOBS, help="one job; may be repeated")
    options = parser.parse_args()
    jobs = tuple(job for job in JOBS if options.job is None or job in options.job)
    return spark.report(options, SPARK_SIDE, partial(_rounds, options.rounds, jobs))


if __name__ == "__main__":
    sys.exit(main())
