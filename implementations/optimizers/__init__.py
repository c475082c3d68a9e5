"""Optimisers that torch does not have, on the flat buffers of a ``WorkerModel``."""
