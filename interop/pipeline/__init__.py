"""The pipeline's jobs, by subprocess as anybody runs them, against figures that were made without Spark."""
