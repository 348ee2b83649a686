"""NCM, SLDA, RanDumb and Patch-LDA against explicit sums: exact at any moment, whatever the order."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import onepass
from helpers import rng
from onepass.errors import RunError, UsageError
from onepass.learner.augment import decode
from onepass.learner.batch import Batch, Task
from onepass.learner.problem import Problem
from onepass.methods import symmetric
from onepass.methods.analytic import WAITING, Discriminant
from onepass.methods.ncm import NCM
from onepass.methods.patch_lda import PatchLDA
from onepass.methods.patches import FLAT
from onepass.methods.randumb import RanDumb
from onepass.methods.slda import SLDA
from onepass.methods.symmetric import oas

VECTORS = Problem(5, (6,), n_tasks=2)
IMAGES = Problem(4, (3, 9, 8), n_tasks=2)
Array = NDArray[np.float64]


def some_vectors(n: int = 203, seed: int = 0) -> Batch:
    y = torch.randint(5, (n,), generator=rng(seed))
    mix = torch.randn(6, 6, generator=rng(99)) * torch.tensor([1.0, 30.0, 0.02, 5.0, 1.0, 1.0])
    x = torch.randn(n, 6, generator=rng(seed + 1)) @ mix + 3 * torch.randn(5, 6, generator=rng(98))[y] @ mix + 40
    return Batch(x, y)


def some_pictures(n: int, seed: int = 0) -> Batch:
    y = torch.randint(4, (n,), generator=rng(seed))
    x = torch.randint(256, (n, 3, 9, 8), generator=rng(seed + 1), dtype=torch.uint8) // (1 + y[:, None, None, None])
    return Batch(x.to(torch.uint8), y)


def some_stripes(n: int, seed: int = 0) -> Batch:
    """Level, upright or slanting stripes, in noise: classes 1 to 3."""
    y = torch.randint(1, 4, (n,), generator=rng(seed))
    down, right = torch.arange(9)[:, None], torch.arange(8)[None]
    places = torch.stack([down + 0 * right, right + 0 * down, down + right])[y - 1]
    dark = (places + torch.randint(4, (n, 1, 1), generator=rng(seed + 1))) // 2 % 2
    noise = torch.randint(128, (n, 3, 9, 8), generator=rng(seed + 2))
    return Batch((noise + 127 * dark[:, None]).to(torch.uint8), y)


def learned(method: str, problem: Problem, batch: Batch, batch_size: int = 10, **settings: Any) -> Any:
    learner = onepass.build(method, problem, settings)
    for rows in torch.arange(len(batch)).split(batch_size):
        learner.observe(batch[rows])
    return learner


def as_numpy(batch: Batch) -> tuple[Array, NDArray[np.int64]]:
    return batch.x.double().numpy(), batch.y.numpy()


def discriminant(x: Array, y: NDArray[np.int64], e: float | None, asked: Array) -> NDArray[np.int64]:
    """From all samples at once: means, covariance within classes, shrunk towards its diagonal, and its inverse."""
    means = np.stack([x[y == c].mean(axis=0) for c in range(y.max() + 1)])
    apart = x - means[y]
    s = apart.T @ apart / len(x)
    deviation = np.sqrt(np.diag(s))
    if e is None:
        r, d, n = s / np.outer(deviation, deviation), len(s), len(x)
        squares, trace = np.trace(r @ r), np.trace(r)
        e = min(1, ((1 - 2 / d) * squares + trace**2) / ((n + 1 - 2 / d) * (squares - trace**2 / d)))
    inverse = np.linalg.inv((1 - e) * s + e * np.diag(np.diag(s)))
    away = asked[:, None, :] - means
    found: NDArray[np.int64] = np.einsum("nci,ij,ncj->nc", away, inverse, away).argmin(axis=1)
    return found


def test_ncm_gives_the_class_whose_mean_is_nearest() -> None:
    batch, asked = some_vectors(), some_vectors(80, seed=7)
    x, y = as_numpy(batch)
    means = np.stack([x[y == c].mean(axis=0) for c in range(5)])
    expected = ((as_numpy(asked)[0][:, None, :] - means) ** 2).sum(axis=2).argmin(axis=1)
    learner = learned("ncm", VECTORS, batch)
    assert isinstance(learner, NCM)
    assert learner.predict(asked.x).tolist() == expected.tolist()
    assert len(set(expected)) > 2


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", [1, 10, 203])
def test_slda_is_the_discriminant_of_all_samples_at_once(shrinkage: float | None, size: int) -> None:
    batch, asked = some_vectors(), some_vectors(150, seed=7)
    expected = discriminant(*as_numpy(batch), shrinkage, as_numpy(asked)[0])
    learner = learned("slda", VECTORS, batch, size, shrinkage=shrinkage)
    assert isinstance(learner, SLDA)
    assert learner.predict(asked.x).tolist() == expected.tolist()


def test_the_scores_of_slda_differ_by_the_mahalanobis_distances() -> None:
    batch, asked = some_vectors(), some_vectors(20, seed=7)
    learner = learned("slda", VECTORS, batch, shrinkage=0.2)
    x, y = as_numpy(batch)
    means = np.stack([x[y == c].mean(axis=0) for c in range(5)])
    s = (x - means[y]).T @ (x - means[y]) / len(x)
    inverse = np.linalg.inv(0.8 * s + 0.2 * np.diag(np.diag(s)))
    away = as_numpy(asked)[0][:, None, :] - means
    distances = np.einsum("nci,ij,ncj->nc", away, inverse, away)
    with torch.inference_mode():
        scores = learner.scorer()(asked.x).double().numpy()
    np.testing.assert_allclose(scores - scores[:, :1], -(distances - distances[:, :1]) / 2, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("method", ["ncm", "slda"])
def test_a_samples_score_does_not_depend_on_those_beside_it(method: str) -> None:
    asked = some_vectors(150, seed=7).x
    with torch.inference_mode():
        scores = learned(method, VECTORS, some_vectors()).scorer()
        together, alone = scores(asked), torch.cat([scores(row[None]) for row in asked])
    torch.testing.assert_close(alone, together, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("method", ["ncm", "slda", "randumb"])
def test_the_order_of_the_stream_does_not_matter(method: str) -> None:
    batch, asked = some_vectors(), some_vectors(300, seed=7)
    settings = {"features": 30} if method == "randumb" else {}
    straight = learned(method, VECTORS, batch, **settings)
    order = torch.cat([torch.arange(10), 10 + torch.randperm(len(batch) - 10, generator=rng(5))])
    mixed = learned(method, VECTORS, batch[order], 17, **settings)
    sorted_by_class = learned(method, VECTORS, batch[torch.cat([torch.arange(10), 10 + batch.y[10:].argsort()])])
    for other in (mixed, sorted_by_class) if not settings else (mixed,):
        assert (other.predict(asked.x) == straight.predict(asked.x)).float().mean() > 0.99
        torch.testing.assert_close(other.counts, straight.counts)


def test_samples_that_are_taken_back_leave_no_trace() -> None:
    batch, more, asked = some_vectors(), some_vectors(31, seed=3), some_vectors(100, seed=7)
    plain, both = learned("slda", VECTORS, batch), learned("slda", VECTORS, batch)
    for rows in torch.arange(31).split(10):
        both.observe(more[rows])
    both.count(both.features(more.x), more.y, times=-1)
    with torch.inference_mode():
        torch.testing.assert_close(both.scorer()(asked.x), plain.scorer()(asked.x), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(both.counts, plain.counts)


@pytest.mark.parametrize("method", ["ncm", "slda"])
def test_of_what_was_taken_back_no_row_is_kept(method: str) -> None:
    """It was where its class is measured from, and it waited to be added to the second moment."""
    batch = some_vectors(60)
    c = batch.y[:1]
    same = (batch.y == c).nonzero().flatten()
    first, later, others = batch[same[:1]], batch[same[1:]], batch[batch.y != c]
    both, never = learned(method, VECTORS, others), learned(method, VECTORS, others)
    for part in (first, later):
        both.observe(part)
    never.observe(later)
    assert torch.equal(both.starts[c], first.x)
    both.take_back(first)
    rows = torch.cat([value for name, value in both.state_dict().items() if name in ("starts", "apart", "waiting")])
    assert (torch.cat([rows, rows + both.starts[c]]) - first.x).norm(dim=1).min() > 1, "as it came, or from its start"
    asked = some_vectors(100, seed=7).x
    assert both.predict(asked).tolist() == never.predict(asked).tolist()


def test_rows_wait_until_there_are_enough_and_count_meanwhile() -> None:
    batch = some_vectors(WAITING + 9)
    learner = learned("slda", VECTORS, batch)
    assert isinstance(learner, Discriminant)
    assert int(learner.n_waiting) == 9
    x, y = as_numpy(batch)
    means = np.stack([x[y == c].mean(axis=0) for c in range(5)])
    s = (x - means[y]).T @ (x - means[y]) / len(x)
    np.testing.assert_allclose(learner.covariance().numpy(), s, rtol=1e-3, atol=1e-2)


def test_shrinkage_is_estimated_as_chen_et_al_do() -> None:
    """Equation 23 in its recursive form: iterating equation 17 from any start ends there."""
    x = torch.randn(40, 8, generator=rng(2)) @ torch.randn(8, 8, generator=rng(3))
    s, n, d = (x.T @ x / 40).double(), 40, 8
    trace, squares = float(s.trace()), float((s @ s).trace())
    e = 0.5
    for _ in range(10_000):
        mixed = (1 - e) * squares + e * trace**2 / d  # tr(estimate S)
        whole = trace**2  # of the estimate, squared
        e = ((1 - 2 / d) * mixed + whole) / ((n + 1 - 2 / d) * mixed + (1 - n / d) * whole)
    assert oas(s, n) == pytest.approx(min(1.0, e), rel=1e-6)
    assert oas(torch.eye(5), 100) == 1
    assert oas(s, 10**9) < 1e-6


def test_a_class_that_was_announced_and_never_came_is_not_predicted() -> None:
    learner = onepass.build("slda", VECTORS)
    learner.begin_task(Task(0, (0, 1, 2, 3, 4)))
    batch = some_vectors()
    learner.observe(batch[batch.y < 3])
    assert set(learner.predict(some_vectors(200, seed=8).x).tolist()) <= {0, 1, 2}


def test_classes_far_from_the_first_are_told_apart_as_in_double_precision() -> None:
    """Sums around the first class's middle: squares of 100,000 leave single precision nothing of a difference of 3."""
    near = torch.randn(600, 6, generator=rng(1)) * torch.tensor([30.0, 30.0, 1.0, 1.0, 1.0, 1.0])
    y = torch.arange(600) // 200
    x = near + torch.tensor([0.0, 100_000.0, 100_003.0])[y, None]
    batch, asked = Batch(x[::2], y[::2]), x[1::2]
    expected = discriminant(*as_numpy(batch), 0.1, asked.double().numpy())
    learner = learned("slda", VECTORS, batch, shrinkage=0.1)
    assert learner.predict(asked).tolist() == expected.tolist()
    assert (expected == y[1::2].numpy()).mean() > 0.9


