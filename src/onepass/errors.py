"""What goes wrong in ways a person can mend; the command prints these without a traceback."""

from __future__ import annotations

import traceback


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


def explain(who: str, error: Exception) -> str:
    """What a failed run says: its message; for a bug in a method, whose run it was and the traceback."""
    if isinstance(error, RunError | UsageError | BadData):
        return str(error)
    return f"{who}:\n{''.join(traceback.format_exception(error))}"
