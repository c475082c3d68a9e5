"""One rank of torch.distributed on gloo: what its collectives return for inputs that follow from the seed.

python gloo_rank.py RANK WORLD STORE_FILE OUTPUT.pt
"""

import sys

import torch
import torch.distributed as dist

LENGTH = 24


def inputs(world: int) -> torch.Tensor:
    return torch.randn(world, LENGTH, generator=torch.Generator().manual_seed(7))


def main(rank: int, world: int, store: str, output: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mine = inputs(world)[rank]
    reduced, chunk = mine.clone(), torch.empty(LENGTH // world)
    dist.all_reduce(reduced)
    dist.reduce_scatter_tensor(chunk, mine.clone())
    gathered = [torch.empty(LENGTH) for _ in range(world)]
    dist.all_gather(gathered, mine)
    torch.save({"all_reduce": reduced, "reduce_scatter": chunk, "all_gather": torch.cat(gathered)}, output)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
