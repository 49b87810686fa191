"""The jobs of the pipeline, killed at any moment: driver, executor, broker.

A trial starts a job on records that are known, kills one of the three at a kill point that its seed decides
(`moments`: at a step that leaves a trace in the file system, or some time behind it), starts the job again
until it ends by itself, and once more to see that nothing is left to do (`trial`). What came of it is read by
means that have nothing to do with the pipeline (`reading`: a plain consumer, pyarrow, json) and compared with
what the topic holds (`check`). `jobs` says of each job how it is started and where its results are.

    python -m interop.pipeline_kills --seeds 20 --job restore-map --victim executor
"""
