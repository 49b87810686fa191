"""The pipeline's jobs, run as subprocesses. Their results must equal results computed without Spark."""
