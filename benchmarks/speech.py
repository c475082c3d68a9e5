"""The side of the benchmarks that concerns speech nets and the recogniser, in one process on one thread.

python -m benchmarks.speech natural_gradient

Steps are timed by the processor's clock, which other processes on the machine disturb less than the wall's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.statistics import ROUNDS, compare
from implementations import data, models
from implementations.data.speech import START
from implementations.models.sigmoid_init import initialise_sigmoid
from implementations.models.worker_model import WorkerModel
from implementations.optimizers.ng_sgd import NaturalGradientSGD
from implementations.seeds import torch_stream
from implementations.speech import corpus, recogniser

RESULTS = Path("results")
DATASET = "an4"
HIDDEN = 3  # layers of the default experiments
FEATURES, CLASSES = 429, 102  # of the data set
WIDE_CLASSES = 1024  # the paper's 8806 cost a third of its step, in one layer of which NG-SGD is a small part
MATRIX = 2048  # rows and columns of the product that stands for the machine's peak
FIRST_STEPS = 12  # NG-SGD updates its estimates in each of the first ten
# Goals for NG-SGD's step over SGD's by width, at the paper's minibatch and with an update every step.
NG_GOALS = {256: 1.6, 512: 1.35, 2048: 1.1}


class Steps:
    """Training steps of a sigmoid speech net of three hidden layers on noise, by SGD or NG-SGD."""

    def __init__(self, width: int, minibatch: int, update_period: int | None = None) -> None:
        """``update_period``: NG-SGD's; None: plain SGD."""
        classes = CLASSES if width < MATRIX else WIDE_CLASSES
        model = {"name": "fc", "hidden": HIDDEN * [width], "activation": "sigmoid"}
        self.net: WorkerModel = models.build(model, FEATURES, classes, 1, torch_stream(1, "init"))
        initialise_sigmoid(self.net, torch_stream(1, "init"))
        noise = torch_stream(1, "samples")
        self.x_wbi = torch.randn(1, minibatch, FEATURES, generator=noise)
        self.y_wb = torch.randint(0, classes, (1, minibatch), generator=noise)
        self.net.theta_wp.grad = self.net.grad_wp
        if update_period is None:
            self.optimizer = torch.optim.SGD([self.net.theta_wp], lr=1e-3)
        else:
            self.optimizer = NaturalGradientSGD(
                self.net, 1e-3, update_period=update_period, max_change_rule="author", reduction="sum"
            )
            self(FIRST_STEPS)

    def __call__(self, count: int) -> float:
        """Processor seconds of one step, as the mean of ``count``."""
        began = time.thread_time()
        for _ in range(count):
            self.net.loss_and_grad(self.x_wbi, self.y_wb)
            self.optimizer.step()
        return (time.thread_time() - began) / count


def natural_gradient() -> list[dict[str, Any]]:
    """A step of NG-SGD of rank 40 and 40 over one of SGD: at the paper's minibatch and at the experiments'."""
    rows = []
    for width, minibatch, calls in (
        (256, 1024, 8),
        (512, 1024, 4),
        (2048, 1024, 1),
        (256, 128, 32),
        (512, 128, 16),
    ):
        sgd = Steps(width, minibatch)
        for period in (1, 4):
            ours = Steps(width, minibatch, period)
            faithful, turn = period == 1 and minibatch == 1024, max(calls, period)
            times = compare(
                lambda o=ours, n=turn: o(n),
                lambda s=sgd, n=calls: s(n),
                invert=True,
                rounds=ROUNDS if calls > 1 else 3,
            )
            rows.append(
                {
                    "name": f"NG / SGD step, {width} wide, minibatch {minibatch}, period {period}",
                    "goal": NG_GOALS[width] if faithful else None,
                    "at_most": True,
                    **times,
                }
            )
    return rows


def matmul_peak() -> list[dict[str, Any]]:
    """Share of the rate of a large square product that a training step of one rank reaches, all its parts counted."""
    a, b, out = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX), torch.empty(MATRIX, MATRIX)

    def product_s() -> float:
        found = []
        for _ in range(2):
            began = time.thread_time()
            torch.mm(a, b, out=out)
            found.append(time.thread_time() - began)
        return min(found)

    rows = []
    for width, minibatch, calls in ((2048, 1024, 1), (512, 1024, 4), (512, 128, 32), (256, 128, 64)):
        steps = Steps(width, minibatch)
        products = minibatch * steps.net.flops_per_sample / (2 * MATRIX**3)
        rows.append(
            {
                "name": f"share of matmul peak, {width} wide, minibatch {minibatch}",
                "goal": 0.8 if width == MATRIX else None,
                **compare(lambda s=steps, n=calls: s(n), lambda n=products: n * product_s()),
            }
        )
    return rows


def decoding() -> list[dict[str, Any]]:
    """Seconds of decoding over seconds of speech (of 100 frames each), with the alignment model's scores."""
    dataset, folder = data.load(DATASET, RESULTS), RESULTS / "data" / DATASET
    words = recogniser.load(folder, corpus.read_lexicon(folder))
    parts = {part: corpus.read(folder, part) for part in ("valid", "test")}
    scores = {part: words.scores(spoken) for part, spoken in parts.items()}
    test, kind = parts["test"], dataset.summary["data_kind"]

    def decode_s() -> float:
        began = time.thread_time()
        words.decoder.decode(scores["test"], test.offsets, START)
        return time.thread_time() - began

    def score_s() -> float:
        began = time.thread_time()
        dataset.recognition.score(scores.__getitem__)
        return time.thread_time() - began

    def speech_s(*names: str) -> float:
        return sum(len(scores[name]) for name in names) / 100

    return [
        {
            "name": f"real-time factor, {len(test)} test utterances ({kind})",
            "goal": 0.02,
            "at_most": True,
            **compare(decode_s, lambda: speech_s("test"), invert=True),
        },
        {
            "name": f"the same with the settings' choice ({kind})",
            "goal": None,
            "at_most": True,
            **compare(score_s, lambda: speech_s("valid", "test"), invert=True, rounds=1),
        },
    ]


BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "natural_gradient": natural_gradient,
    "matmul_peak": matmul_peak,
    "decoding": decoding,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "decoding":
        data.prepare(DATASET, RESULTS)
    print(json.dumps(BENCHMARKS[sys.argv[1]]()))
