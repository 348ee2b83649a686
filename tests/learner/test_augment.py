from __future__ import annotations

import colorsys
import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.learner import augment
from onepass.learner.augment import (
    AUGMENTATIONS,
    brightness_,
    colour,
    contrast_,
    crop,
    decode,
    digits,
    draw_boxes,
    encode,
    hue_,
    noise,
    saturation_,
)
from onepass.names import AUGMENTATION_NAMES


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(*rgb: tuple[float, float, float]) -> Tensor:
    """One image (1, 3, 1, n) of the given pixels."""
    return torch.tensor(rgb).T[None, :, None, :].contiguous()


def per_image(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


def flat(n: int, rgb: tuple[float, float, float] = (0.5, 0.3, 0.35), size: int = 4) -> Tensor:
    """Images of one colour: no crop or flip shows in them."""
    return torch.tensor(rgb).view(1, 3, 1, 1).repeat(n, 1, size, size)


def ramps(n: int, channels: int = 1, size: int = 8) -> Tensor:
    """Images that brighten from left to right: every crop does too, unless it is mirrored."""
    return torch.linspace(0, 1, size).expand(n, channels, size, size).contiguous()


def assert_rate(hits: Tensor, rate: float) -> None:
    """The share of hits is ``rate`` within 4.5 standard deviations of the binomial."""
    assert abs(hits.double().mean().item() - rate) < 4.5 * math.sqrt(rate * (1 - rate) / hits.numel())


def test_encode_undoes_decode_for_every_byte() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    assert decode(every).dtype == torch.float32
    assert torch.equal(encode(decode(every)), every)
    assert decode(every)[[0, 51, 255]].tolist() == pytest.approx([0, 0.2, 1])


def test_encode_rounds_to_the_nearest_byte_and_stays_in_range() -> None:
    assert encode(torch.tensor([0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.01, -0.01])).tolist() == [0, 0, 1, 255, 255, 0]


def test_what_is_encoded_or_decoded_already_passes_through() -> None:
    x, u = torch.rand(2, 3, generator=rng()), torch.arange(6, dtype=torch.uint8)
    assert decode(x) is x
    assert encode(u) is u


def test_brightness_multiplies_and_clamps() -> None:
    x = pixels((0.5, 0.8, 0.1)).repeat(2, 1, 1, 1)
    expected = torch.cat([pixels((0.7, 1.0, 0.14)), pixels((0.3, 0.48, 0.06))])  # 0.8 * 1.4 = 1.12
    torch.testing.assert_close(brightness_(x, per_image(1.4, 0.6)), expected)


def test_contrast_blends_with_the_mean_grey() -> None:
    x = pixels((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))  # mean grey (0.299 + 0.114) / 2 = 0.2065
    half = pixels((0.60325, 0.10325, 0.10325), (0.10325, 0.10325, 0.60325))
    beyond = x  # 1.4 - 0.4 * 0.2065 > 1 and -0.4 * 0.2065 < 0
    even = torch.full_like(x, 0.5)
    torch.testing.assert_close(
        contrast_(torch.cat([x, x, even]), per_image(0.5, 1.4, 0.6)), torch.cat([half, beyond, even])
    )


def test_saturation_blends_with_each_pixels_grey() -> None:
    x = pixels((1.0, 0.0, 0.0), (0.5, 0.25, 0.25)).repeat(3, 1, 1, 1)  # greys 0.299 and 0.32475
    half = pixels((0.6495, 0.1495, 0.1495), (0.412375, 0.287375, 0.287375))
    beyond = pixels((1.0, 0.0, 0.0), (0.5701, 0.2201, 0.2201))
    none = pixels((0.299, 0.299, 0.299), (0.32475, 0.32475, 0.32475))
    torch.testing.assert_close(saturation_(x, per_image(0.5, 1.4, 0)), torch.cat([half, beyond, none]))


def test_hue_of_red_turns_to_orange_and_pink() -> None:
    x = pixels((1.0, 0.0, 0.0), (0.5, 0.5, 0.5)).repeat(2, 1, 1, 1)
    expected = torch.cat([pixels((1.0, 0.6, 0.0), (0.5, 0.5, 0.5)), pixels((1.0, 0.0, 0.6), (0.5, 0.5, 0.5))])
    torch.testing.assert_close(hue_(x, per_image(0.1, -0.1)), expected)


def test_hue_equals_colorsys_in_every_sector() -> None:
    shades = (0.0, 0.2, 0.35, 0.7, 1.0)
    cube = [(r, g, b) for r in shades for g in shades for b in shades]  # all sectors, ties, greys
    shifts = (-1 / 6, -0.1, -0.03, 0.0, 0.07, 0.1, 1 / 6)
    turned = hue_(pixels(*cube).repeat(len(shifts), 1, 1, 1), per_image(*shifts))
    for image, shift in zip(turned, shifts, strict=True):
        hsv = [colorsys.rgb_to_hsv(*rgb) for rgb in cube]
        expected = [colorsys.hsv_to_rgb((h + shift) % 1, s, v) for h, s, v in hsv]
        torch.testing.assert_close(image[:, 0].T, torch.tensor(expected), atol=2e-6, rtol=0)


def test_neutral_parameters_change_nothing() -> None:
    x = torch.rand(3, 3, 5, 5, generator=rng())
    one = torch.ones(3, 1, 1, 1)
    for step in (brightness_, contrast_, saturation_):
        assert torch.equal(step(x.clone(), one), x)
    torch.testing.assert_close(hue_(x.clone(), 0 * one), x, atol=1e-6, rtol=0)


def reference_boxes(n: int, height: int, width: int, scale: tuple[float, float], seed: int) -> list[list[int]]:
    """RandomResizedCrop.get_params of torchvision, image by image, on the uniforms of draw_boxes."""
    boxes = []
    for u in torch.rand(n, 22, generator=rng(seed), dtype=torch.float64).tolist():
        for attempt in range(10):
            area = height * width * (scale[0] + (scale[1] - scale[0]) * u[attempt])
            aspect = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * u[10 + attempt])
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                boxes.append([int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1)), h, w])
                break
        else:
            w, h = width, height
            if width / height < 3 / 4:
                h = round(width / (3 / 4))
            elif width / height > 4 / 3:
                w = round(height * (4 / 3))
            boxes.append([(height - h) // 2, (width - w) // 2, h, w])
    return boxes


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (84, 84), (20, 50), (50, 20), (1, 1)])
@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.6, 1.0)])
def test_boxes_are_those_of_torchvisions_loop(height: int, width: int, scale: tuple[float, float]) -> None:
    box = torch.stack(draw_boxes(300, height, width, scale, rng(5)), 1)
    assert box.dtype == torch.int64
    assert box.tolist() == reference_boxes(300, height, width, scale, seed=5)
    top, left, h, w = box.unbind(1)
    assert top.min() >= 0
    assert left.min() >= 0
    assert h.min() >= 1
    assert w.min() >= 1
    assert (top + h).max() <= height
    assert (left + w).max() <= width


