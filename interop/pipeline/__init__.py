"""The pipeline's jobs as subprocesses, compared with results that were computed without Spark."""
