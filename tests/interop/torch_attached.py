"""Modules under our DDP, beside torch's own over Gloo: a rank of a job. See test_torch.py."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hpcpar as hp
from hpcpar.errors import ArgumentError
from hpcpar.interop.torch import attach, buffers_of, params_of
from hpcpar.parallel import DDP, Cast


def make(dtype=torch.float32):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 4, bias=False)).to(dtype)


def batch(rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(6, 8, generator=generator).to(dtype)


def loss_of(model, x):
    return (model(x) ** 2).mean()


def gradients_are_torchs(group):
    ours, theirs = make(), torch.nn.parallel.DistributedDataParallel(make())
    ddp = DDP(params_of(ours), buffers=buffers_of(ours), group=group, first_bucket_nbytes=1)
    attached = attach(ddp, ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, theirs)]
    for number in range(4):
        with attached.step():
            loss_of(ours, batch(10 * number + group.rank)).backward()
        theirs.zero_grad()
        loss_of(theirs, batch(10 * number + group.rank)).backward()
        largest = max(float(q.grad.abs().max()) for q in theirs.parameters())
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (p.grad - q.grad).abs().max() <= 1e-6 * largest  # a bias before a norm has none
            shared = [np.shares_memory(p.grad.numpy(), grad) for grad in ddp.grads.values()]
            assert any(shared)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


def micro_steps_add_up(group):
    model, whole = make(torch.float64).eval(), make(torch.float64).eval()
    ddp = DDP(params_of(model), group=group)
    attached = attach(ddp, model)
    for weight in (None, 2.0):
        with ddp.no_sync(), attached.step(weight):
            loss_of(model, batch(0, torch.float64)).backward()
        assert all(p.grad is None for p in model.parameters())
        with attached.step(weight):
            loss_of(model, batch(1, torch.float64)).backward()
        whole.zero_grad()
        for number in (0, 1):
            loss_of(whole, batch(number, torch.float64)).backward()
        for p, q in zip(model.parameters(), whole.parameters(), strict=True):
            assert torch.allclose(p.grad, q.grad / (1 if weight is None else 2), rtol=1e-12)


def half_types_and_frozen_parameters(group):
    model = make(torch.bfloat16)
    model[0].bias.requires_grad_(False)
    ddp = DDP(params_of(model), group=group, grad_dtype="float32", hooks=[Cast("bfloat16")])
    attached = attach(ddp, model)
    with attached.step():
        loss_of(model, batch(group.rank, torch.bfloat16)).backward()
    assert model[0].weight.grad.dtype == torch.bfloat16
    assert ddp.grads["0.weight"].dtype == np.float32
    assert model[0].bias.grad is None
    attached.detach()
    loss_of(model, batch(0, torch.bfloat16)).backward()
    assert model[0].weight.grad is not None


def two_backward_passes_in_a_step(group):
    model = make(torch.float64).eval()
    x = batch(0, torch.float64)
    attached = attach(DDP(params_of(model), group=group, static=True), model)
    for _ in range(2):
        with attached.step():
            loss_of(model, x).backward()
            (2 * loss_of(model, x)).backward()
        once = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        (3 * loss_of(model, x)).backward()
        for p, grad in zip(model.parameters(), once, strict=True):
            assert torch.allclose(p.grad, grad, rtol=1e-12)
    ddp = DDP(params_of(model), group=group)
    attached.detach()
    attached = attach(ddp, model)
    with pytest.raises(ArgumentError, match="reported twice"), attached.step():
        loss_of(model, x).backward()
        loss_of(model, x).backward()
    with attached.step():
        loss_of(model, x).backward()


def what_is_refused(group):
    model = make()
    with pytest.raises(ArgumentError, match=r"'0.bias' is a parameter of the DDP or"):
        attach(DDP({}, group=group), model)
    model[0].weight = torch.nn.Parameter(torch.zeros(8, 16).t())
    with pytest.raises(ArgumentError, match=r"tensor '0.weight' is on cpu, with strides \(1, 16\)"):
        params_of(model)


def main():
    group = hp.init()
    dist.init_process_group("gloo")
    for check in (
        gradients_are_torchs,
        micro_steps_add_up,
        half_types_and_frozen_parameters,
        two_backward_passes_in_a_step,
        what_is_refused,
    ):
        check(group)
        group.barrier()
        if group.rank == 0:
            print(check.__name__, flush=True)
    dist.destroy_process_group()
    hp.shutdown()


if __name__ == "__main__":
    main()
