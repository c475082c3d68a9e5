"""Errors that a user can mend: shown as one message, without a traceback."""


class UserError(Exception):
    """A mistake or a lack outside the code (config, data, MPI, disk); the message names it and the way out."""


class Diverged(Exception):
    """Training produced a loss that is not finite; the point ends with status ``diverged``."""


class OverMemory(Exception):
    """A worker's state does not fit the limit that the point sets; the point ends with status ``over_memory``.

    ``sizes`` are the columns of its record that are known.
    """

    def __init__(self, message: str, sizes: dict[str, int]) -> None:
        super().__init__(message)
        self.sizes = sizes
