"""The pipeline's jobs with kills of driver, executor and broker.

A trial starts a job on known records. It kills a victim at a random kill point, which is a step that leaves a
trace in the file system, plus a delay (`kill_points`). It restarts the job until the job succeeds, and once
more to check that nothing is left to do (`trial`). The result is read without the pipeline (`reading`: a
plain consumer, pyarrow, json) and compared with the source (`checker`). `jobs` describes how each job is
started and where its results are.

    python -m interop.pipeline_kills --seeds 20 --job restore-map --victim executor
"""
