"""What goes wrong in ways a person can mend; the command prints these without a traceback."""

from __future__ import annotations

import errno
import traceback

# What RuntimeErrors of torch say when there is no memory: on the CPU, on a GPU, in C++, in oneDNN.
NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "bad_alloc", "could not create a primitive")
UNREADABLE = "not enough memory to read it: end other programs; if it should be small, get it again"


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


def extra(name: str) -> str:
    """How to install what only some need: onepass is not on PyPI."""
    return f"pip install '.[{name}]' in the clone of onepass"


def lacks_memory(error: BaseException) -> bool:
    """Whether Python, NumPy, torch or the system could not get memory: nothing is wrong with what was asked for."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return said or isinstance(error, MemoryError)


def no_memory(error: BaseException) -> str:
    words = str(error).strip().partition("\n")[0] or type(error).__name__
    return (
        f"not enough memory ({words}); choose a smaller --net, --memory or --batch, fewer --jobs, or end other "
        "programs: what was stored stays, and the same command continues"
    )


def explain(who: str, error: Exception) -> str:
    """What a failed run says: its message; for a bug in a method, whose run it was and the traceback."""
    if isinstance(error, RunError | UsageError | BadData):
        return str(error)
    if lacks_memory(error):
        return f"{who}: {no_memory(error)}"
    return f"{who}:\n{''.join(traceback.format_exception(error))}"
