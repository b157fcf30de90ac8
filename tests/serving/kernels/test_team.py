"""Threads of a step: they wait for one another and share work, also where there are more of them than cores."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.cores import available_cores
from serving.kernels.library import load_library
from tests.native_caller import compiled

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C compiler")

# In every round each thread marks the items it took; after the barrier one of them looks whether all are marked once.
CALLER = """
#include <stdint.h>
#include <sched.h>
typedef struct { int64_t begin, end; } range;
typedef void start_function(void *, int);
typedef void wait_function(void *);
typedef range take_function(void *, int64_t, int64_t, int64_t);
/* Returns how many items were not marked exactly once, or 1000000 when a thread got fewer or more than it may. */
int64_t run(start_function *start, wait_function *wait, take_function *take, int threads, int rounds, int64_t count,
            int64_t least, int64_t most, int32_t *marks) {
    _Alignas(64) char team[512];
    int64_t wrong = 0;
    start(team, threads);
#pragma omp parallel num_threads(threads)
    for (int round = 0; round < rounds; round++) {
        for (range mine; (mine = take(team, count, least, most)).begin < count;) {
            int64_t size = mine.end - mine.begin;
            if (size < 1 || size > most || mine.end > count || (size < least && mine.end < count)) {
#pragma omp atomic write
                wrong = 1000000;
                break;
            }
            for (int64_t i = mine.begin; i < mine.end; i++) marks[i]++;
            if (round % 7 == 0) sched_yield();
        }
        wait(team);
#pragma omp master
        for (int64_t i = 0; i < count; i++) {
            if (marks[i] != 1) wrong++;
            marks[i] = 0;
        }
        wait(team);
    }
    return wrong;
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    function = compiled(tmp_path_factory.mktemp("team"), CALLER).run
    pointer, integer, many = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    function.argtypes = (pointer, pointer, pointer, integer, integer, many, many, many, pointer)
    function.restype = many
    library = load_library()
    assert library is not None
    names = ("sk_team_start", "sk_team_wait", "sk_team_take")
    addresses = [ctypes.cast(getattr(library.handle, name), ctypes.c_void_p) for name in names]

    def call(threads: int, rounds: int, count: int, least: int, most: int) -> int:
        marks = (ctypes.c_int32 * max(count, 1))()
        return int(function(*addresses, threads, rounds, count, least, most, marks))

    return call


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(("count", "least", "most"), [(1, 1, 1), (97, 1, 97), (192, 2, 192), (50, 4, 8), (3, 4, 8)])
def test_every_item_is_done_once_before_anybody_goes_on(
    run: Callable[..., int], threads: int, count: int, least: int, most: int
) -> None:
    assert run(threads, 300, count, least, most) == 0


def test_no_items_are_no_work(run: Callable[..., int]) -> None:
    assert run(3, 50, 0, 1, 1) == 0


@pytest.mark.skipif(available_cores() < 2, reason="there is no other processor to go to")
def test_a_thread_leaves_a_processor_for_any_other_that_it_may_use() -> None:
    library = load_library()
    assert library is not None
    leave = library.handle.sk_team_leave_cpu
    leave.argtypes, leave.restype = (ctypes.c_int, ctypes.c_int), None
    here = ctypes.CDLL(None).sched_getcpu

    def checked() -> None:
        allowed = os.sched_getaffinity(0)
        two = set(sorted(allowed)[:2])
        os.sched_setaffinity(0, two)
        for _ in range(20):
            for cpu in two:
                os.sched_setaffinity(0, {cpu})
                leave(cpu, 1)  # nowhere else to go
                assert here() == cpu and os.sched_getaffinity(0) == {cpu}
                os.sched_setaffinity(0, two)
                at = here()
                # A moved thread may be moved again by the system: one that was not is seen in most of many tries.
                leave(at, 2)
                left.append(here() != at)
                assert os.sched_getaffinity(0) == two
                at = here()
                leave(at, 3)  # more threads than processors: somebody has to share
                stayed.append(here() == at)
                leave(next(iter(two - {here()})), 2)

    left: list[bool] = []
    stayed: list[bool] = []
    with ThreadPoolExecutor(1) as alone:  # its affinity ends with it
        alone.submit(checked).result()
    assert sum(left) > 30 and sum(stayed) > 30
