"""Some tests of torch's own suite of backends, as a rank of a job of 3: prints "N passed".

    mpiexec -n 3 python torch_suite.py FOLDER

Its tests start three processes each; here one job runs them all, one after the other. The names
are those of `torch.testing._internal.distributed.distributed_test`.
"""

import os
import sys
import traceback
from pathlib import Path

os.environ |= {"BACKEND": "hpcpar", "WORLD_SIZE": "3", "TEMP_DIR": sys.argv[1]}

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

import hpcpar.interop.torch  # noqa: F401

NAMES = """
Backend_enum_class DistributedDataParallelCPU DistributedDataParallelCPU_grad_is_view all_gather
all_gather_coalesced_complex all_gather_coalesced_simple all_gather_coalesced_with_empty
all_gather_complex all_gather_full_group all_gather_object_default_pg
all_reduce_coalesced_max_complex_unsupported all_reduce_complex_unsupported_ops
all_reduce_full_group_sum all_reduce_max all_reduce_min all_reduce_product all_reduce_sum
all_reduce_sum_async all_reduce_sum_complex all_to_all all_to_all_single_equal_split
all_to_all_single_unequal_split barrier_full_group broadcast gather gather_checks gather_object
get_future get_rank irecv isend reduce_min reduce_sum scatter scatter_object_list send_recv
send_recv_any_source
""".split()  # noqa: SIM905


class Suite(TestDistBackend, DistributedTest._DistTestBase):
    """Its tests, on ranks that are there."""


def main():
    dist.init_process_group("hpcpar")
    for name in ("barrier", "test_dir", "init_dir"):  # the suite's own barrier has files there
        (Path(sys.argv[1]) / name).mkdir(exist_ok=True)
    for name in NAMES:
        test = Suite(f"test_{name}")
        test.rank = dist.get_rank()
        torch.manual_seed(1)
        try:
            getattr(test, f"test_{name}")()
        except BaseException:  # also SystemExit and SkipTest: none of these is skipped
            traceback.print_exc()
            print(f"{name} failed on rank {dist.get_rank()}", file=sys.stderr, flush=True)
            os._exit(1)
        dist.barrier()
    if dist.get_rank() == 0:
        print(f"{len(NAMES)} passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
