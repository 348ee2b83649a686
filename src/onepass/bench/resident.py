"""A data set's images on the device that learns: bytes, from which batches are rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from onepass.data import Dataset

SHARE = 0.5  # of the device's free memory; the rest is for activations and for the memory of samples


def resident(data: Dataset, device: str | torch.device) -> Dataset:
    """With its images on a GPU, if they are bytes and fit; labels stay here, where they are read."""
    device = torch.device(device)
    if device.type != "cuda" or data.x.dtype != torch.uint8:
        return data
    parts = {id(part): part for part in (data.x, data.x_test)}  # to validate, images are measured that are learned
    if sum(part.numel() for part in parts.values()) > SHARE * torch.cuda.mem_get_info(device)[0]:
        return data
    there = {key: part.to(device) for key, part in parts.items()}
    return replace(data, x=there[id(data.x)], x_test=there[id(data.x_test)])
