"""When each device does what in one step: the executor's schedule, with clocks instead of work.

Forward, layer by layer: a block is sent to its readers as soon as it is there, and waited for where it is read.
Backward in reverse: of a layer with parameters first the gradient of the input, which is sent, then that of the
parameters, whose sums over the replicas go on until the pass is over. At last the parameters are updated.

With ``background`` the links work by themselves, as those of GPUs and connections between hosts do: transfers in the
order in which they are issued, sums of gradients when no transfer needs the link. Without, as between processes that
pass messages by themselves, those who exchange something meet for it, and the sums are taken at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Transfer:
    """One input of a layer: (s, t) whether device t gets something from s; (device,) seconds its links are busy."""

    source: str
    pairs: np.ndarray
    seconds: np.ndarray
    gradient: bool


@dataclass(frozen=True)
class Work:
    """What the devices do for one layer; arrays (device,) of seconds, 0 for those that are idle.

    ``groups`` share parameters, or what a normalisation exchanges in its forward and backward pass (``statistics``).
    """

    name: str
    forward: np.ndarray
    input_backward: np.ndarray
    weight_backward: np.ndarray
    transfers: Sequence[Transfer] = ()
    groups: Sequence[Sequence[int]] = ()
    sync_s: float = 0.0
    statistics: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Timeline:
    """A step: its length, and when the slowest device had each pass and the sums behind it."""

    step_s: float
    forward_s: float
    backward_s: float
    synced_s: float


@dataclass
class _Clocks:
    """How far each device, its links, and the sums of gradients on them have come; (device,) seconds."""

    device: np.ndarray
    link: np.ndarray
    sums: np.ndarray
    background: bool
    arrivals: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)

    def send(self, key: tuple[str, int], pairs: np.ndarray, seconds: np.ndarray) -> None:
        """Start a transfer now; ``receive`` waits for it."""
        if not self.background:
            return
        ready = np.maximum(self.device, self.link)
        start = np.maximum(ready, np.where(pairs, ready[:, None], 0.0).max(axis=0))
        busy = pairs.any(axis=0) | pairs.any(axis=1)
        ended = np.where(busy, start + seconds, 0.0)
        self.sums = np.where(self.sums > start, self.sums + busy * seconds, self.sums)
        self.link = np.maximum(self.link, ended)
        self.arrivals[key] = np.where(pairs.any(axis=0), ended, 0.0)

    def receive(self, key: tuple[str, int], pairs: np.ndarray, seconds: np.ndarray) -> None:
        """Wait for a transfer, or carry it out."""
        if self.background:
            self.device = np.maximum(self.device, self.arrivals.pop(key))
            return
        partners = pairs | pairs.T | np.eye(len(pairs), dtype=bool)
        together = np.where(partners, self.device[:, None], 0.0).max(axis=0)
        self.device = together + np.where(pairs.any(axis=0) | pairs.any(axis=1), seconds, 0.0)

    def meet(self, groups: Sequence[Sequence[int]], seconds: float) -> None:
        """Groups exchange something that each waits for."""
        for group in groups if seconds else ():
            members = list(group)
            self.device[members] = self.device[members].max() + seconds

    def sum_gradients(self, groups: Sequence[Sequence[int]], seconds: float) -> None:
        """Start sums over groups, behind those that are under way."""
        for group in groups:
            members = list(group)
            start = max(self.device[members].max(), self.sums[members].max(), self.link[members].max())
            self.sums[members] = start + seconds


def simulate(works: Sequence[Work], update: np.ndarray, background: bool) -> Timeline:
    """The step of layers in their order; ``update`` (device,) seconds of the optimiser."""
    devices = len(update)
    clocks = _Clocks(np.zeros(devices), np.zeros(devices), np.zeros(devices), background)
    readers: dict[str, list[tuple[tuple[str, int], Transfer]]] = {work.name: [] for work in works}
    for work in works:
        for place, transfer in enumerate(work.transfers):
            readers[transfer.source].append(((work.name, place), transfer))
    for work in works:
        for place, transfer in enumerate(work.transfers):
            clocks.receive((work.name, place), transfer.pairs, transfer.seconds)
        clocks.meet(work.groups, work.statistics[0])
        clocks.device = clocks.device + work.forward
        for key, transfer in readers[work.name]:
            clocks.send(key, transfer.pairs, transfer.seconds)
    forward_s = float(clocks.device.max())
    _backward(works, readers, clocks)
    backward_s = float(clocks.device.max())
    if not background:
        for work in works[::-1]:
            clocks.meet(work.groups, work.sync_s)
    clocks.device = np.maximum(clocks.device, clocks.sums)
    synced_s = float(clocks.device.max())
    return Timeline(float((clocks.device + update).max()), forward_s, backward_s, synced_s)


def _backward(
    works: Sequence[Work],
    readers: Mapping[str, list[tuple[tuple[str, int], Transfer]]],
    clocks: _Clocks,
) -> None:
    for work in works[::-1]:
        for key, transfer in readers[work.name]:
            if transfer.gradient:
                clocks.receive(key, transfer.pairs.T, transfer.seconds)
        clocks.meet(work.groups, work.statistics[1])
        clocks.device = clocks.device + work.input_backward
        for place, transfer in enumerate(work.transfers):
            if transfer.gradient:
                clocks.send((work.name, place), transfer.pairs.T, transfer.seconds)
        clocks.device = clocks.device + work.weight_backward
        if work.sync_s and clocks.background:
            clocks.sum_gradients(work.groups, work.sync_s)
