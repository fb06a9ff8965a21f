"""Several calls as one: blocking, begun and waited for later, with errors on the way."""

from functools import partial

import pytest

from hpcpar.comm.chained import run_chained
from hpcpar.errors import CollectiveTimeout, UnsupportedError


def both(group, x, then="max"):
    total = yield partial(group.all_reduce, x)
    return total, (yield partial(group.all_reduce, total + group.rank, then))


@pytest.mark.sizes(1, 2, 3)
def test_one_after_the_other(ranks):
    def body(group):
        right = (group.size, 2 * group.size - 1)
        assert run_chained("both", both(group, 1)) == right
        first, second = (run_chained("both", both(group, x), async_op=True) for x in (1, 2))
        assert first.wait() == right
        assert second.wait() == (2 * group.size, 3 * group.size - 1)
        assert first.done()
        assert first.exception() is None

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_nothing_to_call_is_done_at_once(ranks):
    def none():
        yield from ()
        return 7

    def body(group):
        assert run_chained("none", none()) == 7
        work = run_chained("none", none(), async_op=True)
        assert work.done()
        assert work.wait() == 7

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_an_error_on_the_way_ends_it(ranks):
    def body(group):
        with pytest.raises(UnsupportedError, match="band"):
            run_chained("both", both(group, 1.0, "band"))
        work = run_chained("both", both(group, 1.0, "band"), async_op=True)
        with pytest.raises(UnsupportedError, match="band"):
            work.wait()
        assert isinstance(work.exception(), UnsupportedError)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(2)
def test_waiting_may_end_before_the_calls_do(ranks):
    def body(group):
        if group.rank == 0:
            work = run_chained("both", both(group, 1), async_op=True)
            with pytest.raises(CollectiveTimeout, match=r"both: wait: not done after 0\.05 s"):
                work.wait(0.05)
            assert not work.done()
            group.send(0, 1)
        else:
            group.recv(0)
            work = run_chained("both", both(group, 1), async_op=True)
        assert work.wait() == (2, 3)

    ranks(body)