def test_features_too_large_to_square_are_an_error_not_an_endless_search() -> None:
    learner = learned("slda", IMAGES, some_pictures(40))
    learner.moment.fill_(torch.nan)
    with pytest.raises(RunError, match="Scale what comes in"):
        learner.predict(some_pictures(3).x)


def test_more_samples_are_counted_than_single_precision_can_hold() -> None:
    learner = learned("ncm", IMAGES, some_pictures(40))
    learner.counts.fill_(2**24)
    learner.observe(some_pictures(10))
    assert learner.counts.sum() == 4 * 2**24 + 10


def test_one_sample_of_each_class_is_enough_to_predict() -> None:
    x = torch.tensor([[0.0] * 6, [1.0] * 6])
    for method in ("ncm", "slda"):
        learner = onepass.build(method, VECTORS)
        learner.observe(Batch(x, torch.tensor([0, 3])))
        assert learner.predict(x).tolist() == [0, 3], method


def test_a_value_that_never_changes_has_no_say() -> None:
    batch, asked = some_vectors(), some_vectors(100, seed=7)
    fixed, other = batch.x.clone(), asked.x.clone()
    fixed[:, 2], other[:, 2] = 7.0, 7.0
    x, y = fixed.double().numpy(), batch.y.numpy()
    kept = [0, 1, 3, 4, 5]
    expected = discriminant(x[:, kept], y, 0.1, other.double().numpy()[:, kept])
    learner = learned("slda", VECTORS, Batch(fixed, batch.y), shrinkage=0.1)
    assert learner.predict(other).tolist() == expected.tolist()


