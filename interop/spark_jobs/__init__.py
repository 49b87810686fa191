"""Programs for PySpark's environment, run as child processes of interop/scenarios/spark.py."""
