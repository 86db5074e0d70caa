"""Second derivatives, and the functions of torch.func, through every layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap

import smoe
from smoe.nn import GridConv2d
from smoe.ops._operators import NativeLibrary, native_library
from smoe_paper.baselines.layers import ConvGate, LocallyConnected2d

# PyTorch's own forward-mode rules are scripts.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

GRID = (5, 7)
RING = torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12])


def _plane(batch: int = 3, channels: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, *GRID)


def _layer(num_experts: int = 6, num_selected: int = 3, **options) -> Callable[[], nn.Module]:
    options = {"spatial_shape": GRID, **options}
    return lambda: smoe.SpatialMoE2d.from_experts(2, num_experts, num_selected, **options)


def _unchosen() -> nn.Module:
    scores = torch.rand(6, *GRID)
    scores[4:] -= 1.0
    return smoe.SpatialMoE2d.from_experts(2, 6, 2, gate=smoe.FixedGate(scores, 2))


# Layers and their inputs; three batch sizes meet the three families of kernels.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "plane": (_layer(), lambda: (_plane(),)),
    "one sample": (_layer(), lambda: (_plane(1),)),
    "large batch": (_layer(num_experts=8, num_selected=4), lambda: (_plane(13),)),
    "tiny": (lambda: smoe.SpatialMoE2d.from_experts(1, 4, 2, spatial_shape=GRID), lambda: (_plane(5, 1),)),
    "stride": (_layer(stride=2, spatial_shape=(3, 4), padding_mode="longitude"), lambda: (_plane(),)),
    "channels and bias": (_layer(expert_channels=2, bias="slot", local_affine=True), lambda: (_plane(),)),
    "bias of experts": (_layer(bias="expert", padding_mode="circular"), lambda: (_plane(1),)),
    "weighted": (_layer(weighted=True, rule="frozen"), lambda: (_plane(),)),
    "weighted, own routing": (
        lambda: smoe.SpatialMoE2d.from_experts(2, 6, 3, gate=ConvGate(2, 6, 3), weighted=True, rule="end_to_end"),
        lambda: (_plane(),),
    ),
    "an expert nobody chose": (_unchosen, lambda: (_plane(),)),
    "rc": (_layer(rule="rc", order="score", damping=0.1), lambda: (_plane(),)),
    "line": (lambda: smoe.SpatialMoE1d.from_experts(2, 6, 3, spatial_shape=9), lambda: (torch.randn(3, 2, 9),)),
    "volume": (
        lambda: smoe.SpatialMoE3d.from_experts(2, 6, 3, spatial_shape=(3, 4, 5)),
        lambda: (torch.randn(2, 2, 3, 4, 5),),
    ),
    "wrapped volume": (
        lambda: smoe.SpatialMoE3d.from_experts(2, 6, 3, spatial_shape=(2, 2, 3), stride=2, padding_mode="circular"),
        lambda: (torch.randn(2, 2, 3, 4, 5),),
    ),
    "sphere": (lambda: smoe.HEALPixMoE.from_experts(2, 6, 3, nside=2), lambda: (torch.randn(2, 2, 48),)),
    "graph": (
        lambda: smoe.GraphMoE.from_experts(2, 6, 3, num_nodes=12),
        lambda: (torch.randn(3, 12, 2), RING, torch.rand(12, requires_grad=True)),
    ),
    "experts of a module": (
        lambda: smoe.SpatialMoE(GridConv2d(2, 6), 6, 3, spatial_shape=GRID),
        lambda: (_plane(),),
    ),
    "convolution": (lambda: GridConv2d(1, 3, bias=True), lambda: (_plane(5, 1),)),
    "own filters": (lambda: LocallyConnected2d(2, 3, spatial_shape=GRID), lambda: (_plane(),)),
}


@pytest.fixture(params=LAYERS)
def case(request) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    make, inputs = LAYERS[request.param]
    layer = make()
    numbers = layer.gate._learned_numbers() if isinstance(layer, smoe.nn.RoutedLayer) else []
    with torch.no_grad():
        for parameter in (*layer.parameters(), *numbers):
            parameter.add_(0.3 * torch.randn_like(parameter))
        layer(*inputs())  # the first pass in training sets the mean input
    return layer, inputs()


def _parameters(layer: nn.Module, *, with_gate: bool) -> dict[str, nn.Parameter]:
    return {
        name: parameter
        for name, parameter in layer.named_parameters()
        if parameter.requires_grad and (with_gate or not name.startswith("gate."))
    }


def _twice(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
    """Derivatives of a function of all first derivatives; in training mode without those of the gate."""
    torch.manual_seed(1)
    inputs = tuple(part.detach().requires_grad_(part.is_floating_point()) for part in inputs)
    arguments = [part for part in inputs if part.requires_grad]
    arguments += _parameters(layer, with_gate=not layer.training).values()
    first = torch.autograd.grad(layer(*inputs).pow(3).mean(), arguments, create_graph=True, allow_unused=True)
    total = sum(part.pow(2).sum() for part in first if part is not None)
    assert isinstance(total, torch.Tensor)
    for argument, found in zip(arguments, torch.autograd.grad(total, arguments, allow_unused=True), strict=True):
        yield torch.zeros_like(argument) if found is None else found


def _assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    largest = max(float(expected.detach().abs().max()), 1e-6)
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0.0, atol=1e-4 * largest)


@pytest.mark.parametrize("mode", ["train", "eval", "frozen"])
def test_second_derivatives_of_the_kernels_are_those_of_float64(case, mode, monkeypatch):
    layer, inputs = case
    if mode == "frozen" and not isinstance(layer, smoe.nn.RoutedLayer):
        pytest.skip("nothing to freeze")
    layer = smoe.freeze(layer) if mode == "frozen" else layer.train(mode == "train")
    exact = copy.deepcopy(layer).double()
    called: list[str] = []
    call = NativeLibrary.call

    def record(self: NativeLibrary, name: str, *arguments: object) -> None:
        called.append(name)
        call(self, name, *arguments)

    monkeypatch.setattr(NativeLibrary, "call", record)
    found = list(_twice(layer, inputs))
    uses_kernels = not isinstance(layer, smoe.SpatialMoE)
    if native_library() is not None and uses_kernels:
        # Forward, backward and second backward.
        assert sum(name.endswith("weight_gradient") for name in called) >= 2, called
    wide = tuple(part.double() if part.is_floating_point() else part for part in inputs)
    expected = list(_twice(exact, wide))
    assert any(part.abs().max() > 1e-3 for part in expected)
    for one, other in zip(found, expected, strict=True):
        _assert_near(one, other)


def _function(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return functional_call(layer, parameters, (x, *inputs[1:])).pow(3).mean()

    return loss


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_torch_func_are_those_of_the_backward_pass(case, training):
    layer, inputs = case
    layer.train(training)
    if training and isinstance(layer, smoe.nn.RoutedLayer) and layer._learner.trains_scores:
        with pytest.raises(RuntimeError, match=r"learn in backward passes.*call layer.eval\(\)"):
            grad(lambda x: layer(x).sum())(inputs[0])
        return
    parameters, loss = _parameters(layer, with_gate=True), _function(layer, inputs)
    x = inputs[0].requires_grad_()
    # A pass counts: both begin with the same counters.
    plain = _function(copy.deepcopy(layer), inputs)
    expected = torch.autograd.grad(plain(parameters, x), (*parameters.values(), x), allow_unused=True)
    by_parameter, by_input = grad(loss, argnums=(0, 1))({k: v.detach() for k, v in parameters.items()}, x.detach())
    for one, other in zip((*by_parameter.values(), by_input), expected, strict=True):
        _assert_near(one, torch.zeros_like(one) if other is None else other)


@pytest.mark.parametrize("training", [True, False])
def test_forward_mode_is_the_transpose_of_reverse_mode(case, training):
    layer, (x, *others) = case
    layer.train(training)
    if training and isinstance(layer, smoe.nn.RoutedLayer) and layer._learner.trains_scores:
        pytest.skip("refused: see the other tests")

    def output(x: torch.Tensor) -> torch.Tensor:
        return layer(x, *(part.detach() for part in others))

    tangent = torch.randn_like(x)
    value, found = jvp(output, (x,), (tangent,))  # type: ignore[assignment]
    _assert_near(value, output(x))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(output(forward_ad.make_dual(x, tangent))).tangent
    assert dual is not None
    _assert_near(dual, found)
    error = torch.randn_like(value)
    (by_input,) = torch.autograd.grad(output(x.requires_grad_()), x, error)
    _assert_near((by_input * tangent).sum(), (error * found).sum())


def test_ensembles_and_single_samples_in_evaluation(case):
    layer, (x, *others) = case
    others = [part.detach() for part in others]
    layers = [layer.eval(), copy.deepcopy(layer)]
    with torch.no_grad():
        for parameter in layers[1].parameters():
            parameter.add_(torch.randn_like(parameter))
    parameters, buffers = stack_module_state(layers)  # type: ignore[arg-type]
    base = copy.deepcopy(layer)

    def output(parameters: dict, buffers: dict, x: torch.Tensor) -> torch.Tensor:
        return functional_call(base, (parameters, buffers), (x, *others))

    found = vmap(output, in_dims=(0, 0, None))(parameters, buffers, x)
    for one, member in zip(found, layers, strict=True):
        _assert_near(one, member(x, *others))
    # The gradient of each sample.
    own = _parameters(layer, with_gate=True)

    def loss(parameters: dict, x: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, parameters, (x[None], *others)).pow(3).mean()

    by_sample = vmap(grad(loss), in_dims=(None, 0))({name: value.detach() for name, value in own.items()}, x)
    expected = torch.autograd.grad(loss(own, x[-1]), list(own.values()), allow_unused=True)
    for one, other in zip(by_sample.values(), expected, strict=True):
        _assert_near(one[-1], torch.zeros_like(one[-1]) if other is None else other)


def test_what_a_learning_gate_cannot_do_is_said_in_one_line():
    torch.manual_seed(0)
    layer, x = smoe.SpatialMoE2d.from_experts(2, 6, 3, spatial_shape=GRID), _plane()
    # The default rule learns nothing from transforms; the function is that of the pass.
    _assert_near(jacrev(layer)(x), torch.autograd.functional.jacobian(layer, x))  # type: ignore[arg-type]
    damped = smoe.SpatialMoE2d.from_experts(2, 6, 3, spatial_shape=GRID, damping=0.5)
    with pytest.raises(RuntimeError, match=r"damping of errors is not a derivative.*call layer.eval\(\)"):
        jvp(damped, (x,), (x,))
    with pytest.raises(RuntimeError, match=r"not under torch.func: differentiate the loss as it is"):
        grad(lambda x: smoe.nn.track_loss_scale(layer(x).sum(), layer))(x)


def test_a_gate_learns_from_the_parameters_that_functional_call_was_given():
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(2, 6, 3, spatial_shape=GRID)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.add_(torch.randn_like(other.weight))
    x = _plane()
    expected = torch.autograd.grad(_function(other, (x,))(dict(other.named_parameters()), x), [*other.parameters()])
    given = dict(other.named_parameters())
    found = torch.autograd.grad(_function(layer, (x,))(given, x), [*given.values()])
    assert all(map(torch.equal, found, expected))
