from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_orders import start_billing, write_revenue

from kwire.testing import Broker

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"  # the version of Spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", CONNECTOR)
    with (
        builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 1).getOrCreate()
    ) as session:
        yield session


def test_batch_writes_the_revenue_per_customer(kwire_broker: Broker, spark: SparkSession) -> None:
    kwire_broker.produce("orders", "5", "7", key="customer 1")
    kwire_broker.produce("orders", "3", key="customer 2")
    write_revenue(spark, kwire_broker.bootstrap_servers)
    revenue = {record.key: record.value for record in kwire_broker.records("revenue")}
    assert revenue == {b"customer 1": b"12", b"customer 2": b"3"}


def test_stopped_stream_continues_at_its_checkpoint(
    kwire_broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    kwire_broker.produce("orders", "order 1", "order 2")
    query = start_billing(spark, kwire_broker.bootstrap_servers, str(tmp_path))
    query.processAllAvailable()
    query.stop()
    kwire_broker.restart()
    kwire_broker.produce("orders", "order 3")
    query = start_billing(spark, kwire_broker.bootstrap_servers, str(tmp_path))
    query.processAllAvailable()
    query.stop()
    bills = [bill.value for bill in kwire_broker.records("bills")]
    assert bills == [b"bill of order 1", b"bill of order 2", b"bill of order 3"]
