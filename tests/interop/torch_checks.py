"""What torch's programs do, on the backend "hpcpar": run as a rank of a job. See test_torch.py."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import hpcpar.interop.torch  # noqa: F401

OPS = {
    "SUM": lambda rows: rows.sum(0),
    "PRODUCT": lambda rows: rows.prod(0),
    "MIN": lambda rows: rows.min(0).values,
    "MAX": lambda rows: rows.max(0).values,
}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64]


def mine(rank, count=6, dtype=torch.float32):
    return ((torch.arange(count) * (rank + 2)) % 5 + 1).to(dtype)


def everyone(count=6, dtype=torch.float32):
    return torch.stack([mine(r, count, dtype) for r in range(dist.get_world_size())])


def ended(work):
    work.wait()
    assert work.is_completed()
    assert work.is_success()


def check_reductions(rank, size):
    for dtype in DTYPES:
        for name, fold in OPS.items():
            want = fold(everyone(dtype=dtype)).to(dtype)
            for async_op in (False, True):
                x = mine(rank, dtype=dtype)
                work = dist.all_reduce(x, getattr(dist.ReduceOp, name), async_op=async_op)
                assert (work is not None) == async_op
                if async_op:
                    ended(work)
                assert torch.equal(x, want), (dtype, name, x, want)
    x = mine(rank)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert torch.allclose(x, everyone().mean(0))
    x = mine(rank, dtype=torch.int32)
    dist.all_reduce(x, dist.ReduceOp.BXOR)
    rows = everyone(dtype=torch.int32)
    want = rows[0]
    for row in rows[1:]:
        want = want ^ row
    assert torch.equal(x, want)
    x = torch.complex(mine(rank), -mine(rank))
    dist.all_reduce(x)
    assert torch.equal(x, torch.complex(everyone().sum(0), -everyone().sum(0)))
    wide = torch.zeros(6, 4)
    wide[:, 1] = mine(rank)
    dist.all_reduce(wide[:, 1])  # not contiguous
    assert torch.equal(wide[:, 1], everyone().sum(0))
    assert not wide[:, [0, 2, 3]].any()
    for root in range(size):
        x = mine(rank)
        dist.reduce(x, root)
        assert rank != root or torch.equal(x, everyone().sum(0))


def check_moves(rank, size):
    rows = everyone()
    for root in range(size):
        x = mine(rank)
        dist.broadcast(x, root)
        assert torch.equal(x, rows[root])
        got = [torch.zeros(6) for _ in range(size)] if rank == root else None
        dist.gather(mine(rank), got, dst=root)
        assert rank != root or torch.equal(torch.stack(got), rows)
        x = torch.zeros(6)
        dist.scatter(x, list(rows) if rank == root else None, src=root)
        assert torch.equal(x, mine(rank))
    got = [torch.zeros(6) for _ in range(size)]
    ended(dist.all_gather(got, mine(rank), async_op=True))
    assert torch.equal(torch.stack(got), rows)
    whole = torch.zeros(size, 6)
    dist.all_gather_into_tensor(whole, mine(rank))
    assert torch.equal(whole, rows)
    whole.zero_()
    whole[rank] = mine(rank)
    dist.all_gather_into_tensor(whole, whole[rank])  # in place
    assert torch.equal(whole, rows)
    out = torch.zeros(2)
    cut = torch.arange(2.0 * size) * (rank + 1)
    want = (torch.arange(2.0 * size) * size * (size + 1) / 2)[2 * rank : 2 * rank + 2]
    dist.reduce_scatter_tensor(out, cut)
    assert torch.equal(out, want)
    out.zero_()
    ended(dist.reduce_scatter(out, list(cut.view(size, 2)), async_op=True))
    assert torch.equal(out, want)
    lists = [torch.full((r + 1,), float(rank)) for r in range(size)]
    got = [torch.zeros(rank + 1) for _ in range(size)]
    dist.all_to_all(got, lists)
    assert all((x == r).all() for r, x in enumerate(got))
    even = torch.arange(2.0 * size).view(2 * size, 1) + 100 * rank
    out = torch.zeros_like(even)
    dist.all_to_all_single(out, even)
    assert out.flatten().tolist() == [100.0 * r + 2 * rank + i for r in range(size) for i in (0, 1)]
    sent = [r + 1 for r in range(size)]
    taken = [rank + 1] * size
    x = torch.full((sum(sent), 2), float(rank))
    out = torch.zeros(sum(taken), 2)
    ended(dist.all_to_all_single(out, x, taken, sent, async_op=True))
    assert out[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]


def check_several_at_once(rank, size):
    xs = [mine(rank, n) for n in (1, 3, 5)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert all(torch.equal(x, everyone(x.numel()).sum(0)) for x in xs)
    outs = [torch.zeros(size * n) for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, n in zip(outs, (2, 3), strict=True):
            dist.all_gather_into_tensor(out, mine(rank, n))
    manager.wait()
    assert all(torch.equal(o, everyone(n).flatten()) for o, n in zip(outs, (2, 3), strict=True))
    out = [torch.zeros(1), torch.zeros(2)]
    with dist._coalescing_manager():
        for x in out:
            dist.reduce_scatter_tensor(x, torch.ones(size * x.numel()))
    assert all((x == size).all() for x in out)


def check_messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    x = torch.zeros(6)
    if rank == 0:
        dist.send(mine(rank), after, tag=3)
        dist.recv(x, before, tag=3)
    else:
        assert dist.recv(x, None if size == 2 else before, tag=3) == before
        dist.send(mine(rank), after, tag=3)
    assert torch.equal(x, mine(before))
    for count in (6, 300_000):
        x = torch.zeros(count)
        ops = [
            dist.P2POp(dist.isend, mine(rank, count), after),
            dist.P2POp(dist.irecv, x, before),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert torch.equal(x, mine(before, count))
    if rank == 0:
        dist.send_object_list([{"from": rank}], after)
    elif rank == 1:
        got = [None]
        assert dist.recv_object_list(got, 0) == 0
        assert got == [{"from": 0}]


def check_objects(rank, size):
    got = [None] * size
    dist.all_gather_object(got, {"rank": rank, "x": torch.ones(rank)})
    assert [g["rank"] for g in got] == list(range(size))
    one = [("from", rank), rank]
    dist.broadcast_object_list(one, src=size - 1)
    assert one == [("from", size - 1), size - 1]
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(size)] if rank == 0 else None)
    assert out == [f"for {rank}"]
    taken = [None] * size if rank == 0 else None
    dist.gather_object(rank, taken)
    assert rank or taken == list(range(size))


def check_groups(rank, size):
    pair = dist.new_group([size - 1, 0], timeout=timedelta(seconds=20))
    again = dist.new_group(list(range(size)))
    if rank in (0, size - 1):
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        assert x == 2
        assert dist.get_group_rank(pair, rank) == [0, size - 1].index(rank)
    x = torch.ones(1)
    dist.all_reduce(x, group=again)
    assert x == size
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    dist.all_reduce(x, group=mesh.get_group("dp"))
    assert x == size * size
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(x, group=gloo)
    assert x == size**3
    dist.destroy_process_group(again)


def check_futures(rank, size):
    x = mine(rank)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    assert torch.equal(doubled, 2 * everyone().sum(0))
    done = dist.distributed_c10d._get_default_group().allreduce([x]).get_future().wait()
    assert torch.equal(done[0], everyone().sum(0) * size)


def raises(kind, call, text):
    try:
        call()
    except kind as error:
        said = str(error)
    else:
        said = "nothing was raised"
    assert text in said, said


def check_refusals(rank, size):
    raises(TypeError, lambda: dist.all_reduce(torch.ones(1, device="meta")), "dense CPU tensors")
    raises(
        (ValueError, RuntimeError),
        lambda: dist.all_gather_into_tensor(torch.zeros(size * 2 + 1), torch.ones(2)),
        "all_gather",
    )
    raises(
        (ValueError, RuntimeError),
        lambda: dist.all_to_all_single(
            torch.zeros(size), torch.zeros(size), [9] * size, [1] * size
        ),
        "split sizes",
    )
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2 + rank)), "shape")
    raises(
        RuntimeError,
        lambda: dist.all_reduce(torch.ones(2 + rank), async_op=True).wait(),
        "shape",
    )
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size


def trained(rank, group, wrap):
    """Return the weights after three steps on this rank's own data."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = wrap(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]


