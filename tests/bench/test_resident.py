"""Images that stay on a GPU. There is none here: torch's meta device takes its place, which has sizes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from onepass.bench.resident import resident
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import batches, make_tasks
from onepass.data import Dataset
from onepass.data.digits import load


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Of a GPU that is the meta device."""
    told = {"bytes": 10**9}
    plain = torch.Tensor.to

    def moved(self: torch.Tensor, device: Any, *more: Any) -> torch.Tensor:
        return plain(self, "meta" if str(device) == "cuda" else device, *more)

    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (told["bytes"], 10**9))
    return told


def places(data: Dataset) -> list[str]:
    return [value.device.type for value in (data.x, data.x_test, data.y, data.y_test)]


def test_images_that_fit_stay_on_the_gpu_as_bytes_and_batches_are_rows_of_them(free: dict[str, int]) -> None:
    data, tasks = make_tasks(load(), RunConfig("er", "digits").stream_config, seed=0)
    there = resident(data, "cuda")
    assert places(there) == ["meta", "meta", "cpu", "cpu"]
    assert (there.x.dtype, there.x.shape) == (torch.uint8, data.x.shape)
    batch, here = next(batches(there, tasks[0], 10)), next(batches(data, tasks[0], 10))
    assert (batch.x.device.type, batch.x.shape, batch.y.tolist()) == ("meta", here.x.shape, here.y.tolist())
    both = resident(replace(data, x_test=data.x), "cuda")
    assert both.x is both.x_test, "images that are learned and measured are held once"


def test_images_stay_where_they_are_without_room_on_a_cpu_and_as_floats(free: dict[str, int]) -> None:
    data = load()
    free["bytes"] = 2 * (data.x.numel() + data.x_test.numel())
    assert places(resident(data, "cuda"))[0] == "meta"
    free["bytes"] -= 2
    assert resident(data, "cuda") is data
    free["bytes"] = 10**9
    assert resident(data, "cpu") is data
    floats = replace(data, x=data.x.float(), x_test=data.x_test.float())
    assert resident(floats, "cuda") is floats