def test_randumbs_features_are_those_of_an_rbf_kernel() -> None:
    """Fifteen thousand of them, drawn in fifteen parts: their second moment at once would have 900 MB."""
    batch = some_vectors(12)
    found = torch.zeros(12, 12)
    for seed in range(15):
        learner = onepass.build("randumb", Problem(5, (6,)), {"features": 1000}, seed=seed)
        assert isinstance(learner, RanDumb)
        learner.observe(batch)
        z = learner.features(batch.x)
        found += z @ z.T / 15
    g = 1 / (6 * float(batch.x.var(correction=0)))
    kernel = (-g * torch.cdist(batch.x, batch.x) ** 2).exp()
    torch.testing.assert_close(found, kernel, rtol=0, atol=0.04)


def test_randumb_counts_each_image_and_its_mirror_image() -> None:
    batch = some_pictures(20)
    flipped = learned("randumb", IMAGES, batch, features=25)
    plain = learned("randumb", IMAGES, batch, features=25, flip=False)
    assert flipped.counts.sum() == 2 * plain.counts.sum() == 40
    both = torch.cat([decode(batch.x), decode(batch.x).flip(3)])
    expected = (flipped.features(both) - flipped.origin).sum(dim=0)
    torch.testing.assert_close(flipped.sums.sum(dim=0), expected, rtol=1e-4, atol=1e-4)