def test_boxes_have_uniform_area_and_log_uniform_aspect() -> None:
    side = 2000  # so large that rounding to whole pixels does not show
    _, _, h, w = draw_boxes(4000, side, side, (0.2, 0.7), rng())  # up to an area of 3/4 every aspect fits
    area = h * w / side**2
    aspect = (w / h).log() / math.log(4 / 3)
    assert aspect.abs().max() < 1.01
    for i in range(5):
        assert_rate((area >= 0.2 + 0.1 * i) & (area < 0.3 + 0.1 * i), 0.2)
        assert_rate((aspect >= -1 + 0.4 * i) & (aspect < -0.6 + 0.4 * i), 0.2)


def test_boxes_nearly_as_large_as_the_image_are_rare() -> None:
    side = 2000
    _, _, h, w = draw_boxes(4000, side, side, (0.2, 1.0), rng())
    area = h * w / side**2
    large = (0.25 + 0.75 * math.log(0.75)) / math.log(4 / 3)  # an area a > 3/4 fits with probability -log(a) / log(4/3)
    assert_rate(area < 0.75, 0.55 / (0.55 + large))
    assert_rate(area < 0.475, 0.275 / (0.55 + large))


def test_boxes_lie_anywhere_in_the_image() -> None:
    top, left, h, w = draw_boxes(4000, 8, 8, (0.2, 0.7), rng())
    for start, room in ((top, 8 - h), (left, 8 - w)):
        for places in (2, 3, 4):
            rows = start[room == places - 1]
            for place in range(places):
                assert_rate(rows == place, 1 / places)


def test_images_too_long_for_any_box_get_the_centre_crop() -> None:
    for height, width, expected in ((10, 40, [0, 13, 10, 13]), (40, 10, [13, 0, 13, 10])):
        box = torch.stack(draw_boxes(4, height, width, (1.0, 1.0), rng()), 1)
        assert box.tolist() == [expected] * 4


