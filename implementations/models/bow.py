"""A network for many classes: a bag of words, one hidden layer of embeddings, a linear layer to the classes.

The input is sparse (``implementations.data.sparse.SparseRows``), so the first layer sums rows of a table. A sample may
have several labels: the loss is the mean of the cross-entropies of its labels, which is softmax cross-entropy where
there is one. Layers have no bias.

Shapes: w worker, b sample of a minibatch, n sample of any worker, f feature, e unit of the hidden layer, c class,
m label of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from implementations.data.ranking import hits_at
from implementations.data.sparse import SparseRows
from implementations.models.linear import Linear, uniform_
from implementations.models.normalised import EPS, Affine, NormalisedModel, Passage, Pause

# Values of a bag of which it is assumed, for the size of the first weights, that they are not zero.
TYPICAL_WORDS = 10


class EmbeddingBag(torch.autograd.Function):
    """Sums of a table's rows, weighted by the values of sparse inputs; backward overwrites the table's gradient.

    All of the gradient is cleared, not only what was written last: others may have written into it since (an
    all-reduce adds other workers' rows).
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        x: SparseRows,
        table_ke: torch.Tensor,
        grad_ke: torch.Tensor,
        grad_wfe: torch.Tensor,
    ) -> torch.Tensor:
        """Sums (W, B, E). ``rows`` are those of ``table_ke`` and ``grad_ke``, of which ``grad_wfe`` is a view."""
        ctx.rows, ctx.x, ctx.grads = rows, x, (grad_ke, grad_wfe)
        h_ne = torch.nn.functional.embedding_bag(
            rows, table_ke, x.offsets, mode="sum", per_sample_weights=x.values, include_last_offset=True
        )
        return h_ne.view(*x.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, gh_wbe: torch.Tensor) -> tuple[None, ...]:
        """No gradient but the table's, which goes to its buffer."""
        grad_ke, grad_wfe = ctx.grads
        samples = ctx.x.owners()
        gh_ve = gh_wbe.flatten(0, 1).index_select(0, samples)
        grad_wfe.zero_()
        grad_ke.index_add_(0, ctx.rows, gh_ve.mul_(ctx.x.values.unsqueeze(1)))
        return (None,) * 5


