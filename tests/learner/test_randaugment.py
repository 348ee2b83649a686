"""RandAugment's operations by what they do to images whose pixels are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import rng, some_images
from onepass.learner import randaugment as module
from onepass.learner.randaugment import (
    OPERATIONS,
    autocontrast,
    brightness,
    colour,
    contrast,
    equalize,
    identity,
    posterize,
    randaugment,
    rotate,
    sharpness,
    shear,
    solarize,
    translate,
)

LEVELS = (-1.0, -0.5, 0.0, 0.3, 1.0)


def images(n: int = 2, shape: tuple[int, int, int] = (3, 8, 6), seed: int = 0) -> Tensor:
    return some_images(n, shape, seed) / 255


def assert_looks_at(made: Tensor, x: Tensor, places: dict[tuple[int, int], tuple[float, float]]) -> None:
    """Each pixel (row, column) is the one at its place, black outside; where two are equally near, it is either."""
    decided = 0
    for (row, column), (r, c) in places.items():
        if all(abs(value - round(value)) > 1e-3 for value in (r, c)):
            i, j, decided = math.floor(r), math.floor(c), decided + 1
            inside = 0 <= i < x.shape[2] and 0 <= j < x.shape[3]
            expected = x[:, :, i, j] if inside else torch.zeros_like(x[:, :, 0, 0])
            assert torch.equal(made[:, :, row, column], expected)
    assert decided > 0.8 * len(places)


def centres(x: Tensor) -> dict[tuple[int, int], tuple[float, float]]:
    return {(i, j): (i + 0.5, j + 0.5) for i in range(x.shape[2]) for j in range(x.shape[3])}


@pytest.mark.parametrize("shape", [(3, 8, 6), (1, 5, 9), (3, 8, 8)])
@pytest.mark.parametrize("level", LEVELS)
def test_shear_moves_each_row_by_its_distance_from_the_top_and_each_column_likewise(
    level: float, shape: tuple[int, int, int]
) -> None:
    x, s = images(shape=shape), 0.3 * level
    assert_looks_at(shear(x, level, 0), x, {at: (r, c + s * r) for at, (r, c) in centres(x).items()})
    assert_looks_at(shear(x, level, 1), x, {at: (r + s * c, c) for at, (r, c) in centres(x).items()})


@pytest.mark.parametrize("level", LEVELS)
def test_translation_is_by_whole_pixels_and_black_comes_in(level: float) -> None:
    x = images(shape=(3, 8, 16))
    across, down = int(150 / 331 * 16 * level), int(150 / 331 * 8 * level)
    assert_looks_at(translate(x, level, 0), x, {at: (r, c + across) for at, (r, c) in centres(x).items()})
    assert_looks_at(translate(x, level, 1), x, {at: (r + down, c) for at, (r, c) in centres(x).items()})


@pytest.mark.parametrize("level", LEVELS)
def test_rotation_is_around_the_centre_by_up_to_thirty_degrees(level: float) -> None:
    x = images(shape=(1, 9, 13))
    angle, (middle_r, middle_c) = math.radians(30) * level, (4.5, 6.5)
    places = {}
    for at, (r, c) in centres(x).items():
        dr, dc = r - middle_r, c - middle_c
        places[at] = (
            middle_r + math.sin(angle) * dc + math.cos(angle) * dr,
            middle_c + math.cos(angle) * dc - math.sin(angle) * dr,
        )
    assert_looks_at(rotate(x, level), x, places)


@pytest.mark.parametrize("level", LEVELS)
def test_brightness_colour_and_contrast_leave_black_grey_and_the_mean_grey(level: float) -> None:
    x, f = images(), 1 + 0.9 * level
    luma = 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    torch.testing.assert_close(brightness(x, level), (f * x).clamp(0, 1))
    torch.testing.assert_close(colour(x, level), (luma[:, None] + f * (x - luma[:, None])).clamp(0, 1))
    mean = luma.flatten(1).mean(dim=1)[:, None, None, None]
    torch.testing.assert_close(contrast(x, level), (mean + f * (x - mean)).clamp(0, 1))


def test_images_of_one_channel_have_contrast_and_no_colour() -> None:
    x = images(shape=(1, 4, 4))
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(contrast(x, 1.0), (mean + 1.9 * (x - mean)).clamp(0, 1))
    assert torch.equal(colour(x, 1.0), x)


@pytest.mark.parametrize("level", [-1.0, 0.5])
def test_sharpness_leaves_the_smooth_image_and_the_edges(level: float) -> None:
    x = images(shape=(3, 5, 4))
    smooth = x.clone()
    for i in range(1, 4):
        for j in range(1, 3):
            smooth[:, :, i, j] = (x[:, :, i - 1 : i + 2, j - 1 : j + 2].sum(dim=(2, 3)) + 4 * x[:, :, i, j]) / 13
    torch.testing.assert_close(sharpness(x, level), (smooth + (1 + 0.9 * level) * (x - smooth)).clamp(0, 1))
    tiny = images(shape=(3, 2, 5))
    assert torch.equal(sharpness(tiny, level), tiny)


@pytest.mark.parametrize(("level", "dropped"), [(0.0, 0), (0.1, 0), (0.5, 2), (-0.5, 2), (1.0, 4)])
def test_posterize_drops_the_last_bits_of_each_byte(level: float, dropped: int) -> None:
    x = (torch.arange(256) / 255).view(1, 1, 16, 16)
    made = (255 * posterize(x, level)).round().long().flatten().tolist()
    assert made == [value - value % 2**dropped for value in range(256)]


@pytest.mark.parametrize(("level", "threshold"), [(0.0, 255), (0.5, 127.5), (-0.5, 127.5), (1.0, 0)])
def test_solarize_inverts_what_is_at_least_the_threshold(level: float, threshold: float) -> None:
    x = (torch.arange(256) / 255).view(1, 1, 16, 16)
    made = (255 * solarize(x, level)).round().long().flatten().tolist()
    assert made == [255 - value if value >= threshold else value for value in range(256)]


def test_autocontrast_stretches_each_channel_of_each_image_and_leaves_flat_ones() -> None:
    x = 0.2 + 0.5 * images()
    x[0, 1] = 0.3
    made = autocontrast(x, 1.0)
    assert torch.equal(made[0, 1], x[0, 1])
    for image in range(2):
        for channel in range(3):
            if (image, channel) != (0, 1):
                plane = x[image, channel]
                expected = (plane - plane.min()) / (plane.max() - plane.min())
                torch.testing.assert_close(made[image, channel], expected)


def pil_equalize(values: list[int]) -> list[int]:
    """PIL's algorithm, value by value."""
    histogram = [values.count(value) for value in range(256)]
    present = [count for count in histogram if count]
    step = (sum(present) - present[-1]) // 255
    if len(present) <= 1 or step == 0:
        return values
    table, n = [], step // 2
    for value in range(256):
        table.append(min(255, n // step))
        n += histogram[value]
    return [table[value] for value in values]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 40, 20), (3, 8, 8), (1, 33, 16)])
