"""Config: YAML files in, checked points and batches out. All mistakes of all files are reported at once."""

from implementations.config.arguments import point_from_arguments
from implementations.config.batches import Batch
from implementations.config.catalog import STAND_INS_VARIABLE, Catalog, notices
from implementations.config.load import load
from implementations.config.settings import Experiment, Settings, counts, describe, select

__all__ = [
    "STAND_INS_VARIABLE",
    "Batch",
    "Catalog",
    "Experiment",
    "Settings",
    "counts",
    "describe",
    "load",
    "notices",
    "point_from_arguments",
    "select",
]
