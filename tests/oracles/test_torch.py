"""Our methods against torch's own: DistributedDataParallel and PeriodicModelAverager, on gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import point_of, trained

RANK = Path(__file__).with_name("torch_rank.py")


def reference(point, results, folder, lr, sync_period=None):
    """Weights (workers, P) that torch's ranks end with."""
    job = folder / "job.json"
    job.write_text(
        json.dumps(
            {
                "point": point.to_json(),
                "results": str(results),
                "folder": str(folder),
                "sync_period": sync_period,
                "lr": lr,
            }
        )
    )
    environment = os.environ | {"PYTHONPATH": str(RANK.parents[2]), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(RANK), str(job)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(point.workers)]
    try:
        assert [rank.wait(50) for rank in ranks] == [0] * point.workers
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return torch.stack([torch.load(folder / f"rank{rank}.pt") for rank in range(point.workers)])


@pytest.mark.parametrize("lr_scaling", ["none", "linear"])
def test_data_parallel_equals_ddp(lr_scaling, results, tmp_path):
    point = point_of("data_parallel", 2, method_params={"lr_scaling": lr_scaling}, lr=0.1)
    lr = point.lr * (2 if lr_scaling == "linear" else 1)
    ours = trained(point, results).net.theta_wp
    torch.testing.assert_close(ours, reference(point, results, tmp_path, lr), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("workers", "period"), [(2, 5), (3, 10), (2, 1)])
def test_averaging_equals_torchs_periodic_averager(workers, period, results, tmp_path):
    # 480 samples: the periods divide the steps of an epoch, where ours averages in any case
    data_size = 480 if workers == 2 else 240 * 3
    point = point_of("averaging", workers, method_params={"sync_period": period}, data_size=data_size)
    ours = trained(point, results).net.theta_wp
    theirs = reference(point, results, tmp_path, point.lr, period)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
