"""torch.distributed (gloo) in processes of its own, as an oracle for the collectives."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator

SCRIPT = Path(__file__).with_name("gloo_rank.py")
WORLD = 3


def gloo_results(folder):
    words = [[str(r), str(WORLD), str(folder / "store"), str(folder / f"{r}.pt")] for r in range(WORLD)]
    ranks = [subprocess.Popen([sys.executable, str(SCRIPT), *args], stderr=subprocess.PIPE) for args in words]
    try:
        errors = [rank.communicate(timeout=50)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors)
    return [torch.load(folder / f"{r}.pt", weights_only=True) for r in range(WORLD)]


def inputs():
    spec = importlib.util.spec_from_file_location("gloo_rank", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.inputs(WORLD)


@pytest.mark.slow
def test_collectives_equal_those_of_gloo(tmp_path):
    theirs = gloo_results(tmp_path)
    comm = SimulatedCommunicator(WORLD, Ledger())
    theta = inputs()
    ours = {
        "reduce_scatter": comm.reduce_scatter(theta),
        "all_gather": comm.allgather(theta),
    }
    comm.allreduce_(theta, "sum", "ring")
    ours["all_reduce"] = list(theta)
    for name, results in ours.items():
        for rank, result in enumerate(results):
            torch.testing.assert_close(result, theirs[rank][name], rtol=1e-6, atol=1e-6)
