"""Runs of unmodified aiokafka, each repeated in a second process: with the newest and the oldest version.

`make setup` installs the oldest supported version beside the environment of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kwire.testing.simulated.client_guard import MIN_AIOKAFKA

OLDEST = Path(sys.prefix) / "oldest"

PROGRAM = """
import asyncio

import aiokafka

from kwire.testing.simulated import SimulatedCluster


async def produce(servers):
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for number in range(20):
            await producer.send("orders", b"%d" % number, partition=number % 4)
            await asyncio.sleep(0.1)


async def consume(servers):
    async with aiokafka.AIOKafkaConsumer(
        "orders",
        bootstrap_servers=servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        while True:
            record = await consumer.getone()
            print(record.topic, record.partition, record.offset, record.value)
            await consumer.commit()


async def consume_in_a_group(servers):
    await asyncio.gather(*(consume(servers) for _ in range(3)))


print(aiokafka.__version__)
for seed in range(2):
    cluster = SimulatedCluster(seed)
    cluster.start()
    cluster.create_topic("orders", partitions=4)
    for program in (produce, consume_in_a_group):
        try:
            cluster.run(program(cluster.bootstrap_servers), kill_after_s=20)
        except aiokafka.errors.KafkaError as error:
            print(repr(error))
    cluster.stop_faults()
    print(*cluster._environment.transcript, cluster.now_s, sep="\\n")
    # aiokafka sets timestamps in C, by the real clock.
    print(*(record._replace(timestamp_ms=0) for record in cluster.records("orders")), sep="\\n")
    cluster.stop()
"""


@pytest.mark.parametrize("age", ["newest", "oldest"])
def test_run_is_the_same_for_the_same_seed_in_another_process(age: str) -> None:
    expected = version("aiokafka")
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if age == "oldest":
        found = list(OLDEST.glob("aiokafka-*.dist-info"))
        assert found, f"{OLDEST} is missing: run make setup"
        expected = found[0].name.removeprefix("aiokafka-").removesuffix(".dist-info")
        assert expected.startswith(".".join(map(str, MIN_AIOKAFKA)) + ".")
        environment["PYTHONPATH"] = os.pathsep.join([str(OLDEST), os.environ.get("PYTHONPATH", "")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        (first, errors), (second, _) = [run.communicate(timeout=300) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], errors
    assert first.splitlines()[0] == expected
    assert first.count("value=b'19'") == 2, "the records of each seed were stored"
    assert first == second
