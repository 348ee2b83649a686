"""What goes wrong in ways a person can mend; the command prints these without a traceback."""


class UsageError(ValueError):
    """Something asked for is impossible; says what was given, what is allowed and what to do."""


class BadCheckpoint(ValueError):
    """A checkpoint is damaged, or belongs to something else."""


class BadData(ValueError):
    """A file that is damaged, hostile, or not what it should be, or that could not be had."""


class RunError(RuntimeError):
    """A run could not be finished; what it had stored stays."""


class Diverged(RunError):
    """The loss is no longer a number. The learner still holds the weights from before that step."""