@pytest.mark.parametrize("size", [(8, 8), (84, 84), (5, 9)])
def test_whole_image_is_kept_or_mirrored(size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, *size, generator=rng())
    corner, height, width = torch.tensor([0, 0]), torch.tensor([size[0]] * 2), torch.tensor([size[1]] * 2)
    view = crop(x, (corner, corner, height, width), torch.tensor([False, True]))
    torch.testing.assert_close(view, torch.stack([x[0], x[1].flip(-1)]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (11, 17)])
def test_crop_is_the_interpolated_slice(height: int, width: int) -> None:
    x = torch.rand(40, 2, height, width, generator=rng())
    box = draw_boxes(40, height, width, (0.05, 1.0), rng())
    flip = torch.arange(40) % 2 == 0
    view = crop(x, box, flip)
    for i, (top, left, h, w) in enumerate(torch.stack(box, 1).tolist()):
        part = x[i : i + 1, :, top : top + h, left : left + w]
        expected = F.interpolate(part, (height, width), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(view[i], expected.flip(-1) if flip[i] else expected, atol=1e-5, rtol=0)


def test_colour_mirrors_half_of_the_images_and_digits_none() -> None:
    x = ramps(2000)
    falls = colour(x, rng())[:, 0, 0].diff(dim=-1).sum(-1) < 0
    assert_rate(falls, 0.5)
    assert (digits(x, rng()).diff(dim=-1) >= -1e-6).all()


def test_colour_jitters_four_fifths_and_greys_one_fifth_independently() -> None:
    x = flat(3000)
    pixel = colour(x, rng())[:, :, 0, 0]
    grey = (pixel == pixel[:, :1]).all(1)
    luma = 0.299 * 0.5 + 0.587 * 0.3 + 0.114 * 0.35
    target = torch.where(grey[:, None], torch.tensor(luma), x[:, :, 0, 0])
    jittered = (pixel - target).abs().amax(1) > 1e-5
    assert_rate(grey, 0.2)
    assert_rate(jittered, 0.8)
    assert_rate(grey[jittered], 0.2)


def test_colour_turns_hue_uniformly_by_at_most_a_tenth() -> None:
    pixel = colour(flat(3000), rng())[:, :, 0, 0]  # a colour so pale that no step clamps: only hue_ moves its hue
    coloured = pixel[pixel.amax(1) - pixel.amin(1) > 1e-3]
    before = colorsys.rgb_to_hsv(0.5, 0.3, 0.35)[0]
    turn = torch.tensor([(colorsys.rgb_to_hsv(*rgb)[0] - before + 0.5) % 1 - 0.5 for rgb in coloured.tolist()])
    turn = turn[turn.abs() > 1e-5]
    assert turn.abs().max() < 0.1 + 1e-5
    for i in range(4):
        assert_rate((turn >= -0.1 + 0.05 * i) & (turn < -0.05 + 0.05 * i), 0.25)


def test_jitter_draws_each_factor_for_each_image_and_one_order_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Tensor]] = []

    def noted(name: str, x: Tensor, drawn: Tensor) -> Tensor:
        calls.append((name, drawn.flatten()))
        return x

    for name in ("brightness_", "contrast_", "saturation_", "hue_"):
        monkeypatch.setattr(augment, name, functools.partial(noted, name))
    colour(flat(3000), rng())
    drawn = dict(calls[:4])
    chosen = drawn["hue_"] != 0
    assert_rate(chosen, 0.8)
    for name, spread, middle in (
        ("brightness_", 0.4, 1),
        ("contrast_", 0.4, 1),
        ("saturation_", 0.4, 1),
        ("hue_", 0.1, 0),
    ):
        part = (drawn[name] - middle) / spread
        assert (part[~chosen] == 0).all()
        assert part.abs().max() <= 1 + 1e-6
        for i in range(4):
            assert_rate((part[chosen] >= -1 + 0.5 * i) & (part[chosen] < -0.5 + 0.5 * i), 0.25)
    calls.clear()
    generator = rng()
    for _ in range(400):
        colour(flat(1), generator)
    names = [name for name, _ in calls]  # the fifth call of each batch is grayscale
    orders = [tuple(names[i : i + 4]) for i in range(0, len(names), 5)]
    assert len(set(orders)) == 24
    assert {len(set(order)) for order in orders} == {4}


def test_one_channel_is_only_cropped_and_flipped() -> None:
    x = torch.rand(50, 1, 32, 32, generator=rng())
    generator = rng(3)
    box = draw_boxes(50, 32, 32, (0.2, 1.0), generator)
    flip = torch.rand(50, generator=generator) < 0.5
    assert torch.equal(colour(x, rng(3)), crop(x, box, flip))


