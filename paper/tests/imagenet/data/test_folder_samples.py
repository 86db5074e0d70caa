from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from image_folders import make_picture, write_folders
from smoe_paper.imagenet.folders import (
    MEAN,
    STD,
    AugmentedFolderImages,
    evaluation_view,
    find_class_folders,
    normalised,
    training_view,
)
from smoe_paper.imagenet.recipes import Augmentation
from smoe_paper.images.data import ImageSamples

PLAIN = Augmentation(trivial_augment=False, erasing=0.0, mixup=0.0, cutmix=0.0, repetitions=1)


def test_the_centre_is_cut_out() -> None:
    image = make_picture(0, (50, 30))
    # The shorter side 20, the longer int(20 * 50 / 30) = 33; rows (20 - 16) / 2 = 2, columns round(8.5) = 8.
    expected = np.array(image.resize((33, 20), Image.Resampling.BILINEAR))[2:18, 8:24] / 255.0
    view = evaluation_view(image, 20, 16)
    assert view.shape == (3, 16, 16) and view.dtype == torch.float32
    for channel in range(3):
        theirs = (expected[..., channel] - MEAN[channel]) / STD[channel]
        torch.testing.assert_close(view[channel], torch.from_numpy(theirs).float())


def test_a_training_view_is_a_resized_crop_perhaps_flipped() -> None:
    image = make_picture(2, (40, 40))
    whole = replace(PLAIN, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0))
    resized = normalised(image.resize((16, 16), Image.Resampling.BILINEAR))
    seen = set()
    for seed in range(20):
        view = training_view(np.random.default_rng(seed), image, 16, whole)
        is_plain, is_flipped = torch.equal(view, resized), torch.equal(view, resized.flip(-1))
        assert is_plain or is_flipped
        seen.add(is_plain)
    assert seen == {True, False}
    erased = training_view(np.random.default_rng(0), image, 16, replace(whole, erasing=1.0, flip=0.0))
    assert 0.02 * 0.5 < float((erased == 0).all(dim=0).float().mean()) < 0.4
    changed = training_view(np.random.default_rng(1), image, 16, replace(whole, trivial_augment=True, flip=0.0))
    assert not torch.equal(changed, resized)


def test_views_follow_from_seed_epoch_image_and_copy(tmp_path: Path) -> None:
    images = find_class_folders(write_folders(tmp_path))
    samples = AugmentedFolderImages(images, 16, Augmentation(), seed=3)
    samples.start_epoch(2)
    first, again = (samples.__getitems__([0, 5, 12, 24]) for _ in range(2))
    assert first[0].shape == (4, 3, 16, 16) and first[1].shape == (4, 3)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    # Whatever batch it stands in, a view is the same; its copies are others.
    alone = [samples[index][0] for index in (0, 12, 24)]
    assert torch.equal(samples[12][0], alone[1])
    assert not torch.equal(alone[0], alone[1]) and not torch.equal(alone[1], alone[2])
    assert [int(samples[index][1]) for index in (0, 12, 24, 5, 17)] == [0, 0, 0, 1, 1]
    samples.start_epoch(3)
    assert not torch.equal(samples[0][0], alone[0])
    other = AugmentedFolderImages(images, 16, Augmentation(), seed=4)
    other.start_epoch(2)
    assert not torch.equal(other[0][0], alone[0])


def test_reading_processes_draw_the_same(tmp_path: Path) -> None:
    samples = AugmentedFolderImages(find_class_folders(write_folders(tmp_path)), 8, Augmentation(), seed=0)
    samples.start_epoch(5)
    batches = [[0, 13, 2], [30, 7, 9]]
    loader = DataLoader(samples, batch_sampler=batches, collate_fn=ImageSamples.collate, num_workers=2)
    for (images, shares), indices in zip(loader, batches, strict=True):
        expected = samples.__getitems__(indices)
        assert torch.equal(images, expected[0]) and torch.equal(shares, expected[1])


@pytest.mark.parametrize(
    "options",
    [{"crop_scale": (0.0, 1.0)}, {"crop_ratio": (2.0, 1.0)}, {"flip": 1.5}, {"mixup": -1.0}, {"repetitions": 0}],
)
def test_options_refuse(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Augmentation(**options)
