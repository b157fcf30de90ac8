"""Threads of a step: they wait for one another and share work, also where there are more of them than cores."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.cores import available_cores
from serving.kernels.library import load_library
from tests.native_caller import compiled, needs_compiler

pytestmark = needs_compiler

# In every round each thread marks the items it took; after the barrier one of them looks whether all are marked once.
CALLER = """
#include <stdint.h>
#include <sched.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif
typedef struct { int64_t begin, end; } range;
typedef void start_function(void *, int);
typedef void wait_function(void *);
typedef range take_function(void *, int64_t, int64_t, int64_t);
typedef range take_home_function(void *, int, int64_t, int64_t);
/* Returns how many items were not marked exactly once, or 1000000 when a thread got fewer or more than it may. */
int64_t run(start_function *start, wait_function *wait, take_function *take, int threads, int rounds, int64_t count,
            int64_t least, int64_t most, int32_t *marks) {
    _Alignas(64) char team[8192];
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

/* The same for items with homes. Thread `late` begins when others have done all; -1: nobody is late.
 * `own`: how many items threads took of their own homes. */
int64_t run_home(start_function *start, wait_function *wait, take_home_function *take, int threads, int rounds,
                 int64_t count, int64_t least, int late, int32_t *marks, int64_t *own) {
    _Alignas(64) char team[8192];
    int64_t wrong = 0, done = 0, mine_all = 0;
    start(team, threads);
#pragma omp parallel num_threads(threads) reduction(+ : mine_all)
    for (int round = 0; round < rounds; round++) {
        int thread = omp_get_thread_num();
        for (int64_t seen = 0; thread == late && seen < count; sched_yield()) {
#pragma omp atomic read
            seen = done;
        }
        for (range mine; (mine = take(team, thread, count, least)).begin < count;) {
            int64_t first = count * thread / threads, end = count * (thread + 1) / threads;
            int64_t size = mine.end - mine.begin;
            if (size < 1 || mine.begin < 0 || mine.end > count) {
#pragma omp atomic write
                wrong = 1000000;
                break;
            }
            for (int64_t i = mine.begin; i < mine.end; i++) {
                marks[i]++;
                mine_all += i >= first && i < end;
            }
#pragma omp atomic
            done += size;
            if (round % 7 == 0) sched_yield();
        }
        wait(team);
#pragma omp master
        {
            for (int64_t i = 0; i < count; i++) {
                if (marks[i] != 1) wrong++;
                marks[i] = 0;
            }
            done = 0;
        }
        wait(team);
    }
    *own = mine_all;
    return wrong;
}
"""


def addresses_of(*names: str) -> list[ctypes.c_void_p]:
    library = load_library()
    assert library is not None
    return [ctypes.cast(getattr(library.handle, name), ctypes.c_void_p) for name in names]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("team"), CALLER)


@pytest.fixture(scope="module")
def run(caller: ctypes.CDLL) -> Callable[..., int]:
    function = caller.run
    pointer, integer, many = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    function.argtypes = (pointer, pointer, pointer, integer, integer, many, many, many, pointer)
    function.restype = many
    addresses = addresses_of("sk_team_start", "sk_team_wait", "sk_team_take")

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


@pytest.fixture(scope="module")
def run_home(caller: ctypes.CDLL) -> Callable[..., tuple[int, int]]:
    """Items that were not done exactly once, and how many threads did of their own."""
    function = caller.run_home
    pointer, integer, many = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    function.argtypes = (pointer, pointer, pointer, integer, integer, many, many, integer, pointer, pointer)
    function.restype = many
    addresses = addresses_of("sk_team_start", "sk_team_wait", "sk_team_take_home")

    def call(threads: int, rounds: int, count: int, least: int, late: int = -1) -> tuple[int, int]:
        marks, own = (ctypes.c_int32 * max(count, 1))(), many()
        wrong = int(function(*addresses, threads, rounds, count, least, late, marks, ctypes.byref(own)))
        return wrong, own.value

    return call


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 70])
@pytest.mark.parametrize(("count", "least"), [(0, 1), (1, 1), (97, 1), (192, 4), (50, 4), (3, 4)])
def test_items_with_homes_are_done_once_too(
    run_home: Callable[..., tuple[int, int]], threads: int, count: int, least: int
) -> None:
    rounds = 300 if threads < 10 else 10
    assert run_home(threads, rounds, count, least)[0] == 0


def test_other_threads_do_the_work_a_late_thread_leaves_undone(run_home: Callable[..., tuple[int, int]]) -> None:
    # One of two does all 90 items, of which 45 are its own.
    assert run_home(2, 50, 90, 1, late=1) == (0, 50 * 45)


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
