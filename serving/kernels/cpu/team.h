/* Threads that compute a step together: where they wait for one another, and how they share the work in between.
 *
 * Not OpenMP's barrier: a process with more of libgomp's threads than cores (torch keeps a pool for every thread that
 * called it) has them sleep at once, and a step has hundreds of barriers: on two cores half its time went there.
 */
#ifndef SERVING_KERNELS_TEAM_H
#define SERVING_KERNELS_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

/* Threads beyond so many have no share of their own to begin with. */
enum { SK_HOMES = 64 };

/* One thread's share: how many of its items were taken from its front (low half) and from its back (high half). */
typedef struct {
    _Alignas(64) atomic_ullong taken;
} sk_home;

/* One per parallel region: start before it, with as many threads as will call sk_team_wait. */
typedef struct {
    _Alignas(64) atomic_uint turn;  /* how often all have met */
    atomic_int sleepers;
    atomic_int waker_cpu;           /* where the last thread to arrive was */
    _Alignas(64) atomic_int arrived;
    int threads;
    _Alignas(64) atomic_llong taken;  /* of the items of this phase */
    sk_home home[SK_HOMES];           /* of a phase whose items have homes */
} sk_team;

typedef struct {
    int64_t begin, end;
} sk_range;

void sk_team_start(sk_team *team, int threads);

/* Returns when every thread of the team has called it; what they wrote before is seen after. */
void sk_team_wait(sk_team *team);

/* The caller goes on on another processor if it is on this one and there are as many as threads.
 *
 * Linux wakes a thread on the processor of whoever wakes it when its own is busy for a moment, and from then on sees no
 * reason to part the two: one sleeps while the other computes, beside an idle processor, for seconds. So a thread that
 * wakes up on its waker's processor leaves it. Keeping each thread on a processor of its own was slower: another
 * process that has one of them would hold up the step. */
void sk_team_leave_cpu(int cpu, int threads);

/* Take the next items, of `count` in all, for the caller; an empty range when all are taken. At first up to `most` at
 * once, at last `least`: threads end together, though another process, or another machine on the same processor, may
 * hold one of them up. One such loop between two calls of sk_team_wait, in which every thread gives the same
 * numbers. */
sk_range sk_team_take(sk_team *team, int64_t count, int64_t least, int64_t most);

/* The same for items that have a home: thread t of T begins with those from t/T to (t+1)/T of them, so that what it
 * wrote or read of them in the phase before is in its own caches. A thread that has done its own takes half of
 * another's remaining items, from the back. `thread` from 0. At least one item at once. */
sk_range sk_team_take_home(sk_team *team, int thread, int64_t count, int64_t least);

/* Return where the caller's next items begin unless another thread takes some before: a guess, good enough to fetch
 * by. */
int64_t sk_team_next(sk_team *team);
int64_t sk_team_next_home(sk_team *team, int thread, int64_t count);

#endif
