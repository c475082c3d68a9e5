"""Every rank runs pytest on the same tests in the same order; a rank that fails alone must not leave others waiting."""

import pytest
from mpi4py import MPI


@pytest.fixture(autouse=True)
def _ranks_in_step():
    """All ranks start a test together, so that a message of one test never meets another test."""
    MPI.COMM_WORLD.Barrier()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and MPI.COMM_WORLD.size > 1:
        # the others may wait for this rank for ever: show why, and end them all
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\nrank {MPI.COMM_WORLD.rank}: {item.nodeid} failed\n{report.longreprtext}", flush=True)
        MPI.COMM_WORLD.Abort(1)