def explicit_maps(learner: PatchLDA, image: Array) -> Array:
    """Pixel by pixel: every patch without contrast, its product with every filter, both signs."""
    filters, offsets = learner.patches.filters.double().numpy(), learner.patches.offsets.double().numpy()
    size = learner.patches.size
    height, width = image.shape[1] - size + 1, image.shape[2] - size + 1
    maps = np.zeros((2, filters.shape[1], height, width))
    for i in range(height):
        for j in range(width):
            patch = image[:, i : i + size, j : j + size]
            p = (patch - patch.mean()) / math.sqrt(patch.var() + FLAT)
            r = p.flatten() @ filters + offsets
            t = learner.config.threshold
            maps[0, :, i, j], maps[1, :, i, j] = np.maximum(0, r - t), np.maximum(0, -r - t)
    return maps


def explicit_parts(learner: PatchLDA, maps: Array) -> Array:
    """The averages of maps around the middle of each part: (..., parts)"""
    height, width = maps.shape[-2:]
    pool, reach = learner.config.pool, learner.config.reach
    parts = []
    for a in range(pool):
        for b in range(pool):
            weights = np.zeros((height, width))
            if reach:
                for i in range(height):
                    for j in range(width):
                        down, right = (
                            abs((i + 0.5) / height - (a + 0.5) / pool),
                            abs((j + 0.5) / width - (b + 0.5) / pool),
                        )
                        weights[i, j] = max(0, 1 - down / reach) * max(0, 1 - right / reach)
            else:
                rows = slice(a * height // pool, -(-(a + 1) * height // pool))
                weights[rows, b * width // pool : -(-(b + 1) * width // pool)] = 1
            parts.append((maps * weights).sum(axis=(-2, -1)) / weights.sum())
    found: Array = np.stack(parts, axis=-1)
    return found


def explicit_features(learner: PatchLDA, image: Array) -> Array:
    """Sign, part, filter."""
    found: Array = explicit_parts(learner, explicit_maps(learner, image)).transpose(0, 2, 1).flatten()
    return found


def local_responses(maps: Array) -> Array:
    """Roots of averages over 3x3 places, every other one: (responses, places down, places right)"""
    both = maps.reshape(-1, *maps.shape[2:])
    down, right = ((side - 3) // 2 + 1 for side in both.shape[1:])
    found: Array = np.zeros((len(both), down, right))
    for i in range(down):
        for j in range(right):
            found[:, i, j] = np.sqrt(both[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].mean(axis=(1, 2)))
    return found


def explicit_pairs(learner: PatchLDA, image: Array) -> Array:
    """Part, and every two components."""
    assert learner.patches.pairs is not None
    axes, middle = learner.patches.pairs.axes.double().numpy(), learner.patches.pairs.middle.double().numpy()
    u = local_responses(explicit_maps(learner, image))
    v = np.einsum("cm,cij->mij", axes, u - middle[:, None, None])
    n = len(v)
    products = np.stack([v[a] * v[b] for a in range(n) for b in range(a, n)])
    found: Array = explicit_parts(learner, products).T.flatten()
    return found


@pytest.mark.parametrize(
    ("mirror", "root", "reach"), [(True, True, 0.65), (False, True, 0.4), (True, False, 1.0), (True, True, 0.0)]
)
def test_patch_features_are_pooled_responses_to_patches_without_contrast(
    mirror: bool, root: bool, reach: float
) -> None:
    settings: dict[str, Any] = {"filters": 7, "size": 4, "first": 20, "mirror": mirror, "root": root, "reach": reach}
    learner = learned("patch-lda", IMAGES, some_pictures(30), **settings)
    assert isinstance(learner, PatchLDA)
    assert learner.ready
    images = decode(some_pictures(3, seed=9).x)
    found = learner.features(images).double().numpy()
    expected = np.stack([explicit_features(learner, image) for image in images.double().numpy()])
    if mirror:
        turned = np.stack([explicit_features(learner, image) for image in images.flip(3).double().numpy()])
        expected = (expected + turned) / 2
    np.testing.assert_allclose(found, np.sqrt(expected) if root else expected, rtol=1e-3, atol=2e-3 if root else 1e-5)


def test_products_of_any_two_components_come_after_the_averages() -> None:
    settings: dict[str, Any] = {"filters": 7, "size": 4, "first": 20, "mirror": True, "pairs": 5}
    learner = learned("patch-lda", IMAGES, some_pictures(30), **settings)
    assert isinstance(learner, PatchLDA)
    images = decode(some_pictures(3, seed=9).x)
    found = learner.features(images).double().numpy()
    assert found.shape == (3, learner.width) == (3, 4 * (2 * 7 + 15))
    turned = images.flip(3).double().numpy()
    expected = np.stack(
        [
            (explicit_pairs(learner, image) + explicit_pairs(learner, mirrored)) / 2
            for image, mirrored in zip(images.double().numpy(), turned, strict=True)
        ]
    )
    np.testing.assert_allclose(found[:, 4 * 2 * 7 :], expected, rtol=2e-3, atol=2e-3)
    without = learned("patch-lda", IMAGES, some_pictures(30), **{**settings, "pairs": 0})
    np.testing.assert_array_equal(found[:, : 4 * 2 * 7], without.features(images).numpy())


def test_components_are_the_main_ones_of_the_first_images_responses() -> None:
    batch = some_pictures(20)
    learner = learned("patch-lda", IMAGES, batch, filters=7, size=4, first=20, pairs=5)
    assert isinstance(learner, PatchLDA)
    assert learner.patches.pairs is not None
    images = decode(batch.x).double().numpy()
    u = np.concatenate([local_responses(explicit_maps(learner, one)).reshape(14, -1).T for one in images])
    values = np.linalg.eigvalsh(np.cov(u.T, bias=True))[::-1][:5]
    axes, middle = learner.patches.pairs.axes.double().numpy(), learner.patches.pairs.middle.double().numpy()
    np.testing.assert_allclose(middle, u.mean(axis=0), rtol=1e-3, atol=1e-4)
    v = (u - u.mean(axis=0)) @ axes
    np.testing.assert_allclose(v.T @ v / len(v), np.diag(values / (values + 1e-3)), atol=2e-3)


@pytest.mark.parametrize("seen", [10, 50])  # before there are filters, and after
def test_a_copy_with_pairs_goes_on_with_the_same_bits(seen: int) -> None:
    settings: dict[str, Any] = {"filters": 7, "size": 4, "first": 20, "pairs": 5}
    batch, asked = some_pictures(seen), some_pictures(40, seed=9)
    learner = learned("patch-lda", IMAGES, batch, **settings)
    copied = onepass.build("patch-lda", IMAGES, settings, seed=1)
    copied.load_state_dict(learner.state_dict())
    more = some_pictures(30, seed=5)
    for one in (learner, copied):
        one.observe(more)
    with torch.inference_mode():
        images = decode(asked.x)
        assert torch.equal(learner.scorer()(images), copied.scorer()(images))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 6), (3, 2, 9)])
