"""A device that is none: tensors of its own kind, whose arithmetic is the CPU's, and which mix with no others.

``install()`` once in a process; then ``with active():`` torch takes "fakegpu" for a device. An operation on tensors of
it and of the CPU fails as it does on a GPU (0-d CPU tensors aside), and NumPy cannot see its memory. So a run on it
computes what the CPU computes, if everything is put where it belongs.
"""

import contextlib

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "fakegpu"
_aten = torch.ops.aten
_BETWEEN = (_aten._to_copy.default, _aten.copy_.default, _aten._copy_from.default)  # that see both memories


class Gpu(torch.Tensor):
    """A tensor of the device; ``held`` has its values."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            held.stride(),
            held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})

    def __deepcopy__(self, memo):
        with torch.no_grad():
            copied = Gpu(self.held.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol):
        return self.held.__reduce_ex__(protocol)  # as read again with map_location="cpu"

    def tolist(self):
        return self.held.tolist()

    def __repr__(self):
        return f"Gpu({self.held})"


class Mixed(AssertionError):
    """An operation was given tensors of both devices."""


class _Mode(TorchDispatchMode):
    """Sees to what makes tensors."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


def _run(function, args, kwargs):
    flat, spec = pytree.tree_flatten((args, kwargs))
    ours = any(isinstance(one, Gpu) for one in flat)
    wanted = kwargs.get("device")
    on_gpu = torch.device(wanted).type == NAME if wanted is not None else ours
    others = [one for one in flat if isinstance(one, torch.Tensor) and not isinstance(one, Gpu)]
    if not ours and not on_gpu:
        return function(*args, **kwargs)
    if ours and function not in _BETWEEN and any(one.dim() for one in others):
        raise Mixed(f"{function}: tensors of the CPU among those of the GPU")
    held = [one.held if isinstance(one, Gpu) else _cpu(one) for one in flat]
    args_held, kwargs_held = pytree.tree_unflatten(held, spec)
    results = function(*args_held, **kwargs_held)
    known = {id(one.held): one for one in flat if isinstance(one, Gpu)}
    if function is _aten.copy_.default:
        return args[0]
    if not on_gpu:
        return results

    def wrap(one):
        if not isinstance(one, torch.Tensor):
            return one
        if id(one) not in known:
            return Gpu(one)
        same = known[id(one)]  # changed in place
        if same.shape != one.shape or same.stride() != one.stride():
            raise NotImplementedError(f"{function}: sizes changed in place")
        return same

    return pytree.tree_map(wrap, results)


def _cpu(one):
    return torch.device("cpu") if isinstance(one, torch.device) and one.type == NAME else one


class _Module(_DummyBackendModule):
    """As torch.cuda, for one device."""

    synchronised = 0

    def synchronize(self):
        _Module.synchronised += 1

    def reset_peak_memory_stats(self):
        pass

    def max_memory_allocated(self):
        return 10**6

    def get_device_name(self):
        return "a device that is none"

    def set_device(self, index):
        assert index == 0

    def get_rng_state(self, device=None):
        return torch.get_rng_state()

    def set_rng_state(self, state, device=None):
        torch.set_rng_state(state)


module = _Module()


def install():
    if torch._C._get_privateuse1_backend_name() == NAME:
        return
    _setup_privateuseone_for_python_backend(NAME, module)
    # what torch.tensor calls past all modes
    _library.impl("empty_strided", _empty_strided)
    _library.impl("_copy_from", _copy_from)


_library = torch.library.Library("aten", "IMPL", "PrivateUse1")


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Gpu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source, target, non_blocking=False):
    held = [one.held if isinstance(one, Gpu) else one for one in (source, target)]
    held[1].copy_(held[0])
    return target


@contextlib.contextmanager
def active():
    # else backward would be a thread's of the device, outside Python's modes
    with _Mode(), torch.autograd.set_multithreading_enabled(False):
        yield module
