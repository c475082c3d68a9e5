"""What moves between devices, for all pairs of configurations at once, and how long a machine takes to move it.

Arrays: i a configuration of the producer, j of the reader, s the device that sends, t the one that receives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from implementations.cluster.machine import Cluster
from implementations.layerwise.algebra import Box


def box_array(lists: Sequence[Sequence[Box]], devices: int) -> np.ndarray:
    """Boxes of each configuration, device by device, as (configuration, device, dimension, low and high).

    A device without a box has an empty one.
    """
    rank = len(lists[0][0])
    array = np.zeros((len(lists), devices, rank, 2), dtype=np.int64)
    for row, boxes in zip(array, lists):
        row[: len(boxes)] = boxes
    return array


def moved(owned: np.ndarray, read: np.ndarray) -> np.ndarray:
    """(i, j, s, t) elements that device t reads and device s has; 0 where both are one.

    ``owned`` and ``read`` are box arrays of one tensor. An overlap of boxes is a product over the dimensions, and along
    each of them few ways to cut are different: only these are compared.
    """
    product: np.ndarray | None = None
    for dimension in range(owned.shape[2]):
        have, which_i = np.unique(owned[:, :, dimension], axis=0, return_inverse=True)
        want, which_j = np.unique(read[:, :, dimension], axis=0, return_inverse=True)
        low = np.maximum(have[:, None, :, None, 0], want[None, :, None, :, 0])
        high = np.minimum(have[:, None, :, None, 1], want[None, :, None, :, 1])
        shared = np.maximum(high - low, 0).astype(float)
        factor = shared[which_i.reshape(-1, 1), which_j.reshape(1, -1)]
        product = factor if product is None else np.multiply(product, factor, out=product)
    assert product is not None
    product[..., range(owned.shape[1]), range(owned.shape[1])] = 0
    return product


class Fabric:
    """The links between the first ``devices`` workers of a cluster, as matrices.

    What happens at once: a link of ``pairs`` serves its two devices alone, each way; other links inside a node are
    reached by one port for each device, which sends to its peers in turn while it receives; between nodes it is the
    node's adapter or each device's own (``Link.shared``). A message costs its latency. An exchange lasts as long as
    what is busiest.
    """

    def __init__(self, cluster: Cluster, devices: int) -> None:
        self.cluster, self.devices = cluster, devices
        pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
        self._latency, self._per_byte = np.zeros((2, devices, devices))
        self._wire, self._inside, self._between = np.zeros((3, devices, devices))
        for a, b in pairs:
            link = cluster.link(a, b, devices)
            self._latency[a, b], self._per_byte[a, b] = link.latency_s, 1 / link.bandwidth_bytes_per_s
            alone = max(a, b) < cluster.capacity and cluster.own_link(a, b) is not None
            near = cluster.node_of(a, devices) == cluster.node_of(b, devices)
            (self._wire if alone else self._inside if near else self._between)[a, b] = 1
        self._nodes = np.array([cluster.node_of(device, devices) for device in range(devices)])
        self._first = np.flatnonzero(np.diff(self._nodes, prepend=-1))
        self._place = (
            np.searchsorted(self._first, np.arange(devices), side="right") - 1
        )  # of each device's node
        self._adapters = cluster.between_nodes is not None and cluster.between_nodes.shared

    def device_s(self, nbytes: np.ndarray) -> np.ndarray:
        """(..., device) seconds for which each device's links are busy, given bytes (..., s, t), none for s = t."""
        seconds = self._wires_s(nbytes)
        copy = self.cluster.device.host_copy
        if copy is not None:  # out of device memory, and into it
            for axis in (-1, -2):
                total = nbytes.sum(axis=axis)
                seconds = seconds + (total > 0) * copy.latency_s + total / copy.bandwidth_bytes_per_s
        return seconds

    def exchange_s(self, nbytes: np.ndarray) -> np.ndarray:
        """(...) seconds of an exchange of bytes (..., s, t): those of the busiest device."""
        return self.device_s(nbytes).max(axis=-1)

    def _wires_s(self, nbytes: np.ndarray) -> np.ndarray:
        some = (nbytes > 0).astype(float)
        found = np.zeros((*nbytes.shape[:-2], self.devices))
        if self._wire.any():
            alone = nbytes * (self._wire * self._per_byte)
            alone += some * (self._wire * self._latency)
            found = np.maximum(alone.max(axis=-1), alone.max(axis=-2))
        for mask, adapters in ((self._inside, False), (self._between, self._adapters)):
            for ends in ("...st,st->...s", "...st,st->...t") if mask.any() else ():  # what goes out; comes in
                busy = np.einsum(ends, nbytes, mask * self._per_byte)
                waits = np.einsum(ends, some, mask * self._latency)
                if adapters:  # a node's devices that have anything there wait until all of it is through
                    whole = np.add.reduceat(busy, self._first, axis=-1)
                    busy = np.where(busy > 0, whole[..., self._place], 0.0)
                found = np.maximum(found, busy + waits)
        return found

    def allreduce_s(self, groups: Sequence[Sequence[int]], nbytes: Sequence[float]) -> float:
        """Seconds of all-reduces of ``nbytes[k]`` in ``groups[k]``, equally large and all at once.

        A table measured on one node wins for groups on one node. Else the best of the ring, and, for a power of two,
        of Rabenseifner's algorithm and recursive doubling, as MPI libraries choose by size
        (``cluster.collectives``, for groups of any devices).
        """
        size, most = len(groups[0]), max(nbytes)
        if size < 2 or most == 0:
            return 0.0
        together = all(len(set(self._nodes[list(group)])) == 1 for group in groups)
        if together and ("allreduce", "library", size) in self.cluster.collectives:
            return self.cluster.communication_s("allreduce", "library", size, most)

        def round_s(partner: list[int], part: float) -> float:
            """Each device sends a part of its bytes to one of its group, given by place in the group."""
            table = np.zeros((self.devices, self.devices))
            for group, count in zip(groups, nbytes):
                for place, other in enumerate(partner):
                    table[group[place], group[other]] += count * part
            return float(self._wires_s(table).max())

        ring = 2 * (size - 1) * round_s([(place + 1) % size for place in range(size)], 1 / size)
        found = [ring]
        if size & (size - 1) == 0:
            swaps = [[place ^ 2**k for place in range(size)] for k in range(size.bit_length() - 1)]
            found.append(sum(round_s(swap, 1.0) for swap in swaps))
            found.append(2 * sum(round_s(swap, 1 / 2 ** (k + 1)) for k, swap in enumerate(swaps)))
        copy = self.cluster.device.host_copy
        return min(found) + (2 * copy.seconds(most) if copy is not None else 0.0)

    def server_s(self, groups: Sequence[Sequence[int]], nbytes: Sequence[float]) -> float:
        """Seconds of a parameter server's work for ``nbytes[k]`` in ``groups[k]``, all at once.

        Gradients are summed on the first device that a group has in each node, then on the group's first device; the
        parameters come back the same way. The paper leaves open where its servers are; the simulator that its authors
        published has these two terms, for a node's devices and for nodes.
        """
        near, far = np.zeros((2, self.devices, self.devices))
        for group, count in zip(groups, nbytes):
            heads: dict[int, int] = {}
            for device in group:
                head = heads.setdefault(int(self._nodes[device]), device)
                if device != head:
                    near[device, head] += count
            for head in list(heads.values())[1:]:
                far[head, group[0]] += count
        # a link is as fast both ways, so that the way back takes as long
        return 2 * sum(float(self.exchange_s(table)) for table in (near, far) if table.any())
