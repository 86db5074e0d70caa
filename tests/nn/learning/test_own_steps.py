"""The gate's own step: what a loop does with parameters does not reach it, and it does not disturb the loop."""

from __future__ import annotations

import copy
import gc
import io
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smoe
from smoe.nn import _own_steps
from smoe.nn._own_steps import AdamSteps, _modules

GRID = (6, 8)


def make_net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    first = smoe.SpatialMoE2d(2, 4, spatial_shape=GRID)
    assert isinstance(first.gate, smoe.FactorisedGate)
    gate = smoe.FactorisedGate(6, 3, embedding=first.gate.embedding)
    net = nn.Sequential(first, nn.Tanh(), smoe.SpatialMoE2d(4, 3, spatial_shape=GRID, gate=gate))
    with torch.no_grad():  # candidates that differ, so that gates learn from the first step on
        for layer in net:
            if isinstance(layer, smoe.SpatialMoE2d):
                layer.weight.add_(0.1 * torch.randn_like(layer.weight))
    return net


def data(seed: int = 0, batch: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 2, *GRID, generator=generator), torch.randn(batch, 3, *GRID, generator=generator)


def loss_of(net: nn.Module, seed: int = 0) -> torch.Tensor:
    x, y = data(seed)
    return (net(x) - y).square().mean()


def numbers(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in net.named_buffers() if "gate" in name}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], **tolerance: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name, **tolerance)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, first: int = 0) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()


def test_numbers_of_the_gate_are_buffers_that_move_by_a_hundredth_in_each_step() -> None:
    net = make_net()
    assert {name.rpartition(".")[2] for name, _ in net.named_parameters()} == {"weight", "bias", "scale", "offset"}
    before = numbers(net)
    train(net, torch.optim.SGD(net.parameters(), 1e-9), steps=1)
    moved = (numbers(net)["0.gate.embedding.values"] - before["0.gate.embedding.values"]).abs()
    # Less only by a gradient far below the others.
    assert float(moved.max()) < 0.01001 and float(moved.quantile(0.25)) > 0.0098


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.0),
        lambda p: torch.optim.AdamW(p, 0.0, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, 0.0, fused=True),
        lambda p: torch.optim.Adafactor(p, 0.0),
    ],
)
def test_path_of_the_gate_does_not_depend_on_the_optimiser(make: Callable[..., torch.optim.Optimizer]) -> None:
    # With a rate of 0, all optimisers leave the same errors.
    expected = make_net()
    train(expected, torch.optim.SGD(expected.parameters(), 0.0))
    net = make_net()
    train(net, make(net.parameters()))
    assert int(net[0].gate.steps.num_steps) == 3
    assert_same(numbers(net), numbers(expected))


def test_own_steps_come_to_rest_with_a_schedule() -> None:
    """Not before the rate is below a third of its highest, and not with a low rate from the start."""

    def step_sizes(rates: list[float], optimizer: torch.optim.Optimizer | None = None) -> list[float]:
        net = make_net()
        new = torch.optim.SGD(net.parameters(), rates[0])
        if optimizer is not None:
            new.load_state_dict(optimizer.state_dict())
        taken = []
        for rate in rates:
            new.param_groups[0]["lr"] = rate
            before = numbers(net)["0.gate.embedding.values"]
            train(net, new, steps=1)
            taken.append(float((numbers(net)["0.gate.embedding.values"] - before).abs().max()))
        last.append(new)
        return taken

    last: list[torch.optim.Optimizer] = []
    expected = step_sizes([1e-6] * 5)
    torch.testing.assert_close(step_sizes([1e-8, 1e-6, 0.5e-6, 0.34e-6, 0.03e-6])[:4], expected[:4], rtol=1e-3, atol=0)
    small = step_sizes([1e-6, 1e-8])[1]
    torch.testing.assert_close(small, 0.03 * expected[1], rtol=1e-3, atol=0)
    torch.testing.assert_close(step_sizes([1e-8], last[-1]), [0.03 * expected[0]], rtol=1e-3, atol=0)
    torch.testing.assert_close(step_sizes([1e-8]), expected[:1], rtol=1e-3, atol=0)


