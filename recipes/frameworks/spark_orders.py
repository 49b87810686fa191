"""A Spark batch that writes the revenue per customer, and a query that writes a bill for each order."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery


def write_revenue(spark: SparkSession, servers: str) -> None:
    kafka = {"kafka.bootstrap.servers": servers}
    orders = spark.read.format("kafka").options(**kafka, subscribe="orders").load()
    amount = f.col("value").cast("string").cast("int")
    revenue = orders.groupBy("key").agg(f.sum(amount).cast("string").alias("value"))
    revenue.write.format("kafka").options(**kafka, topic="revenue").save()


def start_billing(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    kafka = {"kafka.bootstrap.servers": servers}
    orders = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe="orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    bills = orders.select("key", f.concat(f.lit("bill of "), f.col("value").cast("string")).alias("value"))
    return (
        bills.writeStream.format("kafka")
        .options(**kafka, topic="bills")
        .option("checkpointLocation", checkpoint)
        .start()
    )
