"""Two hosts on one machine: network namespaces with names and addresses of their own, joined by a virtual cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: Name of the host, of its namespace and of its network interface.
        address: Address that the other host knows.
    """

    name: str
    address: str

    def start(self, launcher: Sequence[str], arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Starts `torchrun` with its own arguments and those of `smoe train`, as on a host of a cluster."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "smoe", "train", *arguments]
        inside = ["unshare", "--uts", "sh", "-c", f'hostname {self.name} && exec "$@"', "sh", *torchrun]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *inside],
            env={**os.environ, "GLOO_SOCKET_IFNAME": self.name, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cut(self) -> None:
        """Cuts the host off: nothing is sent or received any more, and no connection is closed."""
        run("ip", "-n", self.name, "link", "set", self.name, "down")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


def why_impossible() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    try:
        with two_hosts():
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces cannot be made: {error}"


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Makes two hosts and removes them. The names contain the process, so that several tests do not meet."""
    number = os.getpid() % 65536
    network = f"10.{64 + number // 1024 % 64}.{number % 256}"
    # An interface has a name of at most 15 characters.
    hosts = (Host(f"smoea{number}", f"{network}.1"), Host(f"smoeb{number}", f"{network}.2"))
    names = [Path("/etc/netns") / host.name for host in hosts]
    try:
        for host, folder in zip(hosts, names, strict=True):
            run("ip", "netns", "add", host.name)
            folder.mkdir(parents=True)
            known = "".join(f"{each.address} {each.name}\n" for each in hosts)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        run("ip", "link", "add", hosts[0].name, "netns", hosts[0].name, "type", "veth",
            "peer", "name", hosts[1].name, "netns", hosts[1].name)  # fmt: skip
        for host in hosts:
            run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", host.name)
            for interface in ("lo", host.name):
                run("ip", "-n", host.name, "link", "set", interface, "up")
        yield hosts
    finally:
        for host, folder in zip(hosts, names, strict=True):
            subprocess.run(["ip", "netns", "delete", host.name], check=False, capture_output=True, timeout=30)
            shutil.rmtree(folder, ignore_errors=True)
