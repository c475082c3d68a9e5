"""Errors that a user can mend: shown as one message, without a traceback."""


class UserError(Exception):
    """A mistake or a lack outside the code (config, data, MPI, disk); the message names it and the way out."""


class Diverged(Exception):
    """Training produced a loss that is not finite; the point ends with status ``diverged``."""
