"""Precision at k, the measure of extreme classification: the share of the k best-scored classes that are labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

KS = (1, 3, 5)


def hits_at(scores_nc: torch.Tensor, labels: torch.Tensor, ks: Sequence[int] = KS) -> torch.Tensor:
    """Sum over samples of precision at each k, (ks,) float64: over pieces of a data set, sums add up.

    ``labels`` is (n,) or (n, most) int64, filled with negative numbers where a sample has fewer; a sample without
    any scores 0. Divided by k whatever the number of labels, as by Bhatia et al. Among equal scores the order is
    arbitrary. ValueError if there are fewer classes than the largest k.
    """
    if max(ks) > scores_nc.shape[1]:
        raise ValueError(f"precision at {max(ks)} of {scores_nc.shape[1]} classes")
    best_nk = scores_nc.topk(max(ks), dim=1).indices
    right_nk = (best_nk.unsqueeze(2) == labels.view(len(labels), 1, -1)).any(dim=2)
    found_k = right_nk.sum(0, dtype=torch.float64).cumsum(0)
    return torch.stack([found_k[k - 1] / k for k in ks])


def precision_at(scores_nc: torch.Tensor, labels: torch.Tensor, ks: Sequence[int] = KS) -> dict[int, float]:
    """Mean precision at each k over the samples; see ``hits_at``."""
    return dict(zip(ks, (hits_at(scores_nc, labels, ks) / len(labels)).tolist()))
