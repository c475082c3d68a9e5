"""Averages over workers that each hold the whole network."""

from __future__ import annotations

import torch

from implementations.cluster.communicator import Communicator
from implementations.spark.program import SUM, Exchange
from implementations.spark.traffic import through_driver


def average_(comm: Communicator, values_wp: torch.Tensor, driver: bool) -> None:
    """Every worker's row becomes the mean of all; ``driver``: booked as if it were collected there and sent out."""
    if not driver:
        comm.allreduce_(values_wp, "mean")
        return
    form = through_driver(Exchange(SUM, tuple(values_wp.shape[1:])), comm.size)
    with comm.ledger.call(form.book(comm.ledger, SUM)):
        values_wp.copy_(values_wp.mean(0, keepdim=True).expand_as(values_wp))
