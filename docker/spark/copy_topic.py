"""A Spark stream that copies records from the topic greetings to the topic copied."""

import sys

from pyspark.sql import SparkSession

kafka = {"kafka.bootstrap.servers": sys.argv[1]}
spark = SparkSession.builder.appName("copy").getOrCreate()
source = (
    spark.readStream.format("kafka")
    .options(**kafka, subscribe="greetings", startingOffsets="earliest")
    .load()
)
copy = source.selectExpr("key", "value").writeStream.format("kafka")
copy.options(**kafka, topic="copied", checkpointLocation=sys.argv[2]).start().awaitTermination()