class Calling(torch.optim.Optimizer):
    """An optimiser whose step is that of another."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def train_maps(rates: list[float], wrap: Any = None, *, apart: bool = False, copied: bool = False) -> nn.Module:
    """Trains by AdamW with a large decay; maps apart: in a group of their own, whose rate is to be that of maps."""
    net = make_net()
    maps = [each for name, each in net.named_parameters() if name.endswith(("scale", "offset"))]
    others = [each for each in net.parameters() if not any(each is other for other in maps)]
    groups: list[Any] = [{"params": maps, "weight_decay": 0.3 if apart else 3.0}, {"params": others}]
    inner = torch.optim.AdamW(groups, 1e-3, weight_decay=3.0)
    optimizer = inner if wrap is None else wrap(inner)
    for step, rate in enumerate(rates):
        for group, factor in zip(inner.param_groups, (10.0 if apart else 1.0, 1.0), strict=True):
            group["lr"] = rate * factor
        if copied:
            state, optimizer = optimizer.state_dict(), torch.optim.AdamW(groups, 1e-3)
            optimizer.load_state_dict(state)
            inner = optimizer
        train(net, optimizer, steps=1, first=step)
    return net


@pytest.mark.parametrize("options", [{}, {"wrap": Calling}, {"copied": True}], ids=str)
def test_local_affine_maps_have_a_rate_of_at_least_0_01(options: dict[str, Any]) -> None:
    """Beside Adam at a rate of 0.001; in proportion where a schedule lowers it, and weight decay as it is."""
    rates = [1e-3, 1e-3, 2e-4, 1e-4, 1e-3, 1e-3, 5e-4, 1e-3, 1e-4]
    net, expected = train_maps(rates, **options), train_maps(rates, apart=True)
    assert_same(dict(net.named_parameters()), dict(expected.named_parameters()), rtol=1e-4, atol=1e-6)


def test_trainings_in_threads_do_not_meet() -> None:
    alone, together = [make_net(seed) for seed in (0, 1)], [make_net(seed) for seed in (0, 1)]
    for net in (*alone, *together):
        for layer in net:
            if isinstance(layer, smoe.SpatialMoE2d):
                layer.rule = smoe.rules.StraightThrough(noise=0.0)  # PyTorch's random numbers are those of all threads
    for net in alone:
        train(net, torch.optim.AdamW(net.parameters(), 1e-3))
    barrier = threading.Barrier(2, timeout=60.0)

    def wait(*args: Any) -> None:
        barrier.wait()

    def train_beside(net: nn.Module) -> None:
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        optimizer.register_step_pre_hook(wait)  # in the middle of both steps
        train(net, optimizer)

    threads = [threading.Thread(target=train_beside, args=(net,)) for net in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(together, alone, strict=True):
        assert_same(dict(one.named_parameters()), dict(other.named_parameters()), rtol=0.0, atol=0.0)


def test_local_affine_maps_follow_high_rates_other_optimisers_and_requires_grad() -> None:
    for make, size in (
        (lambda p: torch.optim.Adam(p, 0.02), 0.02),
        (lambda p: torch.optim.SGD(p, 1e-3), None),
        (lambda p: torch.optim.Adam(p, torch.tensor(1e-3)), 1e-2),
    ):
        net = make_net()
        offset = net[0]._affine.offset
        net[0]._affine.scale.requires_grad_(False)
        train(net, make(net.parameters()), steps=1)
        wanted = 1e-3 * offset.grad.abs() if size is None else torch.full_like(offset, size)
        torch.testing.assert_close(offset.detach().abs(), wanted, rtol=1e-3, atol=1e-9)
        assert bool((net[0]._affine.scale == 1.0).all())


@pytest.mark.parametrize(("beta", "has_kernel"), [(0.9, True), (0.9, False), (0.0, True)])
def test_maps_lose_a_part_of_what_noise_adds_to_them(
    beta: float, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each fourth step, by the definition with loops; a channel with structure loses nearly nothing."""
    if not has_kernel:
        monkeypatch.setattr(_own_steps, "library_for", lambda *tensors: None)

    def trained(steps: int) -> Any:
        torch.manual_seed(0)
        net: Any = nn.Sequential(smoe.SpatialMoE2d(2, 3, spatial_shape=GRID))
        affine = net[0]._affine
        optimizer = torch.optim.Adam([net[0].weight, *affine.parameters()], 0.02, betas=(beta, 0.999))
        # Where pixels differ, the gradient of the second channel has a sign for each, those of the others are noise.
        signs, factors = torch.randn(GRID).sign(), torch.tensor([1.0, 1e-3, 1.0])
        maps = []
        for _ in range(steps):
            for values in affine.parameters():
                values.grad = torch.randn(3, *GRID) * factors[:, None, None]
                values.grad[1] += 5.0 * signs
            net[0].weight.grad = torch.zeros_like(net[0].weight)
            optimizer.step()
            maps.append([values.detach().clone() for values in affine.parameters()])
        return maps

    found = trained(16)
    monkeypatch.setattr(_own_steps, "_STEPS_TOGETHER", 1 << 30)
    free = trained(16)
    for step in range(3):
        assert all(map(torch.equal, found[step], free[step]))
    for before, after, shrunk in zip(free[2], free[3], found[3], strict=True):
        for channel in range(3):
            mean = sum(after[channel].flatten().tolist()) / after[channel].numel()
            moved = [(b - a) ** 2 for a, b in zip(before[channel].flatten(), after[channel].flatten(), strict=True)]
            noise = float(sum(moved)) / len(moved) * (1.0 + beta) / (1.0 - beta)
            variance = sum((value - mean) ** 2 for value in after[channel].flatten().tolist()) / len(moved)
            share = min(1.0, 0.4 * 4 * min(noise, 0.02**2) / variance)
            torch.testing.assert_close(shrunk[channel], after[channel] + share * (mean - after[channel]))
            assert (share < 0.15) == (channel == 1), share
    for late, much in zip(found[15], free[15], strict=True):
        assert late[1].std() > 0.9 * much[1].std() and late[0].std() < 0.8 * much[0].std()


