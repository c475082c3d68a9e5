"""One rank of a reference run: torch's own distributed training on our data order and initial weights.

python torch_rank.py JOB.json RANK     (weights of the rank after training go to the job's folder)
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from implementations.clock import Clock
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.harness import Run
from implementations.point import Point


def main(job_path: str, rank: int) -> None:
    job = json.loads(Path(job_path).read_text())
    torch.set_num_threads(1)
    point = Point.from_json(job["point"])
    store = f"file://{job['folder']}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=point.workers)
    run = Run(
        point,
        lambda ledger: SimulatedCommunicator(point.workers, ledger, None),
        Path(job["results"]),
        Clock(),
        "",
    )
    model = run.net.to_module(rank)
    period = job["sync_period"]
    averager = None
    if period is None:
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        # The averager averages on its first call; to average after each K steps its warm-up is K - 1.
        averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=job["lr"])
    for epoch in range(1, point.epochs + 1):
        for rows in run.training._shards.epoch(epoch):
            x_wbi, y_wb = run.training._shards.take(rows)
            optimizer.zero_grad()
            F.cross_entropy(model(x_wbi[rank]), y_wb[rank]).backward()
            optimizer.step()
            if averager:
                averager.average_parameters(model.parameters())
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.save(flat, f"{job['folder']}/rank{rank}.pt")
    dist.destroy_process_group()
    os._exit(0)  # torch's own threads sometimes abort a process that leaves by itself


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