def ddp(model, group):
    return torch.nn.parallel.DistributedDataParallel(model, process_group=group)


def fsdp(model, group):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def check_training(rank, size):
    """DDP and FSDP2 give the weights that Gloo gives, to the bit on 2 ranks."""
    ours, gloo = dist.new_group(), dist.new_group(backend="gloo")
    for wrap in (ddp, fsdp):
        pairs = zip(trained(rank, ours, wrap), trained(rank, gloo, wrap), strict=True)
        for a, b in pairs:
            assert torch.equal(a, b) if size == 2 else torch.allclose(a, b, atol=1e-6), wrap


def check_dtensor(rank, size):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.arange(7.0 * 5).view(7, 5)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.full_tensor(), whole)
    assert torch.equal(
        (columns.t() @ rows.redistribute(placements=[Replicate()])).full_tensor(), whole.t() @ whole
    )
    parts = DTensor.from_local(whole, mesh, [Partial()])
    assert torch.equal(parts.full_tensor(), whole * size)
    assert torch.equal(parts.redistribute(placements=[Shard(0)]).full_tensor(), whole * size)


def check_checkpoint(rank, size):
    import shutil
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor

    where = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(where)
    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).view(6, 2)
    dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=where[0])
    state = {"w": distribute_tensor(torch.zeros(6, 2), mesh, [Shard(1)])}
    dcp.load(state, checkpoint_id=where[0])
    assert torch.equal(state["w"].full_tensor(), whole)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(where[0])


CHECKS = {name[6:]: check for name, check in globals().items() if name.startswith("check_")}


def main():
    dist.init_process_group("hpcpar", timeout=timedelta(seconds=60))
    assert dist.get_backend() == "hpcpar"
    for name in sys.argv[1:] or CHECKS:
        CHECKS[name](dist.get_rank(), dist.get_world_size())
        dist.barrier()
        if dist.get_rank() == 0:
            print(name, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
