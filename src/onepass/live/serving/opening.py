"""The model that is served: that of a file, or a new one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from onepass.errors import UsageError
from onepass.live.model import Model
from onepass.live.state import load_model


@dataclass(frozen=True)
class Opening:
    """Where the file lies, and what a new model is like if there is none."""

    path: Path
    shape: tuple[int, ...]
    method: str = ""
    net: str = ""
    seed: int = 0
    allow: tuple[str, ...] = field(default=())
    read_only: bool = False

    def model(self) -> Model:
        if self.path.exists():
            return load_model(self.path, self.allow)
        if self.read_only:
            raise UsageError(f"Expected the file of a model, got {self.path}, which is not there.")
        return Model.create(self.shape, method=self.method, net=self.net, seed=self.seed)
