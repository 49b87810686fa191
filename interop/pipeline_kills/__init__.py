"""The pipeline's jobs while driver, executor and broker are killed.

A trial starts a job on known records and kills a process (the victim) at a random kill point. A kill point is
an event that leaves a trace in the file system, plus a delay (`kill_points`). The trial restarts the job
until the job succeeds, and then runs the job once more, which must find nothing to do (`trial`). The results
are read without the pipeline, with a plain consumer, pyarrow and json (`reading`), and compared with the
source (`checker`). `jobs` describes how each job is started and where its results are.

    python -m interop.pipeline_kills --seeds 20 --job restore-map --victim executor
"""
