#define _GNU_SOURCE
#include "team.h"

#include <sched.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Looks at the others before a thread gives its core away, some 40 us: the shares of a phase end within a few of each
 * other, a wake-up costs 50. A thread that waits longer has lost its partner's core to another process: on the core
 * given away the partner can go on. */
enum { LOOKS = 2000 };

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void sk_team_leave_cpu(int cpu, int threads) {
#if defined(__linux__)
    cpu_set_t all, others;
    if (sched_getcpu() != cpu || sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < threads) return;
    others = all;
    CPU_CLR(cpu, &others);
    if (!sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof all, &all);
#else
    (void)cpu, (void)threads;
#endif
}

static void sleep_while(sk_team *team, unsigned turn) {
#if defined(__linux__)
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->turn) == turn) syscall(SYS_futex, &team->turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
    sk_team_leave_cpu(atomic_load_explicit(&team->waker_cpu, memory_order_relaxed), team->threads);
#else
    while (atomic_load(&team->turn) == turn) sched_yield();
#endif
}

static void wake_all(sk_team *team) {
#if defined(__linux__)
    if (!atomic_load(&team->sleepers)) return;
    atomic_store_explicit(&team->waker_cpu, sched_getcpu(), memory_order_relaxed);
    syscall(SYS_futex, &team->turn, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
    (void)team;
#endif
}

static int homes(int threads) { return threads < SK_HOMES ? threads : SK_HOMES; }

void sk_team_start(sk_team *team, int threads) {
    atomic_init(&team->turn, 0);
    atomic_init(&team->sleepers, 0);
    atomic_init(&team->waker_cpu, -1);
    atomic_init(&team->arrived, 0);
    atomic_init(&team->taken, 0);
    for (int i = 0; i < homes(threads); i++) atomic_init(&team->home[i].taken, 0);
    team->threads = threads;
}

void sk_team_wait(sk_team *team) {
    unsigned turn = atomic_load_explicit(&team->turn, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->threads) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->taken, 0, memory_order_relaxed);
        for (int i = 0; i < homes(team->threads); i++)
            atomic_store_explicit(&team->home[i].taken, 0, memory_order_relaxed);
        atomic_store(&team->turn, turn + 1);
        wake_all(team);
        return;
    }
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load_explicit(&team->turn, memory_order_acquire) != turn) return;
        relax();
    }
    sleep_while(team, turn);
}

sk_range sk_team_take(sk_team *team, int64_t count, int64_t least, int64_t most) {
    long long taken = atomic_load_explicit(&team->taken, memory_order_relaxed);
    for (;;) {
        int64_t left = count - taken, share = left / (2 * team->threads);
        if (share > most) share = most;
        if (share < least) share = least;
        if (share > left) share = left;
        if (!share) return (sk_range){count, count};
        if (atomic_compare_exchange_weak_explicit(&team->taken, &taken, taken + share, memory_order_relaxed,
                                                  memory_order_relaxed))
            return (sk_range){taken, taken + share};
    }
}

int64_t sk_team_next(sk_team *team) { return atomic_load_explicit(&team->taken, memory_order_relaxed); }

/* Return the items of a home that are left when `taken` of them are. */
static sk_range left_of(int home, int homes, int64_t count, unsigned long long taken) {
    int64_t front = (int64_t)(taken & UINT32_MAX), back = (int64_t)(taken >> 32);
    return (sk_range){count * home / homes + front, count * (home + 1) / homes - back};
}

/* Items that a thread would take, the home they are in (-1: nothing is left), and what had been taken of it. */
typedef struct {
    sk_range range;
    int home;
    unsigned long long taken;
} choice;

/* From the front of the caller's own home; when that is done, from the back of the next one that has some left. */
static choice choose(sk_team *team, int thread, int64_t count, int64_t least) {
    int many = homes(team->threads);
    for (int i = 0; i < many; i++) {
        int home = (thread + i) % many;
        unsigned long long taken = atomic_load_explicit(&team->home[home].taken, memory_order_relaxed);
        sk_range left = left_of(home, many, count, taken);
        int64_t share = (left.end - left.begin + 1) / 2;
        if (share < least) share = least;
        if (share > left.end - left.begin) share = left.end - left.begin;
        if (!share) continue;
        int64_t begin = home == thread ? left.begin : left.end - share;
        return (choice){{begin, begin + share}, home, taken};
    }
    return (choice){{count, count}, -1, 0};
}

sk_range sk_team_take_home(sk_team *team, int thread, int64_t count, int64_t least) {
    for (;;) {
        choice c = choose(team, thread, count, least);
        if (c.home < 0) return c.range;
        unsigned long long share = (unsigned long long)(c.range.end - c.range.begin);
        unsigned long long after = c.taken + (c.home == thread ? share : share << 32);
        if (atomic_compare_exchange_strong_explicit(&team->home[c.home].taken, &c.taken, after, memory_order_relaxed,
                                                    memory_order_relaxed))
            return c.range;
    }
}

int64_t sk_team_next_home(sk_team *team, int thread, int64_t count) {
    return choose(team, thread, count, 1).range.begin;
}
