"""Programs for PySpark's own environment, each a child process of interop/scenarios/spark.py."""
