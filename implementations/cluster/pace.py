"""How fast this machine is at the moment: a training step that calibration times too, timed beside a run.

Others share a machine's memory and cores, and it is up to a fifth faster in one minute than in the next. What a run
took beside what was calibrated minutes before tells a model's error only once that is known.
"""

from __future__ import annotations

import torch

from implementations.cluster.shapes import PACE
from implementations.cluster.steptimes import COLD, TrainingStep

STEPS = 20
_SAMPLES = 1024


def step_s() -> float:
    """Seconds of the step ``shapes.PACE`` now, mean of ``STEPS``; some milliseconds to set it up come on top."""
    generator = torch.Generator().manual_seed(0)
    step = TrainingStep(PACE, torch.rand(_SAMPLES, PACE["features"], generator=generator))
    step.run(COLD)
    return float(step.run(STEPS)[0].mean())
