"""From a torch module to the graph of its layers: torch.fx finds what it computes, a pass without memory the sizes.

A function counts as the module that does the same (``F.relu`` as ``nn.ReLU``). What the graph cannot say is refused in
one line that names the layer.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import fx, nn

from implementations.errors import UserError
from implementations.layerwise import modules
from implementations.layerwise.graph import ADD, CONCAT, INPUT, LOSS, MULTIPLY, Graph, Layer
from implementations.layerwise.modules import Fields, Sizes, Unsupported
from implementations.models.module_net import for_sizes

LOSS_FLOPS = 4  # for each class: greatest, subtraction, exponential, sum
_BATCH = 3  # samples of the pass that finds the sizes

# Functions and methods of tensors, the module that does the same, and the names of the arguments after the first.
_WINDOW = ("kernel_size", "stride", "padding")
_MAX_POOL = (nn.MaxPool2d, (*_WINDOW, "dilation", "ceil_mode", "return_indices"))
_FUNCTIONS: dict[Any, tuple[type[nn.Module], tuple[str, ...]]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu"), (nn.ReLU, ("inplace",))),
    **dict.fromkeys((torch.relu_, "relu_"), (nn.ReLU, ())),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), (nn.Sigmoid, ())),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), (nn.Tanh, ())),
    F.gelu: (nn.GELU, ("approximate",)),
    F.silu: (nn.SiLU, ("inplace",)),
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope", "inplace")),
    **dict.fromkeys((F.dropout, torch.dropout), (nn.Dropout, ("p", "training", "inplace"))),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _MAX_POOL),
    F.avg_pool2d: (nn.AvgPool2d, (*_WINDOW, "ceil_mode", "count_include_pad", "divisor_override")),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    **dict.fromkeys((F.softmax, torch.softmax, "softmax"), (nn.Softmax, ("dim", "_stacklevel", "dtype"))),
    **dict.fromkeys(
        (F.log_softmax, torch.log_softmax, "log_softmax"), (nn.LogSoftmax, ("dim", "_stacklevel", "dtype"))
    ),
    "contiguous": (nn.Identity, ()),
}
_RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_MULTIPLIES = (operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_")
_CONCATS = (torch.cat, torch.concat, torch.concatenate)
_MEANS = (torch.mean, "mean")
_IN_PLACE = (operator.iadd, operator.imul, torch.relu_, "relu_", "add_", "mul_")
_NOT_OF_MODULES = ("input", "training", "_stacklevel", "dtype")  # arguments of functions alone


@dataclass(frozen=True)
class Traced:
    """A network's graph, and the names of its parameters.

    Attributes:
        graph: the layers; the first is called ``input``, the last ``loss``.
        parameters: for each layer that has some, from the names in ``Layer.weights`` to those of
            ``module.named_parameters()``.
    """

    graph: Graph
    parameters: dict[str, dict[str, str]]


def trace(module: nn.Module, sample: tuple[int, ...], name: str) -> Traced:
    """The graph that ``module`` computes in training, for samples of the sizes ``sample``.

    Layers have the module's path as name, or torch.fx's name of the function; a module without parameters that is used
    again has a number behind it. Nothing of the module is changed, and no weight copied; it may be on the meta device.
    UserError in one line for what torch.fx cannot follow and for layers that the graph has no kind for.
    """
    if any(map(nn.parameter.is_lazy, module.parameters())):
        raise UserError(
            f"network {name}: a lazy layer has no sizes yet; give its input's, or call the module once"
        )
    skeleton = for_sizes(module)
    try:
        traced = fx.symbolic_trace(skeleton)
    except Exception as error:  # whatever the module's own code raises when it is given a proxy
        raise UserError(f"torch.fx cannot trace {name}: {_first_line(error)}") from None
    walk = _Walk(traced, name, tuple(sample))
    dtype = next((weight.dtype for weight in skeleton.parameters()), None)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of speed, say: nothing is computed
        walk.run(torch.empty(_BATCH, *sample, dtype=dtype))
    for parameter, values in skeleton.named_parameters():
        if id(values) not in walk.bound:
            raise UserError(
                f"network {name}: no layer uses parameter {parameter}; leave it out of the module"
            )
        if not values.requires_grad:
            raise UserError(f"network {name}: parameter {parameter} has requires_grad=False; needed: True")
    return Traced(Graph(name, walk.layers), walk.parameters)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _Walk(fx.Interpreter):
    """A pass over the nodes in order that makes a layer of each."""

    def __init__(self, traced: fx.GraphModule, network: str, sample: Sizes) -> None:
        super().__init__(traced, garbage_collect_values=False)
        self.extra_traceback = False  # or it would add lines to what is raised
        self.network = network
        self.order = {node: place for place, node in enumerate(traced.graph.nodes)}
        self.layers = [Layer("input", INPUT, (), sample)]
        self.parameters: dict[str, dict[str, str]] = {}
        self.bound: set[int] = set()  # ids of parameters that some layer has
        self._names = {"input", "loss"}
        self._layer_of: dict[fx.Node, Layer] = {}

    def run_node(self, node: fx.Node) -> Any:
        """The node's value, whose layer has been added."""
        try:
            value = super().run_node(node)
        except Exception as error:  # of sizes that do not fit
            self._refuse(
                node, Unsupported(f"what does not fit its input: {_first_line(error)}", "other sizes")
            )
        try:
            if node.op == "placeholder":
                self._begin(node)
            elif node.op == "output":
                self._end(node.args[0])
            elif isinstance(value, torch.Tensor):
                self._add(node, value)
            elif not isinstance(value, int | torch.Size):  # those are sizes that the module asks for
                raise Unsupported(f"{_called(node)}, which gives a {type(value).__name__}")
        except Unsupported as error:
            self._refuse(node, error)
        return value

    def _refuse(self, node: fx.Node, error: Unsupported) -> NoReturn:
        named = node.op in ("call_module", "get_attr")
        where = f"layer {node.target if named else node.name}"
        raise UserError(f"network {self.network}: {where} is {error}") from None

    def _begin(self, node: fx.Node) -> None:
        if self._layer_of:
            raise Unsupported("a second input", "one")
        self._layer_of[node] = self.layers[0]

    def _end(self, last: Any) -> None:
        scores = self._layer_of.get(last) if isinstance(last, fx.Node) else None
        if scores is None or len(scores.out) != 1:
            what = f"samples of the sizes {scores.out}" if scores else f"a {type(last).__name__}"
            raise Unsupported(what, "one tensor of scores (sample, class)")
        self.layers.append(Layer("loss", LOSS, (scores.name,), (), flops=LOSS_FLOPS * scores.out[0]))

    def _add(self, node: fx.Node, value: torch.Tensor) -> None:
        if node.op == "get_attr":
            raise Unsupported("a tensor that the module's own code computes with")
        out = tuple(value.shape[1:])
        if not out or len(value) != _BATCH:
            raise Unsupported(
                f"{_called(node)}, which mixes samples", "the sample as first dimension throughout"
            )
        if not node.users:
            raise Unsupported(f"{_called(node)} whose output nothing reads", "a network without it")
        self._check_in_place(node)
        target = node.target
        if node.op == "call_module":
            self._module(node, self.fetch_attr(target), out)
        elif target in _FUNCTIONS:
            self._module(node, _as_module(node), out)
        elif target in _RESHAPES:
            self._put(node, [self._read(node)], out, modules.flattening(self._read(node).out, out))
        elif target in _ADDS or target in _MULTIPLIES:
            self._elementwise(node, out)
        elif target in _CONCATS:
            self._concat(node, out)
        elif target in _MEANS:
            self._mean(node, out)
        else:
            raise Unsupported(_called(node))

    def _check_in_place(self, node: fx.Node) -> None:
        """Refuse to change in place what a later layer reads too: the graph would give it the value from before."""
        in_place = node.target in _IN_PLACE or _given(node, "inplace")
        if node.op == "call_module":
            in_place = getattr(self.fetch_attr(node.target), "inplace", False)
        changed = _first(node)
        if in_place and isinstance(changed, fx.Node):
            for alias in self._aliases(changed, but=node):
                for user in alias.users:
                    if self.order[user] > self.order[node]:
                        raise Unsupported(
                            f"{_called(node)} in place of what {user.name} reads too", "a new tensor"
                        )

    def _aliases(self, node: fx.Node, but: fx.Node) -> list[fx.Node]:
        """The nodes whose values share their memory with that of ``node``, other than through ``but``."""
        while self._hands_on(node) and isinstance(_first(node), fx.Node):
            node = _first(node)
        found = [node]
        for alias in found:
            found += [user for user in alias.users if user is not but and self._hands_on(user)]
        return found

    def _hands_on(self, node: fx.Node) -> bool:
        """Whether a node may give the very memory that it reads."""
        if node.op == "call_module":
            module = self.fetch_attr(node.target)
            return isinstance(module, nn.Identity | nn.Flatten | nn.Dropout) or getattr(
                module, "inplace", False
            )
        return node.target in _RESHAPES or node.target in _IN_PLACE or bool(_given(node, "inplace"))

    def _read(self, node: fx.Node) -> Layer:
        """The one layer that a node reads."""
        read = [one for one in node.all_input_nodes if one in self._layer_of]
        if read != [_first(node)]:
            raise Unsupported(f"{_called(node)} of several tensors")
        return self._layer_of[read[0]]

    def _put(self, node: fx.Node, reads: Sequence[Layer], out: Sizes, fields: Fields, **rest: Any) -> Layer:
        """Add a layer and let later nodes read it as ``node``."""
        wanted = str(node.target) if node.op == "call_module" else node.name
        name, count = wanted, 0
        while name in self._names:
            count += 1
            name = f"{wanted}_{count}"
        self._names.add(name)
        layer = Layer(name=name, inputs=tuple(read.name for read in reads), out=out, **fields, **rest)
        self.layers.append(layer)
        self._layer_of[node] = layer
        return layer

    def _module(self, node: fx.Node, module: nn.Module, out: Sizes) -> None:
        read = self._read(node)
        fields = modules.fields(module, read.out, out)
        owned = dict(module.named_parameters(recurse=False))
        ids = {id(weight) for weight in owned.values()}
        if self.bound & ids:
            raise Unsupported(
                f"{_called(node)} with weights that are used before", "own weights for each layer"
            )
        self.bound |= ids
        weights = {name: tuple(weight.shape) for name, weight in owned.items()}
        layer = self._put(node, [read], out, fields, weights=weights)
        if owned:
            self.parameters[layer.name] = {name: f"{node.target}.{name}" for name in owned}

    def _elementwise(self, node: fx.Node, out: Sizes) -> None:
        kind, word = (ADD, "sum") if node.target in _ADDS else (MULTIPLY, "product")
        read = [self._layer_of.get(one) if isinstance(one, fx.Node) else None for one in node.args]
        if len(read) != 2 or None in read or _given(node, "alpha", 1) != 1:
            raise Unsupported(f"a {word} with something else than layers", f"a plain {word} of two layers")
        if read[0].out != read[1].out:
            raise Unsupported(f"a {word} of {read[0].out} and {read[1].out}", "equal sizes")
        self._put(node, read, out, {"kind": kind, "flops": math.prod(out)})

    def _concat(self, node: fx.Node, out: Sizes) -> None:
        read = [self._layer_of[one] for one in _given(node, "tensors", place=0)]
        axis = _given(node, "dim", 0, place=1)
        if axis % (1 + len(out)) != 1:
            raise Unsupported(f"a cat along dimension {axis}", "dimension 1, the channels")
        self._put(node, read, out, {"kind": CONCAT})

    def _mean(self, node: fx.Node, out: Sizes) -> None:
        """The mean over the map: pooling, and flattening where the dimensions are not kept."""
        read = self._read(node)
        axes = _given(node, "dim", (), place=1)
        if len(read.out) != 3 or sorted(axis % 4 for axis in _listed(axes)) != [2, 3]:
            raise Unsupported("a mean", "the mean of images over dimensions 2 and 3")
        pooled = (read.out[0], 1, 1)
        layer = self._put(node, [read], pooled, modules.average(read.out, pooled))
        if out != pooled:
            self._put(node, [layer], out, modules.flattening(pooled, out))


def _as_module(node: fx.Node) -> nn.Module:
    """The module that does what a function does."""
    kind, names = _FUNCTIONS[node.target]
    given = dict(zip(names, node.args[1:])) | node.kwargs
    if any(isinstance(value, fx.Node) for name, value in given.items() if name != "input"):
        raise Unsupported(f"{_called(node)} with arguments that are computed", "constants")
    if kind is nn.Dropout and not given.pop("train", given.get("training", True)):
        return nn.Identity()
    return kind(**{name: value for name, value in given.items() if name not in _NOT_OF_MODULES})


def _first(node: fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _given(node: fx.Node, name: str, default: Any = None, place: int | None = None) -> Any:
    """An argument of a function, by name or place."""
    if place is not None and len(node.args) > place:
        return node.args[place]
    return node.kwargs.get(name, default)


def _listed(value: Any) -> Sequence[int]:
    return value if isinstance(value, tuple | list) else (value,)


def _called(node: fx.Node) -> str:
    """What a node calls, with its article."""
    if node.op == "call_module":
        name = type(node.graph.owning_module.get_submodule(node.target)).__name__
    else:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "function")
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
