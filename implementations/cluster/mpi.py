"""Real workers: one a rank, joined by MPI. Buffers are handed to MPI as they lie in memory, never pickled.

    mpiexec -n 4 python ...     ->     MpiCommunicator(Ledger(...))

mpi4py initialises MPI with full thread support, and that must stay: with less, MPICH never yields the processor while
it waits, and with more ranks than free cores a 1 MB all-reduce then takes over a second instead of some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from implementations.cluster.algorithms import BLOCK_BYTES, NOBODY, divide_
from implementations.cluster.communicator import Communicator, Links
from implementations.cluster.ledger import Ledger
from implementations.errors import UserError

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise UserError(
        f"mpi4py cannot load an MPI library ({error}); `make reproduce` installs one into .venv, and `make doctor` "
        f"tells what is missing"
    ) from error


class MpiLinks(Links):
    """The processes of an MPI communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def allreduce_(self, values: np.ndarray, divisor: int) -> None:
        """Allreduce in place, block by block, each divided while it is in cache."""
        allreduce, width = self._comm.Allreduce, BLOCK_BYTES // values.itemsize
        for low in range(0, values.size, width):
            block = values[low : low + width]
            allreduce(MPI.IN_PLACE, block)
            divide_(block, divisor)

    def iallreduce_(self, values: np.ndarray, divisor: int) -> Callable[[], None]:
        """One Iallreduce a block."""
        width = BLOCK_BYTES // values.itemsize
        blocks = [values[low : low + width] for low in range(0, values.size, width)]
        requests = [self._comm.Iallreduce(MPI.IN_PLACE, block) for block in blocks]

        def wait() -> None:
            for request, block in zip(requests, blocks):
                request.Wait()
                divide_(block, divisor)

        return wait

    def swap(self, to: int, outgoing: np.ndarray, source: int, incoming: np.ndarray) -> None:
        """Sendrecv."""
        self._comm.Sendrecv(
            outgoing,
            MPI.PROC_NULL if to == NOBODY else to,
            recvbuf=incoming,
            source=MPI.PROC_NULL if source == NOBODY else source,
        )

    def exchange(self, sends: list[tuple[int, np.ndarray]], receives: list[tuple[int, np.ndarray]]) -> None:
        """``iexchange``, waited for."""
        self.iexchange(sends, receives)()

    def iexchange(
        self, sends: list[tuple[int, np.ndarray]], receives: list[tuple[int, np.ndarray]]
    ) -> Callable[[], None]:
        """All Irecv and Isend at once, to be waited for together: no order of ranks can deadlock."""
        requests = [self._comm.Irecv(values, source) for source, values in receives]
        requests += [self._comm.Isend(values, to) for to, values in sends]
        return lambda: MPI.Request.Waitall(requests)

    def reduce_scatter(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Reduce_scatter."""
        self._comm.Reduce_scatter(values, out, recvcounts=counts)

    def allgather(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Allgatherv."""
        self._comm.Allgatherv(values, [out, counts])

    def bcast_(self, values: np.ndarray, root: int) -> None:
        """Bcast."""
        self._comm.Bcast(values, root)

    def control(self, values: np.ndarray, largest: bool) -> np.ndarray:
        """Allreduce into a new array; sums, which may be as long as a model, block by block."""
        out = values.copy()
        if largest:
            self._comm.Allreduce(MPI.IN_PLACE, out, MPI.MAX)
        else:
            self.allreduce_(out.reshape(-1), 1)
        return out

    def barrier(self) -> None:
        """Barrier."""
        self._comm.Barrier()

    def subgroup(self, ranks: Sequence[int], tag: int) -> MpiLinks:
        """Create_group, which only the members call: a process may be in several groups, or in none."""
        group = self._comm.Get_group().Incl(ranks)
        return MpiLinks(self._comm.Create_group(group, tag))

    def free(self) -> None:
        """Free the MPI communicator."""
        self._comm.Free()


class MpiCommunicator(Communicator):
    """One worker a rank of ``comm``."""

    def __init__(self, ledger: Ledger, comm: MPI.Intracomm = MPI.COMM_WORLD) -> None:
        super().__init__(ledger, range(comm.size), MpiLinks(comm))
