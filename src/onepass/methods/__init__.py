"""The methods: one dict, one line each. Importing it does not import torch; `method_class` does."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onepass.config import unknown
from onepass.errors import UsageError

if TYPE_CHECKING:
    from onepass.learner import Learner


@dataclass(frozen=True)
class Method:
    """Where a method's class is, how the paper's table writes it, where it was published, what it does."""

    path: str
    title: str
    venue: str
    about: str
    scenario: str = "class-incremental"  # what it runs on unless told otherwise


METHODS: dict[str, Method] = {
    "finetune": Method("onepass.methods.finetune:FineTune", "FINE-TUNE", "-", "learn each batch, keep nothing"),
    "iid": Method("onepass.methods.finetune:FineTune", "IID", "-", "fine-tune on all classes shuffled", "iid"),
    "iid++": Method(
        "onepass.methods.iidpp:IIDPP", "IID++", "ICLR 2022", "the same with a second, independent batch a step", "iid++"
    ),
    "er": Method("onepass.methods.er:ER", "ER", "NeurIPS 2019", "replay a random part of the memory beside each batch"),
    "er-fsl": Method(
        "onepass.methods.er_fsl:ERFSL", "ER-FSL", "ACM MM 2024", "learn in a task's own feature subspace, replay in all"
    ),
}


def method_class(name: str) -> type[Learner]:
    """The class of a named method, or of your own as MODULE:CLASS."""
    if name not in METHODS and ":" not in name:
        raise unknown("method", name, METHODS, "onepass methods lists all")
    path = METHODS[name].path if name in METHODS else name
    return import_learner(path)


def import_learner(path: str) -> type[Learner]:
    """The learner class at MODULE:CLASS."""
    from onepass.learner import Learner

    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"cannot load {path!r}: {error}; give MODULE:CLASS, both importable from here") from error
    if not (isinstance(found, type) and issubclass(found, Learner)):
        raise UsageError(f"{path!r} is {found!r}: needed is a subclass of onepass.Learner")
    return found
