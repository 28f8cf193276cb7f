"""The launcher's banner is kept back, and every byte of the ranks passes on as it comes."""

import pytest

from hpcpipe.cluster.output import BannerFilter

RULE = b"=" * 83 + b"\n"
BANNER = (
    RULE
    + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 7543 RUNNING AT vm\n=   EXIT CODE: 9\n"
    + b"=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n"
    + RULE
    + b"[mpiexec@vm] Exit codes: [vm] 0,9,9\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    + b"This typically refers to a problem with your application.\nPlease see the FAQ page for debugging suggestions\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 83, 84, 4096])
def test_the_banner_is_kept_back_however_it_is_cut(size: int) -> None:
    data = b"step 1\n\x1b[2Kbar\rbar" + b"\n" + BANNER + b"last words\n"
    banner = BannerFilter()
    passed = b"".join(banner.feed(data[i : i + size]) for i in range(0, len(data), size)) + banner.close()
    assert passed == b"step 1\n\x1b[2Kbar\rbar\nlast words\n"
    assert banner.said == BANNER


@pytest.mark.parametrize("size", [1, 10, 4096])
def test_lines_of_the_ranks_that_look_like_the_banner_pass(size: int) -> None:
    data = RULE + b"=   PID 3\n" + RULE + b"[mpiexec@here] hello\n=== \n= " + RULE + b"="
    banner = BannerFilter()
    passed = b"".join(banner.feed(data[i : i + size]) for i in range(0, len(data), size)) + banner.close()
    assert passed == data
    assert banner.said == b""


def test_a_progress_bar_without_line_end_is_not_held_back() -> None:
    banner = BannerFilter()
    assert banner.feed(b"training 10%\r") == b"training 10%\r"
    assert banner.feed(b"training 20%\r") == b"training 20%\r"


def test_what_mpich_says_of_an_interrupt_is_kept_back_also_behind_a_progress_bar() -> None:
    own = (
        b"[mpiexec@vm] ",
        b"Sending Ctrl-C to processes as requested\n[mpiexec@vm] Press Ctrl-C again to force abort\n",
    )
    rank = b"Abort(130) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 130)\n"
    banner = BannerFilter()
    assert banner.feed(b"step 3/9 \x1b[38m--\x1b[0m") == b"step 3/9 \x1b[38m--\x1b[0m"
    assert [banner.feed(each) for each in (*own, rank)] == [b"", b"", b""]
    other = b"Abort(4) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 4) - process 1\n"
    assert banner.feed(other) == other
