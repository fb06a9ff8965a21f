"""Modules under our DDP, beside torch's own over Gloo: a rank of a job. See test_torch.py."""

import warnings

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


def large_gradients_are_copied_past_the_caches(group):
    torch.manual_seed(3)
    model = torch.nn.Linear(600, 500)  # 1.2 MB, and 2 kB
    ddp = DDP(params_of(model), group=group)
    attached = attach(ddp, model)
    xs = [torch.full((4, 600), 0.5 + r) for r in range(group.size)]
    mean = sum(xs[r].sum(0) for r in range(group.size)) / group.size
    for weight in (None, 2.0):
        for _ in range(2):
            with attached.step(weight):
                model(xs[group.rank]).sum().backward()
            assert torch.all(model.weight.grad == mean)
        with ddp.no_sync(), attached.step(weight):
            model(xs[group.rank]).sum().backward()
        with attached.step(weight):
            model(3 * xs[group.rank]).sum().backward()
        assert torch.all(model.weight.grad == mean * (4 if weight is None else 2))
    with attached.step():
        loss = (model.weight.t() * torch.arange(500.0)).sum()  # a gradient with other strides
        (loss + model.bias.sum()).backward()
    assert torch.all(model.weight.grad == torch.arange(500.0)[:, None])


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


def settled(group):
    """Return a model under a DDP after some steps, the batch of all ranks, and its gradients."""
    model = make(torch.float64).eval()
    ddp = DDP(params_of(model), group=group)
    attached = attach(ddp, model)
    x = batch(0, torch.float64)
    for _ in range(3):
        with attached.step():
            loss_of(model, x).backward()
            places = [p.grad.data_ptr() for p in model.parameters()]
        assert places == [p.grad.data_ptr() for p in model.parameters()]
    return model, ddp, attached, x, [p.grad.clone() for p in model.parameters()]


def gradients_are(model, expected):
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, grad, rtol=1e-12)


def small_gradients_lie_in_their_buckets(group):
    model, _, attached, x, expected = settled(group)
    with attached.step(), warnings.catch_warnings():  # torch sets these itself, with their graph
        warnings.simplefilter("ignore")
        loss_of(model, x).backward(create_graph=True)
    gradients_are(model, expected)
    assert not any(p.grad.requires_grad for p in model.parameters())
    for forgotten in (True, False):  # an optimizer that sets gradients to None, or to zero
        torch.optim.SGD(model.parameters(), lr=0.0).zero_grad(set_to_none=forgotten)
        with attached.step():
            loss_of(model, x).backward()
        gradients_are(model, expected)


def micro_steps_of_any_kind_add_up(group):
    model, ddp, attached, x, once = settled(group)
    twice = [2 * grad for grad in once]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ddp.no_sync(), attached.step():
            loss_of(model, x).backward(create_graph=True)
        with attached.step():
            loss_of(model, x).backward(create_graph=True)
    gradients_are(model, twice)
    with ddp.no_sync(), attached.step():
        loss_of(model, x).backward()
    with attached.step():
        torch.optim.SGD(model.parameters(), lr=0.0).zero_grad(set_to_none=False)
        loss_of(model, x).backward()
    gradients_are(model, twice)
    with ddp.no_sync(), ddp.step() as step:  # made elsewhere
        for name, grad in zip(ddp.params, once, strict=True):
            step.put(name, grad.numpy())
    with attached.step():
        loss_of(model, x).backward()
    gradients_are(model, twice)


def parameters_may_freeze_and_thaw(group):
    for late in (1, 2, 4):
        model = make(torch.float64).eval()
        ddp = DDP(params_of(model), group=group, unused="zero")
        attached = attach(ddp, model)
        x = batch(group.rank, torch.float64)
        for number in range(7):
            model[0].requires_grad_(not late <= number < late + 2)
            with attached.step():
                loss_of(model, x).backward()
            assert bool(model[0].weight.grad.any()) == model[0].weight.requires_grad
        attached.detach()


def orders_may_change(group):
    torch.manual_seed(7)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(4)]).double()
    attached = attach(DDP(params_of(layers), group=group, bucket_nbytes=300), layers)
    for number in range(5):
        x = torch.full((2, 4), 1.0 + group.rank, dtype=torch.float64)
        order = list(layers) if number % 2 else list(layers)[::-1]
        with attached.step():
            for layer in order:
                layer(x).sum().backward()
        mean = 2 * (1 + (group.size - 1) / 2)
        assert all(torch.all(layer.weight.grad == mean) for layer in layers)


def static_steps_of_several_passes(group):
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 2) for _ in range(3)]).double()
    ddp = DDP(params_of(layers), group=group, static=True, unused="zero")
    attached = attach(ddp, layers)
    x = torch.ones(4, 3, dtype=torch.float64)
    for _ in range(4):
        with attached.step():
            for _ in range(2):
                (layers[0](x) + layers[1](x)).sum().backward()
        assert [layer.bias.grad.sum().item() for layer in layers] == [16, 16, 0]


def what_got_no_gradient_has_none(group):
    torch.manual_seed(5)
    model = torch.nn.ModuleList([torch.nn.Linear(3, 2) for _ in range(3)]).double()
    x = torch.ones(4, 3, dtype=torch.float64)
    by_policy = {"zero": [1.0, 0.0], "skip": [1.0, None]}
    for policy, (own, other) in by_policy.items():
        ddp = DDP(params_of(model), group=group, unused=policy)
        attached = attach(ddp, model)
        for used in (0, 1, 0):
            with attached.step():
                (model[used](x).sum() / 4).backward()
            for number, layer in enumerate(model):
                want = own if number == used else other
                got = layer.bias.grad
                assert (got is None) if want is None else torch.all(got == want), (policy, number)
        attached.detach()
    ddp = DDP(params_of(model), group=group)
    attached = attach(ddp, model)
    with pytest.raises(ArgumentError, match=r"missing gradients: 1\.weight"), attached.step():
        (model[0](x) + model[2](x)).sum().backward()
    assert all(p.grad is None for p in model.parameters())


def a_second_pass_after_the_bucket_left_is_told(group):
    model = make(torch.float64).eval()
    ddp = DDP(params_of(model), group=group, first_bucket_nbytes=1, bucket_nbytes=1)
    attached = attach(ddp, model)
    x = batch(group.rank, torch.float64)
    for _ in range(2):
        with attached.step():
            loss_of(model, x).backward()
    with pytest.raises(ArgumentError, match="reported twice"), attached.step():
        loss_of(model, x).backward()
        if group.rank == group.size - 1:  # no hook sees it: the bucket's last is not among them
            torch.autograd.backward([model[1].bias.sum()])
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
        large_gradients_are_copied_past_the_caches,
        half_types_and_frozen_parameters,
        two_backward_passes_in_a_step,
        small_gradients_lie_in_their_buckets,
        micro_steps_of_any_kind_add_up,
        parameters_may_freeze_and_thaw,
        orders_may_change,
        static_steps_of_several_passes,
        what_got_no_gradient_has_none,
        a_second_pass_after_the_bucket_left_is_told,
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
