"""All of torch's own suite of backends on ours: a program, `python torch_whole.py`; half an hour.

Many of its tests are kept for backends that it knows by name. They run as for Gloo here, and
whatever group they make is ours. Only events of torch's profiler are not looked for: those of Gloo
are made in torch's C++ classes, under Gloo's name.
"""

import os

os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "3"}
os.environ.setdefault("TEMP_DIR", "/tmp")

import torch.distributed as dist
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

import hpcpar.interop.torch

_init = dist.init_process_group


def init_ours(*args, backend=None, **kwargs):
    """Make the default group, ours whatever was asked for."""
    return _init(*args, backend=hpcpar.interop.torch.NAME, **kwargs)


_get_backend = dist.get_backend


def get_backend(group=None):
    """Say that ours is Gloo, once torch has checked the group."""
    return "gloo" if _get_backend(group) == hpcpar.interop.torch.NAME else "none"


class TestOurs(TestDistBackend, DistributedTest._DistTestBase):
    """Its tests, each on three processes of its own."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, *args, **kwargs):
        dist.init_process_group = init_ours
        dist.get_backend = dist.distributed_c10d.get_backend = get_backend
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()
        super()._run(*args, **kwargs)

    def test_ddp_logging_data_cpu(self):
        """Compare the name that DDP's logger was told with the true one."""
        dist.get_backend = _get_backend
        super().test_ddp_logging_data_cpu()


if __name__ == "__main__":
    run_tests()
