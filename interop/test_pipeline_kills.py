"""The pipeline's jobs while driver, executor or broker is killed. `make pipeline-kills` runs more seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.pipeline_kills.jobs import JOBS, KillSetup
from interop.pipeline_kills.processes import EACH
from interop.pipeline_kills.trial import prepare_setup, run

SEEDS = range(1, 4)
"""Seeds to try. The test ends with the first seed for which the kill happened before the job ended."""


@pytest.fixture(scope="module")
def setup() -> Iterator[KillSetup]:
    with prepare_setup() as found:
        yield found


@pytest.mark.parametrize("job", JOBS)
def test_job_output_is_exact_after_kills(setup: KillSetup, job: str) -> None:
    for seed in SEEDS:
        report = run(setup, job, EACH, seed, audited=job == "archive")
        print(report)
        assert not report.findings, str(report)
        if report.killed:
            return
    pytest.fail("the job has always been faster than who was to be killed")
