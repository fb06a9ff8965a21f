"""What reviewers of the backend tried on it: order, waiting, memory, forms. A rank of a job.

Like torch_checks.py, and run by test_torch.py too.
"""

import gc
import sys
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import hpcpar.interop.torch  # noqa: F401

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def mine(rank):
    return torch.arange(6.0) * (rank + 1)


def total(size):
    return torch.arange(6.0) * (size * (size + 1) / 2)


@check
def one_order(rank, size):
    """Blocking on one rank, asynchronous on the other."""
    for number in range(20):
        x = mine(rank)
        work = dist.all_reduce(x, async_op=(rank + number) % 2 == 0)
        y = mine(rank)
        dist.all_reduce(y)
        if work is not None:
            work.wait()
        assert torch.equal(x, total(size))
        assert torch.equal(y, total(size))


@check
def joined(rank, size):
    """torch's own join, which pairs the two kinds."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    with model.join():
        for _ in range(1 + rank):
            model(torch.ones(2, 4)).sum().backward()


@check
def own_queues(rank, size):
    """Two groups of all ranks, called in another order on each."""
    groups = [dist.new_group() for _ in range(2)]
    xs = [mine(rank) for _ in groups]
    works = [None, None]
    for at in (0, 1) if rank else (1, 0):
        works[at] = dist.all_reduce(xs[at], group=groups[at], async_op=True)
    for work, x in zip(works, xs, strict=True):
        work.wait()
        assert torch.equal(x, total(size))


@check
def waiting_in_callbacks(rank, size):
    def more(future):
        y = future.value()[0].clone()
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        work = dist.all_reduce(y, async_op=True)
        work.get_future().wait()
        return [y]

    x = mine(rank)
    future = dist.all_reduce(x, async_op=True).get_future().then(more)
    assert torch.equal(future.wait()[0], total(size) * size**2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        model(torch.ones(2, 64)).sum().backward()


@check
def futures_are_done_after_waiting(rank, size):
    x = torch.zeros(1000)
    for _ in range(300):
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()


@check
def nothing_is_kept(rank, size):
    from hpcpar.comm.frozen import ArrayLocks

    locks = [found for found in gc.get_objects() if isinstance(found, ArrayLocks)]
    died = []
    for _ in range(300):
        x = torch.zeros(100)
        died.append(weakref.ref(x))
        dist.all_reduce(x, async_op=True).wait()
        del x
    gc.collect()
    assert sum(ref() is not None for ref in died) <= 2
    assert locks
    assert not any(lock._counts for lock in locks)


@check
def storages_can_still_be_resized(rank, size):
    x = mine(rank)
    dist.all_reduce(x)
    x.resize_(60)
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    x.untyped_storage().resize_(0)


def strided(rank, *shape):
    wide = torch.zeros(*shape, 2)
    wide[..., 0] = mine(rank).view(shape)
    return wide[..., 0]


@check
def any_form(rank, size):
    """Not contiguous: on one rank only, as input, as output."""
    for form in (lambda r: strided(r, 2, 3), lambda r: mine(r).view(3, 2).t()):
        for who in (0, 1):
            x = form(rank) if rank == who else form(rank).contiguous()
            want = sum(form(r) for r in range(size))
            dist.all_reduce(x)
            assert torch.equal(x, want)
            y = form(rank) if rank == who else form(rank).contiguous()
            dist.broadcast(y, 1)
            assert torch.equal(y, form(1))
        out = strided(0, 6).new_zeros(size * 2, 3, 2)[..., 0]
        dist.all_gather_single(out, form(rank))
        assert torch.equal(out, torch.cat([form(r) for r in range(size)]))
        outs = [form(0).clone() for _ in range(size)]
        dist.all_gather(outs, form(rank))
        assert all(torch.equal(out, form(r)) for r, out in enumerate(outs))
        got = form(rank)
        dist.reduce_scatter_single(got, torch.cat([form(rank)] * size))
        assert torch.equal(got, sum(form(r) for r in range(size)))
    rows = torch.arange(2.0 * size).view(size, 2).t()  # (2, size), column by column
    sent = rows.t() + 100 * rank
    got = torch.zeros(2, size).t()
    dist.all_to_all_single(got, sent)
    assert torch.equal(got, torch.stack([rows.t()[rank] + 100 * r for r in range(size)]))
    if rank == 0:
        dist.send(strided(7, 6), 1)
    elif rank == 1:
        got = torch.zeros(6, 2)[:, 0]
        dist.recv(got, 0)
        assert torch.equal(got, mine(7))


@check
def split_sizes_on_one_rank(rank, size):
    x, out = torch.arange(2.0 * size), torch.zeros(2 * size)
    sizes = [2] * size if rank == 0 else None
    dist.all_to_all_single(out, x, sizes, sizes)
    assert torch.equal(out.view(size, 2), x.view(size, 2)[rank].expand(size, 2))


@check
def from_anybody(rank, size):
    got = torch.zeros(6)
    work = dist.irecv(got)
    dist.send(mine(rank), (rank + 1) % size)
    work.wait()
    assert torch.equal(got, mine((rank - 1) % size))
    group = dist.new_group(timeout=timedelta(seconds=1))
    for src in (None, (rank + 1) % size):
        with pytest.raises(dist.DistBackendError, match=" Timed out "):
            dist.recv(got, src, group=group)


@check
def a_monitored_barrier(rank, size):
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(timedelta(seconds=20))
    if rank == size - 1:
        return  # does not come
    said = (
        f"Rank {size - 1} failed to pass monitoredBarrier" if rank == 0 else "successfully reached"
    )
    with pytest.raises(dist.DistBackendError, match=said):
        group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)


@check
def sparse_sums(rank, size):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        places, values = [[0, rank], [rank, 1]], torch.tensor([1.0, 2.0], dtype=dtype)
        x = torch.sparse_coo_tensor(places, values, (size, size), check_invariants=True)
        want = torch.zeros(size, size, dtype=dtype)
        for r in range(size):
            want[0, r] += 1
            want[r, 1] += 2
        dist.all_reduce(x)
        assert torch.equal(x.to_dense(), want)
    none = torch.sparse_coo_tensor(size=(size, size), check_invariants=True)
    dist.all_reduce(none)
    assert not none.to_dense().any()


@check
def checkpoints_in_the_background(rank, size):
    import shutil
    import tempfile

    import torch.distributed.checkpoint as dcp

    where = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(where)
    dcp.async_save({"w": torch.ones(3)}, checkpoint_id=where[0]).result()
    state = {"w": torch.zeros(3)}
    dcp.load(state, checkpoint_id=where[0])
    assert state["w"].tolist() == [1, 1, 1]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(where[0])


@check
def again(rank, size):
    """Destroyed, with work on its way, and made again (torch's own store is slow to go)."""
    import tempfile

    where = [tempfile.mktemp() if rank == 0 else None]
    dist.broadcast_object_list(where)
    x = mine(rank)
    work = dist.all_reduce(x, async_op=True)
    dist.destroy_process_group()
    assert torch.equal(x, total(size))
    work.wait()
    place = f"file://{where[0]}"
    dist.init_process_group("hpcpar", init_method=place, rank=rank, world_size=size)
    dist.all_reduce(x)
    assert torch.equal(x, total(size) * size)


def main():
    dist.init_process_group("hpcpar", timeout=timedelta(seconds=60))
    for name, function in CHECKS.items():
        function(dist.get_rank(), dist.get_world_size())
        dist.barrier()
        if dist.get_rank() == 0:
            print(name, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:]:
        CHECKS = {name: CHECKS[name] for name in sys.argv[1:]}
    main()