def test_digits_keeps_colours_and_at_least_its_share_of_the_image() -> None:
    x = flat(50, size=8)
    torch.testing.assert_close(digits(x, rng()), x)
    x = torch.rand(50, 1, 8, 8, generator=rng())
    torch.testing.assert_close(digits(x, rng(), scale=(1.0, 1.0)), x)
    view = digits(ramps(500), rng())
    assert (
        view.amax((1, 2, 3)) - view.amin((1, 2, 3))
    ).min() >= 4 / 7 - 1e-6  # area 0.6 at the narrowest aspect: round(sqrt(0.6 * 64 * 3 / 4)) = 5 columns


@pytest.mark.parametrize("augment", [colour, digits])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_are_new_batches_like_their_input(
    augment: augment.Augment, channels: int, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    x = torch.rand(9, channels, 8, 10, generator=rng(), dtype=dtype).contiguous(memory_format=layout)
    before = x.clone()
    view = augment(x, rng())
    assert torch.equal(x, before)
    assert view.data_ptr() != x.data_ptr()
    assert (view.shape, view.dtype, view.device) == (x.shape, x.dtype, x.device)
    assert view.is_contiguous(memory_format=layout)
    torch.testing.assert_close(view, augment(x.contiguous(), rng()), atol=1e-6, rtol=0)
    assert augment(x[:0], rng()).shape == x[:0].shape


@pytest.mark.parametrize("augment", [colour, digits])
def test_views_stay_in_range(augment: augment.Augment) -> None:
    noise = torch.rand(200, 3, 9, 9, generator=rng())
    ones = torch.ones(1000, 1, 25, 25)  # a size at which some bilinear weights sum to more than 1
    for x in (noise, noise.round(), torch.ones_like(noise), torch.zeros_like(noise), ones):
        view = augment(x, rng())
        assert view.min() >= 0
        assert view.max() <= 1


@pytest.mark.parametrize("augment", [colour, digits])
def test_equal_images_get_different_views(augment: augment.Augment) -> None:
    x = torch.rand(1, 3, 32, 32, generator=rng()).repeat(8, 1, 1, 1)
    view = augment(x, rng())
    assert all(not torch.allclose(view[i], view[j]) for i, j in itertools.combinations(range(8), 2))


def numpys_state() -> list[int]:
    words: list[int] = np.random.get_state(legacy=False)["state"]["key"].tolist()  # noqa: NPY002  # is it left alone?
    return words


@pytest.mark.parametrize("augment", [colour, digits])
def test_views_depend_on_their_generator_alone(augment: augment.Augment) -> None:
    x = torch.rand(6, 3, 12, 12, generator=rng())
    before = torch.get_rng_state(), random.getstate(), numpys_state()
    generator = rng(1)
    first, second = augment(x, generator), augment(x, generator)
    assert torch.equal(first, augment(x, rng(1)))
    assert not torch.equal(first, second)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == numpys_state()


def test_views_by_name() -> None:
    assert list(AUGMENTATIONS.items()) == [("colour", colour), ("digits", digits), ("noise", noise), ("none", None)]
    assert list(AUGMENTATIONS) == list(AUGMENTATION_NAMES)


def test_bytes_and_odd_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.uint8; decode\(x\)"):
        colour(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), rng())
    with pytest.raises(ValueError, match="got 4"):
        colour(torch.zeros(2, 4, 8, 8), rng())


def test_noise_is_a_tenth_of_each_values_deviation_in_the_batch() -> None:
    x = torch.randn(4000, 3, generator=rng(1)) * torch.tensor([1.0, 50.0, 0.0]) + torch.tensor([0.0, 9.0, 4.0])
    added = noise(x, rng(2)) - x
    torch.testing.assert_close(added.std(dim=0), torch.tensor([0.1, 5.0, 0.0]), rtol=0.05, atol=1e-6)
    torch.testing.assert_close(added.mean(dim=0), torch.zeros(3), rtol=0, atol=0.3)
    assert torch.equal(noise(x, rng(2)), noise(x, rng(2)))


def test_noisy_images_stay_between_black_and_white() -> None:
    x = torch.randint(2, (50, 1, 4, 4), generator=rng(3)).float()
    noisy = noise(x, rng(4))
    assert noisy.min() == 0
    assert noisy.max() == 1
    assert (noisy != x).any()


def test_a_single_sample_has_no_deviation_and_so_no_noise() -> None:
    x = torch.randn(1, 5, generator=rng(5))
    assert torch.equal(noise(x, rng(6)), x)
