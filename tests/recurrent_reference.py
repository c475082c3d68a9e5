"""Recurrent networks as torch has them, and minibatches of sequences, for tests of the program and of the model."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Plain(nn.Module):
    """A stack of ``nn.RNN`` or ``nn.LSTM`` layers, which may differ in width, and a linear layer on the last state."""

    def __init__(self, name, values, hidden, classes):
        super().__init__()
        kind = nn.LSTM if name == "lstm" else nn.RNN
        widths = [values, *hidden]
        self.layers = nn.ModuleList(
            kind(inputs, units, batch_first=True) for inputs, units in zip(widths, hidden, strict=False)
        )
        self.output = nn.Linear(hidden[-1], classes)

    def forward(self, x_btf, lengths=None):
        """Scores; of samples with ``lengths`` the first so many steps are real, one at least."""
        h = x_btf
        if lengths is not None:
            h = pack_padded_sequence(x_btf, lengths, batch_first=True, enforce_sorted=False)
        for layer in self.layers:
            h, last = layer(h)
        last = last[0] if isinstance(last, tuple) else last
        return self.output(last[-1])

    def named(self):
        """Parameters by the names of the model under test."""
        found = {}
        for number, layer in enumerate(self.layers):
            for name, parameter in layer.named_parameters():
                found[name.replace("_l0", f"_l{number}")] = parameter
        found |= {f"output.{name}": parameter for name, parameter in self.output.named_parameters()}
        return found


def plain(net, worker=0):
    """The same network as a recurrent ``WorkerModel``, with a worker's weights."""
    first, (name, hidden) = net.weights["weight_ih_l0"], (net.name, net.hidden)
    found = Plain(name, first.shape[-1], hidden, net.weights["output.bias"].shape[-1])
    assert list(found.named()) == list(net.weights)
    with torch.no_grad():
        for weight, parameter in found.named().items():
            parameter.copy_(net.weights[weight][worker])
    return found


def sequences(seed, batch, steps, values, classes, lengths=None, padding=0.0):
    """Samples (b, features) with their masks if there are ``lengths``, values (b, t, f) and labels (b,)."""
    generator = torch.Generator().manual_seed(seed)
    x_btf = torch.randn(batch, steps, values, generator=generator)
    y_b = torch.randint(0, classes, (batch,), generator=generator)
    if lengths is None:
        return x_btf.flatten(1), x_btf, y_b
    real_bt1 = (torch.arange(steps) < torch.tensor(lengths).unsqueeze(1)).unsqueeze(2)
    x_btf = x_btf.where(real_bt1, padding)
    return torch.cat([x_btf, real_bt1.to(x_btf.dtype)], 2).flatten(1), x_btf, y_b
