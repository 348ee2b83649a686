"""In how many bits a network's body computes: fp32, or bf16 where the machine has instructions for it.

Only passes of the body, forwards and backwards, are in bf16. Weights, optimizers, batch-norm statistics, heads, losses
and similarities stay in fp32, and so do the features that the body gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from onepass.config import LearnerConfig, Settings
from onepass.errors import UsageError

INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # of x86 and of ARM, as torch calls them
S = TypeVar("S", bound=Settings)


def computes_bf16(device: str | torch.device) -> bool:
    """Whether a device computes in bf16 itself; others emulate it, and take longer than in fp32."""
    kind = _kind(device)
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    # An older torch cannot be asked: then it is taken to emulate.
    found: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)() if kind == "cpu" else {}
    return any(found.get(name, False) for name in INSTRUCTIONS)


def _kind(device: str | torch.device) -> str:
    return str(device).partition(":")[0]


def settled(config: S, device: str | torch.device) -> S:
    """Settings whose precision is one of the two: `auto` becomes what is quickest on the device."""
    if not isinstance(config, LearnerConfig) or config.precision != "auto":
        return config
    return dataclasses.replace(config, precision="bf16" if computes_bf16(device) else "fp32")


def check_precision(precision: str, device: str | torch.device) -> None:
    """Refuse bf16 where it would be emulated."""
    if precision == "bf16" and not computes_bf16(device):
        raise UsageError(
            f"precision=bf16: expected a device that computes in bf16 ({', '.join(INSTRUCTIONS[:2])} or a GPU), got "
            f"{_kind(device)}, where it is emulated and slower. Use --precision fp32, or auto"
        )


def lowered(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Inside, matrix products and convolutions compute in this precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def passed(module: Callable[[Tensor], Tensor], x: Tensor, precision: str) -> Tensor:
    """What a module gives for x, as fp32 if it was computed in less."""
    if precision == "fp32":
        value: Tensor = module(x)
        return value
    with lowered(precision, x.device):
        value = module(x)
    return value.float()
