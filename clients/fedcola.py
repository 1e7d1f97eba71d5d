"""FedCola, client half: participants with one modality train with the other modality's weights beside their own.

Paper: ECCV 2024, arXiv 2404.12467. A linear layer of a block (qkv, proj, fc1, fc2) has the weight W + g W_out, where
W_out is the same layer of the other modality's model and the gate g starts at 0 in each round; the bias is the own. It
is folded before the upload, so that what travels up is a plain model. Nothing is kept between rounds, but with
``fedcola.aux-send=changes`` W_out as it came.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clients import fedavg
from clients.base import local_epochs
from fedapps import wire
from fedapps.errors import UserError
from fedapps.learner import build_optimizer, set_rate, trainable
from fedapps.methods import FedColaParams
from fedapps.models.unified import linears
from fedapps.participant import Participant

app = ClientApp()
app.evaluate()(fedavg.test)  # of the averaged model, without gates


@app.train()
def train(msg: Message, context: Context) -> Message:
    """w_k, g, W_out ← those - η∇L over ``local-epochs``, then w_k ← w_k + g W_out."""
    me = Participant(msg, context)
    assert isinstance(me.settings.params, FedColaParams)
    params = me.settings.params
    me.model.load_state_dict(me.received("model"))
    encoder = me.model.encoders[me.spec.modalities[0]]
    aux = me.received("aux") if params.aux_send == "whole" else completed(me, encoder)
    gates = gate(encoder, aux, params.aux_trainable)
    me.optimizer = build_optimizer(me.spec.train, [*trainable(me.model), *me.task.parameters()])
    set_rate(me.optimizer, me.spec.train, me.round, me.settings.num_server_rounds)
    metrics = local_epochs(me)
    if gates:
        metrics["gate"] = torch.cat([gate.g for gate in gates]).abs().mean().item()
    fold(encoder)
    return me.reply({"model": me.model.state_dict()}, metrics)


def completed(me: Participant, encoder: nn.Module) -> dict[str, Tensor]:
    """W_out by layer, kept for the next rounds. Of a layer of which only a hash has come, it is the weight of this hash
    that was kept, or else the own one. UserError: neither is."""
    aux, kept = me.received("aux"), me.kept()
    for layer, wanted in me.received("same").items():
        own = encoder.get_submodule(layer).get_parameter("weight").detach().clone()
        found = [W for W in (kept.get(layer, own), own) if torch.equal(wire.content_hash(W), wanted)]
        if not found:
            raise UserError(f"{me.name} has lost the W_out that came before; it will be sent whole the next time")
        aux[layer] = found[0]
    if aux:
        me.save(aux)
    return aux


class Gate(nn.Module):
    """W -> W + g W_out."""

    def __init__(self, W_out: Tensor, learns: bool) -> None:
        super().__init__()
        self.g = nn.Parameter(W_out.new_zeros(1))
        self.W_out = nn.Parameter(W_out, requires_grad=learns)

    def forward(self, W: Tensor) -> Tensor:
        return W + self.g * self.W_out


def gate(encoder: nn.Module, aux: Mapping[str, Tensor], learns: bool) -> list[Gate]:
    """Put a gate on every layer of the encoder that ``aux`` has a weight for."""
    gates = []
    for name, layer in linears(encoder).items():
        if name in aux:
            gates.append(Gate(aux[name].to(layer.weight.device), learns))
            parametrize.register_parametrization(layer, "weight", gates[-1])
    return gates


def fold(encoder: nn.Module) -> None:
    """Make each gated weight a plain one of the same value."""
    for layer in [module for module in encoder.modules() if parametrize.is_parametrized(module)]:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