def test_small_images_have_pairs_of_components_too(shape: tuple[int, int, int]) -> None:
    x = torch.randint(256, (40, *shape), generator=rng(0), dtype=torch.uint8)
    learner = learned("patch-lda", Problem(2, shape), Batch(x, torch.arange(40) % 2), filters=3, first=20, pairs=50)
    assert learner.features(decode(x)).shape == (40, 4 * (2 * 3 + 21))
    assert learner.features(decode(x)).isfinite().all()


@pytest.mark.parametrize("stripe", [2, 5, 512])
def test_half_of_a_symmetric_sum_is_all_of_it(stripe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "STRIPE", stripe)
    batch, gone = some_vectors(203), some_vectors(7, seed=5)
    learner = learned("slda", VECTORS, batch)
    learner.observe(gone)
    learner.take_back(gone)
    x, y = as_numpy(batch)
    apart = x - np.stack([x[y == c].mean(axis=0) for c in range(5)])[y]
    found = learner.covariance().double().numpy()
    np.testing.assert_allclose(found, apart.T @ apart / 203, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(found, found.T, rtol=1e-5)


def test_a_part_without_a_place_in_its_reach_takes_the_nearest() -> None:
    learner = learned("patch-lda", IMAGES, some_pictures(30), filters=7, size=4, first=20, reach=1e-3)
    assert isinstance(learner, PatchLDA)
    torch.testing.assert_close(learner.patches.cells.sum(dim=1), torch.ones(4))


def test_responses_by_a_convolution_for_export_are_the_same() -> None:
    learner = learned("patch-lda", IMAGES, some_pictures(30), filters=7, size=4, first=20)
    images = decode(some_pictures(5, seed=9).x)
    found, expected = learner.patches._convolved(images), learner.patches._responses(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_filters_are_whitened_patches_of_the_first_images() -> None:
    batch = some_pictures(20)
    learner = onepass.build("patch-lda", IMAGES, {"filters": 7, "size": 4, "first": 20, "mirror": True})
    assert isinstance(learner, PatchLDA)
    twin = copy.deepcopy(learner)
    learner.observe(batch)
    some = []
    for image in decode(batch.x).split(1):  # 6 x 5 places each: fewer than the 3,000 that are asked for
        rows = twin.patches.rows(image)
        some.append(rows[torch.randint(30, (30,), generator=twin.rng)].double().numpy())
    patches = np.concatenate(some)
    turned = patches.reshape(-1, 3, 4, 4)[:, :, :, ::-1].reshape(-1, 48)
    patches = np.concatenate([patches, turned])
    np.testing.assert_allclose(patches.mean(axis=1), 0, atol=1e-6)
    middle = patches.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(patches.T, bias=True))
    whitening = vectors @ np.diag((values + 0.1) ** -0.5) @ vectors.T
    drawn = torch.randint(len(patches), (7,), generator=twin.rng).numpy()
    filters = (patches[drawn] - middle) @ whitening
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)
    folded = filters @ whitening  # f W p = (f W) p
    np.testing.assert_allclose(learner.patches.offsets.numpy(), -(folded @ middle), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(learner.patches.filters.numpy(), folded.T, rtol=1e-3, atol=1e-4)


def test_no_filter_is_made_of_a_patch_of_one_colour() -> None:
    x = torch.zeros(20, 3, 9, 8, dtype=torch.uint8)
    x[:, :, 0, 0] = torch.randint(1, 256, (20, 3), generator=rng(0), dtype=torch.uint8)  # in one patch of 20
    canvas = learned("patch-lda", IMAGES, Batch(x, torch.zeros(20).long()), filters=30, size=5, first=20)
    assert len(canvas.patches.filters.unique(dim=1).T) > 15  # 30 drawn of 20 patches
    assert (canvas.patches(decode(x)).amax(dim=0) > 0).any()


def test_empty_first_images_leave_filters_that_see_what_comes_later() -> None:
    empty = Batch(torch.zeros(20, 3, 9, 8, dtype=torch.uint8), torch.zeros(20).long())
    learner = learned("patch-lda", IMAGES, empty, filters=30, size=5, first=20)
    learner.observe(some_stripes(200))
    asked = some_stripes(100, seed=9)
    assert (learner.predict(asked.x) == asked.y).float().mean() > 0.9


def test_all_of_the_first_images_are_counted_and_let_go() -> None:
    learner = learned("patch-lda", IMAGES, some_pictures(27), filters=7, size=4, first=20)
    assert learner.counts.sum() == 27
    assert len(learner.kept) == 0


def test_before_there_are_enough_images_predictions_come_from_those_that_there_are() -> None:
    batch, asked = some_pictures(12), some_pictures(40, seed=9)
    early = learned("patch-lda", IMAGES, batch, filters=7, size=4, first=100)
    just = learned("patch-lda", IMAGES, batch, filters=7, size=4, first=12)
    assert not early.ready
    assert just.ready
    assert early.predict(asked.x).tolist() == just.predict(asked.x).tolist()
    assert not early.ready


def test_responses_are_shrunk_eight_times_as_much_as_oas_says_but_never_all() -> None:
    batch = some_pictures(60)
    learner = learned("patch-lda", IMAGES, batch, filters=2, size=4, first=20)
    s = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    assert learner.estimated_shrinkage(s, 10_000.0) == pytest.approx(8 * oas(s, 10_000.0))
    assert learner.estimated_shrinkage(s, 3.0) == 0.8
    paired = learned("patch-lda", IMAGES, batch, filters=2, size=4, first=20, pairs=2)
    assert paired.estimated_shrinkage(s, 10_000.0) == pytest.approx(16 * oas(s, 10_000.0))
    expected = copy.deepcopy(learner)
    correlations = learner.covariance()
    scale = correlations.diagonal().sqrt()
    e = learner.estimated_shrinkage(correlations / scale / scale[:, None], 60.0)
    fixed = learned("patch-lda", IMAGES, batch, filters=2, size=4, first=20, shrinkage=e)
    with torch.inference_mode():
        images = decode(batch.x)
        torch.testing.assert_close(fixed.scorer()(images), expected.scorer()(images), rtol=1e-3, atol=1e-3)


def test_an_image_and_its_mirror_image_are_the_same_where_the_augmentation_says_so() -> None:
    batch, asked = some_pictures(40), some_pictures(40, seed=9)
    photos, signs = Problem(4, (3, 9, 8), "colour"), Problem(4, (3, 9, 8), "digits")
    for problem, same in ((photos, True), (signs, False)):
        learner = learned("patch-lda", problem, batch, filters=7, size=4, first=20)
        z, turned = learner.features(decode(asked.x)), learner.features(decode(asked.x.flip(3)))
        assert torch.allclose(z, turned, atol=1e-3) == same


def test_averaged_features_cost_half_and_lose_nothing() -> None:
    """Filters and mirrored filters, every image counted twice, once mirrored, and both scored: the same discriminant.

    Responses to mirrored filters are those of the mirrored image. What tells an image from its mirror image is then
    within classes only and apart from what tells classes apart.
    """
    batch, asked = some_pictures(90), decode(some_pictures(40, seed=9).x)
    settings: dict[str, Any] = {"filters": 3, "size": 4, "first": 20, "root": False, "shrinkage": 0.0}
    learner = learned("patch-lda", IMAGES, batch, mirror=True, **settings)

    def rows(images: Tensor) -> Array:
        found: Array = torch.cat([learner.patches(images), learner.patches(images.flip(3))], dim=1).double().numpy()
        return found

    images, y = decode(batch.x), batch.y.repeat(2).numpy()
    x = np.concatenate([rows(images), rows(images.flip(3))])
    means = np.stack([x[y == c].mean(axis=0) for c in range(4)])
    s = (x - means[y]).T @ (x - means[y]) / len(x)
    inverse = np.linalg.inv(s)
    both = (rows(asked) + rows(asked.flip(3))) / 2
    scores = both @ inverse @ means.T - np.einsum("ci,ij,cj->c", means, inverse, means) / 2
    with torch.inference_mode():
        found = learner.scorer()(asked).double().numpy()
    np.testing.assert_allclose(found - found[:, :1], scores - scores[:, :1], rtol=0.01, atol=0.05)


def test_features_of_a_network_in_front_are_what_is_counted() -> None:
    batch = some_pictures(30)

    def body(shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(216, 5), nn.ReLU())

    learner = onepass.build("ncm", IMAGES, net=body)
    learner.observe(batch)
    assert learner.encoder is not None
    z: Tensor = learner.encoder(decode(batch.x))
    expected = torch.stack([z[batch.y == c].mean(dim=0) for c in range(4)])
    assert isinstance(learner, NCM)
    torch.testing.assert_close(learner.means + learner.origin, expected)
    assert not any(weight.requires_grad for weight in learner.encoder.parameters())


def test_patches_need_images() -> None:
    with pytest.raises(UsageError, match=r"patch-lda compares images with patches: expected images, got vectors"):
        onepass.build("patch-lda", VECTORS)
