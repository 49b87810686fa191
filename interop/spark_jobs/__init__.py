"""Programs for the Python that has PySpark. interop/scenarios/spark.py runs them as child processes."""
