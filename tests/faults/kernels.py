"""Random calls of the kernels, in builds that watch every access to memory if `make sanitize` has made them."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import torch

from faults.asked_process import AskedProcess
from faults.outcome import Kind, Outcome, TryCase, random_of
from smoe import ConvGate, SpatialMoE2d
from smoe.ops.routed_conv import dense_routed_conv2d, routed_conv2d
from smoe.ops.top_experts import top_experts
from smoe.options import PADDING_MODES

SANITIZED = Path("build/sanitize")
INSTRUCTION_SETS = ("avx512", "avx2", "portable")
_RULES = ("rc", "probe", "straight_through", "end_to_end", "frozen")


def _convolve(chance: random.Random) -> Outcome:
    B, C, E, F = (chance.choice((1, 2, 3, 7, 16)) for _ in range(4))
    X, H, W = E + chance.choice((0, 1, 5)), chance.randrange(1, 20), chance.randrange(1, 20)
    kernel, stride = (chance.choice((1, 3, 5)), chance.choice((1, 3, 5))), chance.choice((1, 1, 2, 3))
    mode = chance.choice(PADDING_MODES)
    grid = (-(-H // stride), -(-W // stride))
    what = f"routed_conv2d B={B} C={C} X={X} E={E} F={F} {H}x{W} kernel={kernel} stride={stride} {mode}"
    input, weight = torch.randn(B, C, H, W), torch.randn(X * F, C, *kernel)
    num_samples, P = chance.choice((1, B)), grid[0] * grid[1]
    indices = torch.rand(num_samples, X, P).argsort(dim=1)[:, :E].to(chance.choice((torch.int32, torch.int64)))
    if chance.random() < 0.3:
        input = input.to(memory_format=torch.channels_last)
    results = []
    for function, dtype in ((routed_conv2d, torch.float32), (_dense, torch.float64)):
        x, w = (tensor.detach().to(dtype).requires_grad_() for tensor in (input, weight))
        try:
            output = function(x, w, indices, expert_channels=F, stride=stride, padding_mode=mode)
        except ValueError as error:
            return Outcome("refused", f"{what}: {error}")
        output.backward(torch.ones_like(output))
        results.append((output.detach(), x.grad, w.grad))
    for ours, truth in zip(*results, strict=True):
        assert ours is not None and truth is not None
        scale = float(truth.abs().max().clamp_min(1e-6))
        if not float((ours.double() - truth).abs().max()) < 1e-4 * scale:
            return Outcome("silent", f"{what}: the result is wrong")
    return Outcome("equal", what)


def _dense(input, weight, indices, *, expert_channels, stride, padding_mode):
    return dense_routed_conv2d(input, weight, indices, expert_channels, stride, padding_mode)


def _rank(chance: random.Random) -> Outcome:
    X = chance.choice((1, 2, 5, 31, 32, 33, 100, 513, 600))
    E, P, S = chance.randrange(1, X + 1), chance.randrange(0, 60), chance.randrange(0, 4)
    order = chance.choice(("score", "index", "families"))
    scores = torch.randn(S, X, P)
    if chance.random() < 0.3:
        scores = (2 * scores).round()
    bad = chance.choice((None, None, torch.nan, torch.inf, -torch.inf))
    what = f"top_experts S={S} X={X} E={E} P={P} {order} {bad}"
    if bad is not None and scores.numel():
        scores.view(-1)[torch.randint(scores.numel(), (chance.randrange(1, 5),))] = bad
    try:
        indices = top_experts(scores, E, order)
    except ValueError as error:
        return Outcome("refused" if not scores.isfinite().all() else "traceback", f"{what}: {error}")
    if not scores.isfinite().all():
        return Outcome("silent", f"{what}: scores that are not finite were ranked")
    expected = _definition(scores, E, order)
    return Outcome("equal" if torch.equal(indices.long(), expected) else "silent", what)


def _definition(scores: torch.Tensor, E: int, order: str) -> torch.Tensor:
    if order != "families":
        indices = scores.sort(dim=1, descending=True, stable=True).indices[:, :E]
        return indices.sort(dim=1).values if order == "index" else indices
    size, larger = divmod(scores.shape[1], E)
    starts = list(itertools.accumulate((size + (family < larger) for family in range(E)), initial=0))
    best = [
        start + scores[:, start:end].sort(dim=1, descending=True, stable=True).indices[:, 0]
        for start, end in itertools.pairwise(starts)
    ]
    return torch.stack(best, dim=1)


def _train_layer(chance: random.Random) -> Outcome:
    rule, X = chance.choice(_RULES), chance.randrange(2, 9)
    E, grid = chance.randrange(1, X), (chance.randrange(2, 9), chance.randrange(2, 9))
    looks = chance.random() < 0.3
    what = f"layer {rule} X={X} E={E} {grid} {'ConvGate' if looks else ''}"
    try:
        gate = ConvGate(2, X, E) if looks else None
        layer = SpatialMoE2d(2, X, E, spatial_shape=None if looks else grid, gate=gate, rule=rule)
    except ValueError as error:
        return Outcome("refused", f"{what}: {error}")
    for step in range(3):
        input = torch.randn(chance.randrange(1, 5), 2, *grid)
        is_bad = step == 2 and chance.random() < 0.5
        if is_bad:
            input[0, 0, 0, 0] = torch.nan
        try:
            layer(input).square().mean().backward()
        except ValueError as error:
            return Outcome("refused" if is_bad else "traceback", f"{what}: {error}")
    gradients = [parameter.grad for parameter in layer.gate.parameters() if parameter.grad is not None]
    is_finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    return Outcome(
        "equal" if looks or is_finite else "silent", f"{what}: gradients of the gate are finite: {is_finite}"
    )


def _misuse(chance: random.Random) -> Outcome:
    """Arguments that make no sense."""
    sizes = {name: chance.choice((0, 1, 2, 3)) for name in "BCHWEF"}
    B, C, H, W, E, F = sizes.values()
    X = chance.choice((0, 1, 4))
    device = chance.choice(("cpu", "cpu", "meta"))
    indices = torch.randint(-2, 6, (chance.choice((1, 2)), E, chance.choice((H * W, 3)))).to(device)
    what = f"misuse {sizes} X={X} indices on {device}"
    try:
        output = routed_conv2d(torch.randn(B, C, H, W), torch.randn(X * F, C, 3, 3), indices, expert_channels=F)
    except ValueError as error:
        return Outcome("refused", f"{what}: {error}")
    except Exception as error:  # which error it is, is what is asked
        return Outcome("traceback", f"{what}: {error!r}")
    return Outcome("equal", f"{what}: {tuple(output.shape)}")


_CALLS = (_convolve, _convolve, _rank, _rank, _train_layer, _misuse)


def call_kernels(number: int) -> Outcome:
    """Makes one random call."""
    chance = random_of("kernels", number)
    torch.manual_seed(number)
    torch.set_num_threads(chance.choice((1, 2, 8)))
    return chance.choice(_CALLS)(chance)


def _worker(instruction_set: str) -> AskedProcess:
    """A process with one build of the kernels."""
    # Eight threads on fewer cores, which must not wait for each other by counting.
    environment = {"SMOE_INSTRUCTION_SET": instruction_set, "OMP_NUM_THREADS": "8", "OMP_WAIT_POLICY": "passive"}
    if (SANITIZED / f"_native_{instruction_set}.so").is_file():
        found = [_library(name) for name in ("libasan.so", "libubsan.so")]
        environment |= {"LD_PRELOAD": " ".join(found), "SMOE_LIBRARY_DIR": str(SANITIZED)}
        environment |= {"ASAN_OPTIONS": "detect_leaks=0"}
    return AskedProcess(["-m", "faults.kernels"], environment)


def _library(name: str) -> str:
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _prepare(folder: Path) -> TryCase:
    del folder
    workers = [_worker(name) for name in INSTRUCTION_SETS]

    def try_case(number: int) -> Outcome:
        answer = workers[number % len(workers)].ask(number)
        return answer if isinstance(answer, Outcome) else Outcome(*json.loads(answer))

    return try_case


KINDS = (Kind("kernels", "random calls of the kernels, three builds", 5000, _prepare, is_isolated=False),)


if __name__ == "__main__":
    for line in sys.stdin:
        outcome = call_kernels(int(line))
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()