def test_equalize_flattens_each_channels_histogram_as_pil_does(shape: tuple[int, int, int]) -> None:
    x = images(2, shape, seed=3) ** 2
    x[0, 0] = 0.25
    made = equalize(x, 0.0)
    for image in range(2):
        for channel in range(shape[0]):
            given, found = ((255 * part[image, channel]).round().long().flatten().tolist() for part in (x, made))
            assert found == pil_equalize(given)


def test_some_equalized_images_do_change() -> None:
    x = images(2, (3, 32, 32)) ** 2
    assert (equalize(x, 0.0) - x).abs().max() > 0.1


@pytest.mark.parametrize("index", range(len(OPERATIONS)))
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 3, 5), (2, 1, 1)])
def test_every_operation_returns_new_images_in_range_and_leaves_the_given_ones(
    index: int, shape: tuple[int, int, int]
) -> None:
    x = images(3, shape)
    given = x.clone()
    for level in LEVELS:
        made = OPERATIONS[index](x, level)
        assert made.shape == x.shape
        assert made.dtype == torch.float32
        assert made.min() >= 0
        assert made.max() <= 1
        assert torch.equal(x, given)


def test_there_are_fourteen_operations() -> None:
    assert len({operation if callable(operation) else None for operation in OPERATIONS}) == 14
    assert OPERATIONS[0] is identity


def test_operations_are_drawn_for_the_batch_one_after_the_other_with_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, float]] = []

    def noted(index: int, x: Tensor, level: float) -> Tensor:
        calls.append((index, level))
        return x + 1

    fakes = tuple((lambda x, level, i=i: noted(i, x, level)) for i in range(14))
    monkeypatch.setattr(module, "OPERATIONS", fakes)
    generator = rng(4)
    for _ in range(400):
        assert torch.equal(
            randaugment(torch.zeros(2, 1), generator, operations=3, magnitude=15), torch.full((2, 1), 3.0)
        )
    indices, levels = zip(*calls, strict=True)
    assert len(calls) == 1200
    assert set(levels) == {-0.5, 0.5}
    assert abs(sum(levels)) < 0.5 * 120
    counts = [indices.count(i) for i in range(14)]
    assert min(counts) > 50
    assert max(counts) < 130


def test_the_same_generator_gives_the_same_images_and_no_other_is_used() -> None:
    x, state = images(4, (3, 16, 16)), torch.get_rng_state()
    once, again, other = (randaugment(x, rng(seed), operations=3, magnitude=20) for seed in (5, 5, 6))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(randaugment(x, rng(5), operations=0, magnitude=20), x)
