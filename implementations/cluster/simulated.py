"""Simulated workers: any number of them hosted by this process, or shared out over a few; exact and deterministic.

The arithmetic, and what the ledger books, is that of as many real workers. Where several processes share them, each
adds up its own workers' buffers, the processes add their sums by MPI, and each hands the result to its workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from implementations.cluster.communicator import Communicator, Links
from implementations.cluster.ledger import Ledger
from implementations.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI


class SimulatedCommunicator(Communicator):
    """``size`` workers, hosted in contiguous shares by the processes of an MPI communicator, or all by this one."""

    def __init__(self, size: int, ledger: Ledger, processes: MPI.Intracomm | None = None) -> None:
        """``processes``: None (or a communicator of one) hosts all workers here. UserError when size does not fit."""
        count = 1 if processes is None else processes.size
        if size < count:
            raise UserError(f"{size} simulated workers cannot be shared out over {count} processes")
        links: Links | None = None
        if count > 1:
            from implementations.cluster.mpi import MpiLinks  # MPI is needed only here

            links = MpiLinks(processes)
        shares = np.array_split(np.arange(size), count)
        super().__init__(ledger, [process for process, share in enumerate(shares) for _ in share], links)