@pytest.mark.parametrize("factor", [1e-12, 1e9])
def test_scale_of_the_loss_does_not_matter(factor: float) -> None:
    paths = []
    for scale in (1.0, factor):
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), 0.0)
        for step in range(4):
            optimizer.zero_grad()
            (scale * loss_of(net, step)).backward()
            optimizer.step()
        paths.append({name: value for name, value in numbers(net).items() if "steps" not in name})
    assert_same(*paths, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loop", ["in halves", "recomputed", "recomputed, reentrant", "inputs", "grad", "looked at"])
def test_loops_that_take_the_steps_of_a_plain_one(loop: str) -> None:
    plain, other = make_net(), make_net()
    for net in (plain, other):
        net(data(0)[0])  # the first pass sets the mean input
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        for step in range(4):
            optimizer.zero_grad()
            x, y = data(step)
            pieces = 2 if net is other and loop == "in halves" else 1
            for part, target in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
                run = partial(checkpoint, net, use_reentrant="reentrant" in loop) if "recomputed" in loop else net
                output = (net if net is plain else run)(part.requires_grad_())
                loss = (output - target).square().mean() / pieces  # type: ignore[operator]
                kind, parameters = loop if net is other else "plain", list(net.parameters())
                if kind == "looked at":  # gradients that no step is made of
                    torch.autograd.grad(loss, part, retain_graph=True)
                    torch.autograd.grad(loss, parameters, retain_graph=True)
                if kind == "grad":
                    for parameter, found in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                        parameter.grad = found
                else:
                    loss.backward(inputs=parameters if kind == "inputs" else None)
            optimizer.step()
    assert_same(numbers(other), numbers(plain), rtol=1e-3, atol=1e-5)
    assert_same(dict(other.named_parameters()), dict(plain.named_parameters()), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the forward pass", "before the backward pass"])
def test_a_skipped_step_leaves_nothing_behind(is_late: bool) -> None:
    """Wherever a loop calls `zero_grad`; the loss of a generator leaves gradients in its discriminator, too."""
    net, other = make_net(), make_net()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    net[2].weight.register_hook(lambda gradient: gradient * torch.inf)
    scaler.scale(loss_of(net, 5)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert int(net[0].gate.steps.num_steps) == 0
    net[2].weight._backward_hooks.clear()
    if is_late:
        loss = loss_of(net, 1)
        optimizer.zero_grad()
    else:
        optimizer.zero_grad()
        loss = loss_of(net, 1)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    assert int(net[0].gate.steps.num_steps) == 1
    train(other, torch.optim.SGD(other.parameters(), 1e-3), steps=1, first=1)
    keys = [each[0].gate.keys.detach() for each in (net, other)]
    torch.testing.assert_close(*keys)


def test_one_function_during_a_line_search() -> None:
    net = make_net()
    train(net, torch.optim.SGD(net.parameters(), 1e-3), steps=120)  # noise is at its full size
    optimizer = torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", max_iter=10)
    losses: list[list[float]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        losses[-1].append(loss.item())
        return loss

    before = int(net[0].gate.steps.num_steps)
    for _ in range(5):
        losses.append([])
        optimizer.step(closure)  # type: ignore[arg-type]
        # Until the gate steps, each pass computes one function.
        assert loss_of(net).item() == loss_of(net).item()
    assert int(net[0].gate.steps.num_steps) == before + 5
    assert all(min(each) < each[0] for each in losses) and losses[-1][-1] < 0.8 * losses[0][0]


def test_two_passes_of_sam_are_one_step() -> None:
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    for step in range(4):
        loss_of(net, step).backward()
        moves = [0.05 * p.grad / (1e-12 + p.grad.norm()) for p in net.parameters()]  # type: ignore[union-attr,operator]
        with torch.no_grad():
            for parameter, move in zip(net.parameters(), moves, strict=True):
                parameter += move
        optimizer.zero_grad()
        loss_of(net, step).backward()
        with torch.no_grad():
            for parameter, move in zip(net.parameters(), moves, strict=True):
                parameter -= move
        optimizer.step()
        optimizer.zero_grad()
    # In the first step no optimiser was known: the move looked like an update by hand.
    assert int(net[0].gate.steps.num_steps) in (4, 5)


def test_updates_by_hand() -> None:
    net, expected = make_net(), make_net()
    for step in range(3):
        loss_of(net, step).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
                parameter.grad = None
    net.state_dict()  # what is due is done before it is saved
    train(expected, torch.optim.SGD(expected.parameters(), 0.1), steps=3)
    assert_same(numbers(net), numbers(expected))


def test_an_optimiser_of_other_layers_does_not_move_the_gate() -> None:
    net = make_net()
    other = nn.Linear(2, 2)
    loss_of(net).backward()
    other(torch.ones(2)).sum().backward()
    torch.optim.SGD(other.parameters(), 0.1).step()
    assert int(net[0].gate.steps.num_steps) == 0
    torch.optim.SGD(net[2].parameters(), 0.1).step()
    # The embedding belongs to both layers, the keys to one.
    assert [int(m.num_steps) for m in (net[0].gate.steps, net[2].gate.steps)] == [0, 1]


@pytest.mark.parametrize("freeze", ["eval", "weights", "gate", "rule"])
def test_a_gate_that_is_not_to_learn(freeze: str) -> None:
    net = make_net()
    if freeze == "eval":
        net[0].eval()
    elif freeze == "weights":
        net[0].requires_grad_(False)
    elif freeze == "gate":
        net[0].gate.requires_grad_(False)
    else:
        net[0].freeze()
    before = numbers(net)
    train(net, torch.optim.SGD(net.parameters(), 0.1), steps=2)
    after = numbers(net)
    assert torch.equal(after["0.gate.keys"], before["0.gate.keys"])
    assert not torch.equal(after["2.gate.keys"], before["2.gate.keys"])
    assert loss_of(net).item() == loss_of(net).item()


@pytest.mark.parametrize("copied", ["state_dict", "deepcopy", "deepcopy, parametrised", "deepcopy, frozen", "pickle"])
def test_a_copy_goes_on_exactly(copied: str) -> None:
    net = make_net()
    train(net, torch.optim.SGD(net.parameters(), 0.1), steps=7)
    if "parametrised" in copied:  # a class of PyTorch's own, with its own way of copying
        nn.utils.parametrizations.weight_norm(net[0])
    if "frozen" in copied:  # local affine maps learn on
        net[0].freeze()
    if "deepcopy" in copied:
        twin = copy.deepcopy(net)
    elif copied == "pickle":
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    else:
        twin = make_net(seed=1)
        twin.load_state_dict(copy.deepcopy(net.state_dict()))
    for each in (net, twin):
        train(each, torch.optim.AdamW(each.parameters(), 1e-3), steps=3, first=7)
    assert_same(dict(twin.state_dict()), dict(net.state_dict()), rtol=0.0, atol=0.0)
    # Gates end with their networks.
    num_registered = len(_modules)
    del twin, each
    gc.collect()
    assert len(_modules) <= num_registered - 3


def test_state_dict_holds_no_number_twice_and_no_gradient() -> None:
    net, fresh = make_net(), make_net(seed=3)
    loss_of(net).backward()
    state = net.state_dict()
    assert not any(value.requires_grad for value in state.values())
    assert "0.gate.embedding.values" in state and "2.gate.embedding.values" not in state
    fresh.load_state_dict(state, assign=True)
    train(fresh, torch.optim.SGD(fresh.parameters(), 0.1), steps=1)
    assert int(fresh[0].gate.steps.num_steps) == 1


def test_half_precision_keeps_the_digits_of_the_gate() -> None:
    net = make_net().bfloat16()
    assert net[0].weight.dtype == torch.bfloat16 and net[0].gate.keys.dtype == torch.float32
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = data()
    (net(x.bfloat16()) - y).square().mean().backward()
    optimizer.step()
    assert int(net[0].gate.steps.num_steps) == 1
    assert net.double()[0].gate.keys.dtype == torch.float64 and net[0].gate.keys.is_leaf


def test_choices_are_kept_until_the_gate_steps_or_its_numbers_change() -> None:
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d(2, 4, spatial_shape=GRID)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    seen: list[torch.Tensor] = []
    for seed in range(8):
        layer(data(seed, batch=1)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert layer._last_routing is not None
        seen.append(layer._last_routing.indices)
    # One sample: the gate learns in the first of each four passes.
    assert [seen[place] is seen[place - 1] for place in range(1, 8)] == [False, True, True, True, False, True, True]
    assert isinstance(layer.gate, smoe.FactorisedGate)
    layer.gate.keys.data.neg_()
    layer(data(batch=1)[0])
    assert layer._last_routing is not None and not torch.equal(layer._last_routing.indices, seen[-1])


def test_rules_that_an_optimiser_follows_are_refused_afterwards() -> None:
    layer = smoe.SpatialMoE2d(2, 4, spatial_shape=GRID)
    with pytest.raises(ValueError, match=r"learns beside the optimiser.*make a new layer with rule='rc'"):
        layer.rule = "rc"
    layer.rule = "frozen"
    layer.rule = "straight_through"
    table = smoe.TensorGate(8, 4, GRID, order="families")
    layer = smoe.SpatialMoE2d(2, 4, spatial_shape=GRID, gate=table, rule="rc")
    assert "gate.scores" in dict(layer.named_parameters())
    layer.rule = "straight_through"
    assert "gate.scores" not in dict(layer.named_parameters())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize(("batch", "num_steps", "before"), [(8, 6, 0), (1, 2, 0), (8, 6, 15_000)])
def test_a_compiled_layer_takes_the_same_steps(batch: int, num_steps: int, before: int) -> None:
    """Passes of one sample learn when it is their turn; noise falls in a long training."""
    plain = make_net()
    plain[0].gate.embedding.values.data.mul_(20.0)
    plain[0].gate.embedding.steps.num_steps.fill_(before)
    for layer in (plain[0], plain[2]):  # a compiled pass has no counters, and so no warm-up of the noise
        layer.rule = smoe.rules.StraightThrough(warm_up=0)
        layer._learner.counters["num_steps"] = before
        layer.gate.steps.num_steps.fill_(before)
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for net, parts in ((plain, plain), (compiled, twin)):
        optimizer = torch.optim.AdamW(parts.parameters(), 1e-2)
        for step in range(6):
            optimizer.zero_grad()
            x, y = data(step, batch)
            (net(x) - y).square().mean().backward()
            optimizer.step()
    assert int(plain[0].gate.steps.num_steps) == before + num_steps
    assert_same(numbers(twin), numbers(plain), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("shape", [(5, 7), (3, 2741), (1, 70, 2)], ids=str)
def test_steps_of_the_kernel_are_those_by_tensors(shape: tuple[int, ...], axis: int | None) -> None:
    """Gradients of zeros at the start, infinite and not a number among them; more than one stretch of the kernel."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    values = [start.clone().requires_grad_() for _ in range(2)]
    steps = [AdamSteps([each], math.inf if axis is None else 1.2, axis or 0) for each in values]
    for number, factor in enumerate((0.0, 3e4, 1.0, math.inf, 2.0, math.nan, 1e-3, 5.0, 0.0, 1.0)):
        gradient = torch.randn(shape, generator=generator) + 0.5
        gradient.view(-1)[0] *= factor
        for place, is_due in enumerate((None, torch.ones((), dtype=torch.int64))):
            values[place].grad = gradient * (number > 0)
            version = values[place]._version
            steps[place].take([values[place]], 1e-2, is_due)
            assert values[place]._version > version
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(dict(each.named_buffers()) for each in steps), rtol=1e-4, atol=1e-5)
    assert not torch.equal(values[0], start)
    if axis is not None:
        assert float(torch.linalg.vector_norm(values[0].detach(), dim=axis).max()) < 1.2001
    # No step, of several processes that have seen nothing: a frozen gate among them is left alone.
    longer = (values[1].detach() * 3.0).requires_grad_()
    longer.grad, before = torch.zeros_like(longer), longer.detach().clone()
    steps[1].take([longer], 1e-2, torch.zeros((), dtype=torch.int64))
    assert torch.equal(longer, before)


@pytest.mark.parametrize("is_due", [None, torch.ones((), dtype=torch.int64)], ids=["kernel", "tensors"])
def test_numbers_rest_where_gradients_are_noise_of_what_they_were(is_due: torch.Tensor | None) -> None:
    """At a tenth of the largest gradient so far they move as fast as ever, at a millionth hardly; by Adam's formula."""
    generator = torch.Generator().manual_seed(0)
    values = torch.zeros(4, 50).requires_grad_()
    steps, moved, before = AdamSteps([values]), [], values.detach()
    expected, largest = torch.zeros(4, 50, dtype=torch.float64), 0.0
    for phase, size in enumerate((1.0, 0.1, 1e-6)):
        # So much later that nothing of the earlier gradients is left in the moments.
        steps.moments.zero_()
        mean, square = torch.zeros_like(expected), torch.zeros_like(expected)
        for number in range(50 * phase + 1, 50 * phase + 51):
            # The first gradient is small, as where the candidates of a family start nearly equal.
            gradient = size * torch.randn(4, 50, generator=generator) * (1e-3 if number == 1 else 1.0)
            before = values.detach().clone()
            values.grad = gradient.clone()
            steps.take([values], 0.01, is_due)
            gradient = gradient.double()
            largest = max(largest, float(gradient.square().mean().sqrt()))
            mean.lerp_(gradient, 0.1)
            square.lerp_(gradient.square(), 0.001)
            root = (square / (1 - 0.999**number)).sqrt()
            expected -= 0.01 * mean / (1 - 0.9**number) / (root + 1e-3 * largest)
            torch.testing.assert_close(values.detach().double(), expected, rtol=1e-3, atol=1e-5)
        moved.append(float((values.detach() - before).square().mean().sqrt()))
    torch.testing.assert_close(float(steps.units), largest, rtol=1e-5, atol=0.0)
    assert 0.5 < moved[1] / moved[0] < 3.0 and moved[2] < 3e-3 * moved[0]
