"""How the ranks of a job find each other, so that torch.distributed can join them; whoever started them.

Ranks of MPI tell each other by MPI where rank 0 listens. Those of torchrun have it from their environment, those of
Slurm without an MPI by a file beside the job's. ``MASTER_ADDR`` and ``MASTER_PORT`` name another meeting place, and
``GLOO_SOCKET_IFNAME`` another interface than the one that leads there.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implementations.cluster.interfaces import address_outside, interface_towards
from implementations.cluster.launcher import RANK_VARIABLES
from implementations.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store

MEET_LIMIT = datetime.timedelta(seconds=60)
_HERE = "127.0.0.1"
_DISCARD = 9  # any port: nothing is sent there
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """The ranks of a job, before anything joins them.

    gather: what all ranks pass, a few words each, in their order; collective.
    on_host: this rank's number among those of its host, where that can be found out; collective.
    store: where they meet.
    """

    rank: int
    size: int
    gather: Callable[[str], list[str]]
    on_host: Callable[[], int]
    store: Store


def find(
    workers: int, load_mpi: Callable[[], Any], folder: Path, environment: Mapping[str, str] = os.environ
) -> World:
    """The world of ``workers`` ranks that this process is one of; collective.

    Args:
        workers: ranks that the point needs.
        load_mpi: gives mpi4py's MPI; called where neither torchrun nor Slurm alone has started the ranks.
        folder: one that all ranks see and no other job uses.
        environment: variables that launchers set.

    Raises UserError where as many ranks were not started, or do not meet.
    """
    import torch.distributed as dist

    if not any(name in environment for name in RANK_VARIABLES):
        if all(name in environment for name in _OF_TORCHRUN):
            require(int(environment["WORLD_SIZE"]), workers)
            store, rank, size = next(dist.rendezvous("env://", timeout=MEET_LIMIT))
            _use_interface(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
            return _by_store(store, rank, size)
        if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) == workers > 1:
            store = dist.FileStore(str(folder / "meeting"), workers)
            store.set_timeout(MEET_LIMIT)
            world = _by_store(store, int(environment["SLURM_PROCID"]), workers)
            _use_interface(world.gather(address_outside())[0], _DISCARD)
            return world
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    require(world.size, workers)

    def neighbours() -> Any:
        return world.Split_type(mpi.COMM_TYPE_SHARED)

    store = meet(world.rank, world.allgather, lambda: neighbours().size == world.size, environment)
    return World(world.rank, world.size, world.allgather, lambda: neighbours().rank, store)


def require(found: int, wanted: int) -> None:
    """Raise UserError unless there are as many ranks as the point has workers."""
    if found != wanted:
        raise UserError(f"{wanted} ranks were asked for, {found} started")


def _by_store(store: Store, rank: int, size: int) -> World:
    calls = iter(range(1 << 30))

    def gather(words: str) -> list[str]:
        call = next(calls)
        store.set(f"told/{call}/{rank}", words)
        return [store.get(f"told/{call}/{other}").decode() for other in range(size)]

    def on_host() -> int:
        hosts = gather(socket.gethostname())
        return hosts[:rank].count(hosts[rank])

    return World(rank, size, gather, on_host, store)


def meet(
    rank: int,
    gather: Callable[[str], list[str]],
    one_host: Callable[[], bool],
    environment: Mapping[str, str] = os.environ,
) -> Store:
    """The store that rank 0 serves, of all ranks. UserError on all of them where it cannot."""
    from torch.distributed import TCPStore

    host, port = environment.get("MASTER_ADDR"), int(environment.get("MASTER_PORT", 0))
    together = one_host() if host is None else False
    store, told = None, ""
    if rank == 0:
        try:
            host = host or (_HERE if together else address_outside())
            store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=MEET_LIMIT)
            told = f"{host} {store.port}"
        except (OSError, RuntimeError) as error:
            told = f"!{_first_line(error)}"
    told = gather(told)[0]
    if told.startswith("!"):
        raise UserError(
            f"the ranks cannot meet: rank 0 cannot listen at {host or 'its address'} ({told[1:]})"
        )
    host, _, number = told.partition(" ")
    if store is None:
        try:
            store = TCPStore(host, int(number), is_master=False, timeout=MEET_LIMIT)
        except RuntimeError as error:
            raise UserError(
                f"rank {rank} does not reach rank 0 at {host}:{number} ({_first_line(error)}); name an address that "
                f"all hosts reach in MASTER_ADDR"
            ) from None
    _use_interface(host, int(number))
    return store


def _use_interface(host: str, port: int) -> None:
    """Have gloo use the interface that leads to rank 0, unless another is named."""
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(host, port)


def join(world: World, device: str, limit_s: float) -> None:
    """Make torch.distributed's process group: gloo for what is in host memory, NCCL for what is on GPUs.

    ``limit_s``: how long a rank waits for another in one operation.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        store=world.store,
        rank=world.rank,
        world_size=world.size,
        timeout=datetime.timedelta(seconds=limit_s),
    )
    if device != "cpu":  # NCCL connects at its first call, which is no part of what a run measures
        dist.all_reduce(torch.zeros(1, device=device))
        torch.get_device_module(device).synchronize()


def leave() -> None:
    """End the process group, once all ranks have come to this."""
    import torch.distributed as dist

    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # another one has left in haste: nothing is lost by that now
            dist.barrier()
        dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0] or type(error).__name__
