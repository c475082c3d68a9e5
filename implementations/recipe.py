"""The recipe of a training beside its method: optimiser, first weights and schedule of the rate, with their parameters.

Nothing here imports torch, so that config can be checked in a moment; ``training.py`` builds what is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from implementations.registry import Param

if TYPE_CHECKING:
    from implementations.point import Point

_REDUCTION = Param(
    str,
    "mean",
    "what the learning rate multiplies: the minibatch's mean gradient, or its sum (as speech recipes have it)",
    choices=("mean", "sum"),
)

_MOMENTUM = Param(float, 0.0, "share of the last move that is kept", minimum=0.0, maximum=0.999)

# rmsprop divides each gradient by the root of a running mean of its squares; a scale common to all gradients, such as
# that of a sum over the minibatch, cancels, so that it has no reduction.
OPTIMIZERS: dict[str, dict[str, Param]] = {
    "sgd": {"reduction": _REDUCTION, "momentum": _MOMENTUM},
    "rmsprop": {
        "rms_decay": Param(
            float,
            0.9,
            "share of the mean square that a step keeps (torch's alpha)",
            minimum=0.0,
            maximum=0.9999,
        ),
        "rms_epsilon": Param(float, 1e-8, "added to the root of the mean square", minimum=0.0),
        "momentum": _MOMENTUM,
    },
    "ng_sgd": {
        "reduction": _REDUCTION,
        "max_change": Param(float, 0.075, "largest change of a layer per sample; 0: no limit", minimum=0.0),
        "max_change_rule": Param(
            str,
            "standard",
            "standard: the change with the rate in it is limited; author: as if the rate were 1, times the rate "
            "(Su and Chen's code)",
            choices=("standard", "author"),
        ),
        "ng_alpha": Param(float, 4.0, "smoothing of the Fisher matrices", minimum=0.0),
        "ng_rank_in": Param(int, 40, "directions kept of a layer's inputs", minimum=1),
        "ng_rank_out": Param(int, 40, "directions kept of its output derivatives", minimum=1),
        "ng_history": Param(float, 2000.0, "samples that the estimates remember", "samples", minimum=1.0),
        "ng_update_period": Param(
            int, 1, "minibatches between two updates of the estimates, after the first ten", minimum=1
        ),
    },
}

# uniform: the model's own rule; random: the speech recipe's for deep sigmoid networks; rbm: with pretrained layers.
INITS: dict[str, dict[str, Param]] = {
    "uniform": {},
    "random": {},
    "rbm": {
        "rbm_gaussian_epochs": Param(int, 2, "epochs of the first machine", "epochs", minimum=1),
        "rbm_bernoulli_epochs": Param(int, 1, "epochs of each other machine", "epochs", minimum=1),
        "rbm_gaussian_lr": Param(float, 0.01, "learning rate of the first machine", minimum=0.0),
        "rbm_bernoulli_lr": Param(float, 0.4, "learning rate of the others", minimum=0.0),
    },
}

SCHEDULES: dict[str, dict[str, Param]] = {
    "constant": {},
    "exponential": {
        "lr_final": Param(
            float, 0.01, "rate of the last epoch, as a share of the first", minimum=0.0, maximum=1.0
        )
    },
    "newbob": {
        "newbob_criterion": Param(
            str, "accuracy", "what is watched on the validation set", choices=("accuracy", "loss")
        ),
        "newbob_start_below": Param(
            float, 0.005, "gain of an epoch below which the rate is halved from then on"
        ),
        "newbob_stop_below": Param(float, 0.001, "gain below which training stops, once halving"),
        "newbob_factor": Param(float, 0.5, "what the rate is multiplied by", minimum=0.0, maximum=1.0),
        "reject_worse": Param(bool, False, "an epoch that does not improve is undone"),
    },
}

_PARTS = {"optimizer": OPTIMIZERS, "init": INITS, "schedule": SCHEDULES}

ALL_PARAMS: tuple[str, ...] = tuple(
    dict.fromkeys(name for choices in _PARTS.values() for params in choices.values() for name in params)
)


def parameters(values: Mapping[str, Any]) -> dict[str, Param]:
    """The parameters of a choice of ``optimizer``, ``init`` and ``schedule`` (a missing one is the point's default)."""
    from implementations.point import Point

    found: dict[str, Param] = {}
    for part, choices in _PARTS.items():
        found |= choices.get(values.get(part, Point.__dataclass_fields__[part].default), {})
    return found


def chosen(values: Mapping[str, Any]) -> str:
    """What a choice of ``optimizer``, ``init`` and ``schedule`` comes to, in words."""
    from implementations.point import Point

    return ", ".join(
        f"{part} {values.get(part, Point.__dataclass_fields__[part].default)}" for part in _PARTS
    )


def settings(point: Point) -> dict[str, Any]:
    """The point's recipe with the defaults filled in."""
    return {name: point.recipe.get(name, param.default) for name, param in _of(point).items()}


def check(point: Point) -> list[str]:
    """What is wrong with a point's recipe, as lines ``key: got X; allowed: Y``."""
    known = _of(point)
    problems = []
    for name, value in point.recipe.items():
        if name not in known:
            parts = chosen({part: getattr(point, part) for part in _PARTS})
            problems.append(f"{name}: not a parameter of {parts}; allowed: {', '.join(known) or 'none'}")
        elif not known[name].accepts(value):
            problems.append(f"{name}: got {value!r}; allowed: {known[name].allowed}")
    if point.optimizer == "ng_sgd" and point.model["name"] != "fc":
        problems.append(
            f"optimizer: got 'ng_sgd' with model {point.model['name']}; allowed: sgd | rmsprop (it is for model fc)"
        )
    if point.init != "uniform" and point.model.get("activation") != "sigmoid":
        problems.append(
            f"init: got {point.init!r}; allowed: uniform (the others are for activation: sigmoid)"
        )
    return problems


def _of(point: Point) -> dict[str, Param]:
    return parameters({part: getattr(point, part) for part in _PARTS})
