"""Workers of a barrier stage: they find each other, what one does to the others is told, and a loss is made good."""

import threading
import time

import pytest
import torch

from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.spark import session, stage
from implementations.errors import UserError

pytestmark = pytest.mark.timeout(180)  # the first stage loads torch in Spark's processes
LIMIT_S = 60.0


def run(spark, function, workers=2, **options):
    return stage.run_in_barrier(spark, workers, function, LIMIT_S, **options)


def test_workers_meet_on_the_loopback_with_one_thread_each(spark):
    assert session.current() is spark

    def function(rank):
        import os

        import torch
        import torch.distributed as dist

        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        variables = [os.environ[name] for name in ("OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_")]
        return float(total), dist.get_world_size(), torch.get_num_threads(), variables

    outcome = run(spark, function)
    assert outcome.attempts == 1
    assert outcome.values == [(3.0, 2, 1, ["1", str(1 << 30)])] * 2
    assert run(spark, function, workers=1).values == [(1.0, 1, 1, ["1", str(1 << 30)])]


def test_sums_and_parts_have_the_bits_of_simulated_workers(spark):
    sizes, lengths = [5, 2], [3, 0]

    def function(rank):
        import torch

        from implementations.cluster.distributed import DistributedCommunicator
        from implementations.cluster.ledger import Ledger

        comm = DistributedCommunicator(Ledger())
        generator = torch.Generator().manual_seed(rank)
        whole, part = (
            torch.randn(7, 3, generator=generator),
            torch.randn(lengths[rank], 3, generator=generator),
        )
        sums = comm.reduce_scatter([whole], "sum", sizes)[0]
        return sums, comm.allgather([part], lengths)[0], comm.world_totals()["sent_bytes_total"]

    comm = SimulatedCommunicator(2, Ledger())
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    wholes = [torch.randn(7, 3, generator=generator) for generator in generators]
    parts = [torch.randn(lengths[rank], 3, generator=generators[rank]) for rank in range(2)]
    sums, gathered = comm.reduce_scatter(wholes, "sum", sizes), comm.allgather(parts, lengths)
    for rank, (their_sums, their_gathered, sent) in enumerate(run(spark, function).values):
        assert torch.equal(their_sums, sums[rank])
        assert torch.equal(their_gathered, gathered[rank])
        assert sent == comm.world_totals()["sent_bytes_total"]


def test_the_rank_that_failed_is_told_and_not_those_that_it_left(spark):
    def breaks(rank):
        import torch
        import torch.distributed as dist

        from implementations.errors import UserError

        if rank == 1:
            raise UserError("minibatch 7: lower it")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(stage.RankFailed, match="rank 1: minibatch 7: lower it") as caught:
        run(spark, breaks)
    assert caught.value.story == ""
    with pytest.raises(stage.RankFailed, match="rank 0: ZeroDivisionError") as caught:
        run(spark, lambda rank: 1 / rank)
    assert "Traceback" in caught.value.story
    assert run(spark, lambda rank: rank).values == [0, 1]


def test_a_lost_process_makes_spark_try_again(spark, tmp_path):
    flag = str(tmp_path / "killed")

    def dies_once(rank):
        import os
        import signal

        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1))
        if rank == 1 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
        return rank

    outcome = run(spark, dies_once)
    assert outcome.values == [0, 1]
    assert outcome.attempts >= 2


def test_too_few_slots_are_told_before_anything_waits(spark):
    began = time.monotonic()
    with pytest.raises(UserError, match=r"local\[2,4\] has 2 slots for 3 workers"):
        run(spark, lambda rank: rank, workers=3)
    assert time.monotonic() - began < 5


def test_workers_that_cannot_start_are_given_up(spark, monkeypatch):
    monkeypatch.setattr(stage, "START_LIMIT_S", 1.5)
    busy = threading.Thread(
        target=spark.context.parallelize([6], 1)
        .map(lambda seconds: __import__("time").sleep(seconds))
        .collect
    )
    busy.start()
    try:
        time.sleep(0.5)
        with pytest.raises(UserError, match="did not all start within"):
            run(spark, lambda rank: rank)
    finally:
        busy.join()
    monkeypatch.undo()
    assert run(spark, lambda rank: rank).values == [0, 1]


def test_what_workers_print_goes_to_the_log(spark, tmp_path):
    log = tmp_path / "log"
    run(spark, lambda rank: print(f"worker {rank} speaks"), log=log)
    assert sorted(log.read_text().splitlines()) == ["worker 0 speaks", "worker 1 speaks"]
    run(spark, lambda rank: print("no longer"))
    assert "no longer" not in log.read_text()


def test_the_reason_of_a_loss_is_the_line_after_that_which_names_the_task():
    text = (
        "Job aborted due to stage failure: ShuffleMapStage 5 has failed the maximum allowable number of times: 4. "
        "Most recent failure reason:\nStage failed because barrier task ShuffleMapTask(5, 1) finished unsuccessfully.\n"
        "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137. More"
    )
    assert stage._reason(Exception(text)) == (
        "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137"
    )
