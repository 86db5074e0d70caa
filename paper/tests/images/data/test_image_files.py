"""Image sets: found where tools leave them, compared with the published ones, scaled and split."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from image_files import IDX_FILES, cifar10_bytes, draw_images, idx_bytes, write_cifar10, write_idx_set
from smoe.errors import DataError
from smoe_paper.images import data as image_files
from smoe_paper.images.data import ImageSamples, parse_cifar10, parse_idx, read_content, read_images, split_training
from smoe_paper.images.recipes import IMAGE_SETS


@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [False, True])
def test_finds_and_reads_a_set_of_ones_own(tmp_path, folder, compressed):
    write_idx_set(tmp_path / folder, 20, 10, compressed=compressed)
    said = []
    found = read_images("mnist", tmp_path, "test", verify=False, notify=said.append)
    images, labels = draw_images(10, (28, 28), seed=4)
    np.testing.assert_array_equal(found.images, images[:, None])
    np.testing.assert_array_equal(found.labels, labels)
    assert len(said) == 2
    assert "is not the published t10k-images-idx3-ubyte of MNIST" in said[0]


def test_refuses_what_is_not_published(tmp_path):
    write_idx_set(tmp_path, 20, 10)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is not the published .* give --data.verify False"):
        read_images("mnist", tmp_path, "train")


def test_knows_the_files_of_another_set(tmp_path, monkeypatch):
    write_idx_set(tmp_path, 20, 10)
    name = IDX_FILES["train"][0]
    of_fashion = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}
    monkeypatch.setitem(image_files._CHECKSUMS, "Fashion-MNIST", of_fashion)
    # Not even if other files are allowed: they would be called MNIST.
    with pytest.raises(DataError, match="is the file of Fashion-MNIST, not of MNIST"):
        read_images("mnist", tmp_path, "train", verify=False)
    # Published, it needs no word.
    with pytest.raises(DataError, match=r"20 images of \(1, 28, 28\), but Fashion-MNIST has 60,000"):
        read_images("fashion-mnist", tmp_path, "train")


def test_says_where_it_looked(tmp_path):
    with pytest.raises(DataError, match=r"no train-images-idx3-ubyte \(or .gz\) in .*MNIST/raw; `smoe data fetch"):
        read_images("mnist", tmp_path, "train")
    with pytest.raises(DataError, match=r"bring the binary version of CIFAR-10"):
        read_images("cifar10", tmp_path, "train")
    with pytest.raises(DataError, match=r"did you mean 'cifar10'\?"):
        read_images("cifar100", tmp_path, "train")


def test_says_what_is_missing(tmp_path):
    write_idx_set(tmp_path, 20, 10)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="does not hold train-labels-idx1-ubyte of MNIST"):
        read_images("mnist", tmp_path, "train")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((3, 28, 28)), np.zeros(2), "has 3 images, but .* 2 labels"),
        (np.zeros((3, 28, 28)), np.array([0, 10, 1]), "the label of image 1 is 10, but labels are 0 to 9"),
    ],
)
def test_images_and_labels_fit(tmp_path, images, labels, message):
    for name, values in zip(IDX_FILES["train"], (images, labels), strict=True):
        (tmp_path / name).write_bytes(idx_bytes(values))
    with pytest.raises(DataError, match=message):
        read_images("mnist", tmp_path, "train", verify=False, notify=lambda _: None)


def test_cifar10_by_hand(tmp_path):
    # The label, then all of red, all of green, all of blue, row by row.
    record = bytes([7]) + bytes([1] * 1024) + bytes([2] * 1024) + bytes([3, 4] * 512)
    (tmp_path / "test_batch.bin").write_bytes(record)
    images, labels = parse_cifar10(read_content(tmp_path / "test_batch.bin"), tmp_path)
    assert labels.tolist() == [7]
    assert images[0, :, 5, 2].tolist() == [1, 2, 3]
    assert images[0, 2, 31, 31] == 4


def test_cifar10_of_ones_own(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-bin", 10)
    said = []
    found = read_images("cifar10", tmp_path, "train", verify=False, notify=said.append)
    assert found.images.shape == (50, 3, 32, 32)
    np.testing.assert_array_equal(found.images[10:20], draw_images(10, (3, 32, 32), seed=1)[0])
    assert "are 5,000 of each class, but there are 5, 5" in said[0]
    with pytest.raises(DataError, match="5,000 of each class"):
        read_images("cifar10", tmp_path, "train")


def test_cifar10_from_its_archive(tmp_path, monkeypatch):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    content = cifar10_bytes(*draw_images(10, (3, 32, 32)))
    with tarfile.open(archive, "w:gz") as file:
        info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError, match=r"is not the published cifar-10-binary.tar.gz of CIFAR-10"):
        read_images("cifar10", tmp_path, "test")
    with pytest.raises(DataError, match=r"does not hold data_batch_1.bin"):
        read_images("cifar10", tmp_path, "train", verify=False, notify=lambda _: None)
    digest = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(image_files._CHECKSUMS, "CIFAR-10", {archive.name: digest})
    monkeypatch.setitem(
        image_files.IMAGE_SETS, "cifar10", replace(IMAGE_SETS["cifar10"], num_images={"train": 50, "test": 10})
    )
    assert read_images("cifar10", tmp_path, "test").labels.tolist() == list(range(10))


def test_pipes_and_devices_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.gz")
    for path in (tmp_path / "pipe.gz", Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match="is not a regular file, but a pipe, device or folder"):
            parse_idx(read_content(path), path, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0" * 3072, "has 3,072 bytes, which are not whole records of 3073"),
        (b"", "has 0 bytes"),
        (b"\0" * 3073 + b"\x0b" + b"\0" * 3072, "the label of record 1 is 11, but labels are 0 to 9"),
    ],
)
def test_refuses_other_records(tmp_path, content, message):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        parse_cifar10(read_content(path), path)


def test_scaling():
    images = np.array([0, 255, 51], np.uint8).reshape(3, 1, 1, 1)
    labels = np.array([4, 0, 9], np.uint8)
    samples = ImageSamples(images, labels, (-1.0, 1.0))
    batch, classes = samples.__getitems__([1, 0, 2])
    # 51 / 255 is a fifth of the way from -1 to 1.
    torch.testing.assert_close(batch.flatten(), torch.tensor([1.0, -1.0, -0.6]))
    assert classes.tolist() == [0, 4, 9]
    assert classes.dtype == torch.int64
    image, label = samples[1]
    assert image.shape == (1, 1, 1)
    assert int(label) == 0


def test_validation_is_the_first_images():
    images, labels = draw_images(50, (28, 28))
    split = split_training(image_files.LabelledImages(images[:, None], labels), IMAGE_SETS["mnist"])
    # 8 % of 50
    assert len(split["validation"].labels) == 4
    np.testing.assert_array_equal(split["validation"].labels, labels[:4])
    np.testing.assert_array_equal(split["train"].images[:, 0], images[4:])
