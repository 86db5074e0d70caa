from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = {"model": {"weight": torch.randn(3, 4)}, "epoch": 7, "best": None, "history": [{"epoch": 1, "loss": 0.5}]}
    save_checkpoint(tmp_path / "checkpoints" / "last.pt", state)
    loaded = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert torch.equal(loaded["model"].pop("weight"), state["model"].pop("weight"))  # type: ignore[union-attr]
    assert loaded == state
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["last.pt"]


def refused(file: Path, content: bytes) -> str:
    """The message about a file with this content; every refusal is a CheckpointError of one line."""
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(file)
    message = str(caught.value)
    assert "\n" not in message and file.name in message
    return message


def with_checksum(content: bytes) -> bytes:
    """What a stranger can write, who knows the format."""
    return content + b"smoe-sha256:" + hashlib.sha256(content).digest()


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    save_checkpoint(file, {"weight": torch.arange(3.0), "epoch": 1})
    content = file.read_bytes()
    # All bits of every third byte, and of the last 200: the end of the archive and the checksum.
    positions = [*range(0, len(content) - 200, 3), *range(len(content) - 200, len(content))]
    flipped = bytearray(content)
    for position in positions:
        bit = 1 << (position % 8)
        flipped[position] ^= bit
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="is damaged"):
            load_checkpoint(file)
        flipped[position] ^= bit
    file.write_bytes(flipped)
    assert load_checkpoint(file)["epoch"] == 1


def test_torch_reads_a_checkpoint_too(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last.pt", {"weight": torch.arange(3.0)})
    assert torch.load(tmp_path / "last.pt")["weight"].tolist() == [0.0, 1.0, 2.0]


class Code:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("executed",)


def test_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer = io.BytesIO()
    torch.save({"model": Code()}, buffer)
    assert "objects other than tensors" in refused(tmp_path / "last.pt", with_checksum(buffer.getvalue()))
    assert capsys.readouterr().out == ""


def test_a_compressed_archive_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    plain, bomb = io.BytesIO(), io.BytesIO()
    torch.save({"weight": torch.zeros(1_000_000)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert len(bomb.getvalue()) < 10_000
    assert "is not stored plainly" in refused(tmp_path / "last.pt", with_checksum(bomb.getvalue()))


def test_an_entry_that_torch_takes_for_a_folder_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"weight": torch.arange(100.0)}, buffer)
    content = bytearray(buffer.getvalue())
    # Byte 38 of a tensor's entry in the central directory: torch would return memory as it finds it.
    entry = content.rfind(b"PK\x01\x02", 0, content.rfind(b"data/0"))
    content[entry + 38] |= 0x10
    assert "is not stored plainly" in refused(tmp_path / "last.pt", with_checksum(bytes(content)))


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    assert "must hold a dictionary, but it holds a list" in refused(
        tmp_path / "last.pt", with_checksum(buffer.getvalue())
    )
    assert "does not end in a checksum" in refused(tmp_path / "last.pt", buffer.getvalue())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files, as a full disk sets one; in a process of its own."""
    save_checkpoint(tmp_path / "last.pt", {"weight": torch.ones(10)})
    program = (
        "import resource, signal, sys, torch; from pathlib import Path\n"
        "from smoe.training.checkpoints import CheckpointError, save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    save_checkpoint(Path(sys.argv[1]), {'weight': torch.zeros(1_000_000)})\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "last.pt")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "could not be written: File too large; the file before it is intact" in output
    assert load_checkpoint(tmp_path / "last.pt")["weight"].tolist() == [1.0] * 10
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_a_folder_that_has_vanished_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be written: No such file or directory; there is no such file"):
        save_checkpoint(tmp_path / "gone" / "last.pt", {}, make_folder=False)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_a_truncated_file_is_noticed(tmp_path: Path, keep: float) -> None:
    file = tmp_path / "last.pt"
    save_checkpoint(file, {"weight": torch.arange(1000.0)})
    content = file.read_bytes()
    file.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*last\.pt"):
        load_checkpoint(tmp_path / "last.pt")


def test_a_kill_while_saving_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    # 40 MB take long enough to write that most kills fall into a write.
    program = (
        "import sys, torch; from pathlib import Path; from smoe.training.checkpoints import save_checkpoint\n"
        "weight, number = torch.zeros(10_000_000), 0\n"
        "while True:\n"
        "    number += 1; weight.fill_(number); save_checkpoint(Path(sys.argv[1]), {'n': number, 'weight': weight})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(file)])
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    loaded = load_checkpoint(file)
    assert bool((loaded["weight"] == loaded["n"]).all())


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        # {"a": bytearray(5_000_000_000)}: torch.load allows it.
        (
            b"\x80\x02}X\x01\x00\x00\x00acbuiltins\nbytearray\n\x8a\x05\x00\xf2\x05\x2a\x01\x85Rs.",
            r"it holds objects other than tensors and plain values \('builtins bytearray'\)",
        ),
        (b"\x80\x02](" + b"}" * 20_000_000 + b"e.", "its list of entries is too long: it claims 2.0 GB of memory"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "it holds objects other than tensors and plain values"),
    ],
    ids=["bytearray", "dictionaries", "names on the stack"],
)
def test_a_list_of_entries_takes_no_more_memory_than_the_file_allows(
    tmp_path: Path, listing: bytes, message: str
) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", listing)
        archive.writestr("archive/version", "3\n")
    path = tmp_path / "hostile.pt"
    path.write_bytes(with_checksum(content.getvalue()))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)
