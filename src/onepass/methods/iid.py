"""IID: fine-tuning on shuffled data."""

from __future__ import annotations

from onepass.methods.finetune import FineTune


class IID(FineTune):
    """All samples in one random order, each learned once: nothing has to be remembered. The reference for one pass
    without forgetting; it learns as fine-tuning does, and only its stream differs.

    L = mean of CE over a batch of samples of all classes (eq. 1)
    """