class LabelsCrossEntropy(torch.autograd.Function):
    """Sum over samples of the mean cross-entropy of their labels; each has one at least, negative ones are filler."""

    @staticmethod
    def forward(ctx: Any, scores_nc: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss (0-d) of labels (n,) or (n, m)."""
        labels_nm = labels.view(len(labels), -1)
        known_nm = labels_nm >= 0
        shares_nm, at_nm = known_nm / known_nm.sum(1, keepdim=True), labels_nm.clamp(min=0)
        log_nc = scores_nc.log_softmax(1)
        loss = -(log_nc.gather(1, at_nm) * shares_nm).sum()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(log_nc.exp_().scatter_add_(1, at_nm, -shares_nm))
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Probabilities less what they should be."""
        (difference_nc,) = ctx.saved_tensors
        return difference_nc * gradient, None


class BagOfWords(NormalisedModel):
    """``features - hidden - classes``; the units of the hidden layer have the label ``h1``.

    The hidden layer is normalised by minibatch (``norm_hidden``) and rectified.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        workers: int,
        output: str,
        statistics: str,
        norm_hidden: bool,
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {"w0": (features, hidden)}
        axes: dict[str, tuple[str | None, ...]] = {"w0": (None, "h1")}
        if norm_hidden:
            shapes |= {"g0": (hidden,), "s0": (hidden,)}
            axes |= {"g0": ("h1",), "s0": ("h1",)}
        shapes["w1"], axes["w1"] = (classes, hidden), (None, "h1")
        self._norm_hidden, self._norm_output = norm_hidden, output == "norm"
        channels = {"n0": hidden} if norm_hidden else {}
        if self._norm_output:
            channels["n1"] = classes
        super().__init__(shapes, workers, axes, statistics, channels)
        self.features, self.hidden, self.classes = features, hidden, classes

    def initialise(self, generator: torch.Generator) -> None:
        """Uniform in +-1/sqrt(fan-in), that of a bag being its usual number of words; the same for every worker."""
        uniform_(self.weights["w0"][0], TYPICAL_WORDS, generator)
        uniform_(self.weights["w1"][0], self.hidden, generator)
        if self._norm_hidden:
            self.weights["g0"][0].fill_(1.0)
        self.theta_wp[1:] = self.theta_wp[0]

    @property
    def flops_per_sample(self) -> int:
        """Those of the products with the output layer; sums of a few rows of the table are left out."""
        return 6 * self.hidden * self.classes

    def _passage(self, x_wbf: SparseRows) -> Passage:
        training = torch.is_grad_enabled()
        h_wbe = self._embed(x_wbf)
        if self._norm_hidden:
            h_wbe = yield Pause("n0", h_wbe, self._affine)
        else:
            h_wbe = torch.relu(h_wbe)
        if self.shares and not training and not self._norm_output:
            h_wbe = h_wbe * self.shares["h1"]
        w_wce = self.weights["w1"].detach().requires_grad_(training)
        scores_wbc = Linear.apply(h_wbe, w_wce, None, self.grads["w1"], None, None, self._norm_output)
        if self._norm_output:
            scores_wbc = yield Pause("n1", scores_wbc, None)
        return scores_wbc

    @property
    def _affine(self) -> Affine:
        return Affine(self.weights["g0"], self.weights["s0"], self.grads["g0"], self.grads["s0"])

    def _embed(self, x_wbf: SparseRows) -> torch.Tensor:
        """Products (W, B, E) of the inputs with the table."""
        # every weight belongs to a hidden unit: the buffers are rows of E values, and the tables lie so many apart
        apart = self.params_per_worker // self.hidden
        rows = x_wbf.stacked_indices()
        if self.workers > 1:
            rows = rows + rows // self.features * (apart - self.features)
        table_ke, grad_ke = (flat.view(-1, self.hidden) for flat in (self.theta_wp, self.grad_wp))
        table_ke = table_ke.detach().requires_grad_(torch.is_grad_enabled())
        return EmbeddingBag.apply(rows, x_wbf, table_ke, grad_ke, self.grads["w0"])

    def loss_sum(self, scores_nc: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """See ``LabelsCrossEntropy``."""
        return LabelsCrossEntropy.apply(scores_nc, labels)

    @torch.no_grad()
    def hits(self, x_bf: SparseRows, labels: torch.Tensor, worker: int = 0) -> torch.Tensor:
        """Sums of precision at 1, 3 and 5 over the samples given, (3,) float64; see ``hits_at``."""
        return hits_at(self.one_worker(worker).logits(x_bf.unsqueeze(0)).squeeze(0), labels)

    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """A plain module of dense inputs (b, features) with a copy of one worker's weights and statistics."""
        first = torch.nn.Linear(self.features, self.hidden, bias=False)
        last = torch.nn.Linear(self.hidden, self.classes, bias=False)
        first.weight.data.copy_(self.weights["w0"][worker].t())
        last.weight.data.copy_(self.weights["w1"][worker])
        layers: list[torch.nn.Module] = [first]
        if self._norm_hidden:
            norm = torch.nn.BatchNorm1d(self.hidden, EPS, None, True, self.needs_samples)
            layers.append(self._filled(norm, "n0", worker, self._affine))
        layers += [torch.nn.ReLU(), last]
        if self._norm_output:
            norm = torch.nn.BatchNorm1d(self.classes, EPS, None, False, self.needs_samples)
            layers.append(self._filled(norm, "n1", worker, None))
        return torch.nn.Sequential(*layers)


def build(
    *,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    hidden: Sequence[int],
    output: str = "mean",
    statistics: str = "population",
    norm_hidden: bool = True,
) -> BagOfWords:
    """An initialised network ``features - hidden - classes`` for ``workers`` workers."""
    net = BagOfWords(features, hidden[0], classes, workers, output, statistics, norm_hidden)
    net.initialise(generator)
    return net
