/*
 * Forwards all frames between two links, until SIGINT or SIGTERM:
 *
 *     tap_forward eth1 eth2 [PATH]      taps both; others may join by PATH
 *     tap_forward --join PATH           one more process on that tap
 *
 *     cargo build --release -p weir-ctap
 *     cc -O2 -Iinclude examples/tap_forward.c -Ltarget/release -lweirtap
 */
#include "weir_tap.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t asked_to_end;

static void ask(int number)
{
    (void)number;
    asked_to_end = 1;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weir_error());
    return 1;
}

/* A batch from one link to the other; how many, or -1. */
static long forward(struct weir *tap, int from, int to)
{
    struct weir_frame *frame;
    long count = 0;
    int taken = 1;

    while (count < 64 && (taken = weir_take(tap, from, &frame)) == 1) {
        if (weir_give(tap, to, frame) < 0)
            return -1;
        count++;
    }
    return taken < 0 ? -1 : count;
}

static int run(struct weir *tap)
{
    unsigned long frames = 0;

    fprintf(stderr, "ready\n");
    while (!asked_to_end) {
        if (weir_pull(tap, 0, 50000) < 0)
            return failed("pull");
        for (int from = 0; from < 2; from++) {
            long count = forward(tap, from, 1 - from);
            if (count < 0)
                return failed("forward");
            frames += (unsigned long)count;
        }
        if (weir_push(tap) < 0)
            return failed("push");
    }
    struct weir_census census;
    if (weir_unmap(tap, &census) < 0)
        return failed("unmap");
    printf("%lu frames; chunks: %u free, %u held\n", frames, census.free,
           census.process);
    return 0;
}

int main(int count, char **arguments)
{
    struct weir *tap;

    signal(SIGINT, ask);
    signal(SIGTERM, ask);
    if (count == 3 && strcmp(arguments[1], "--join") == 0) {
        tap = weir_join(arguments[2], NULL);
        return tap ? run(tap) : failed("join");
    }
    if (count != 3 && count != 4) {
        fprintf(stderr, "usage: tap_forward A B [PATH] | --join PATH\n");
        return 2;
    }
    tap = weir_map(NULL);
    if (!tap)
        return failed("map");
    int a = weir_tap(tap, arguments[1]);
    int b = a < 0 ? a : weir_tap(tap, arguments[2]);
    if (b < 0)
        return failed("tap");
    if (a == b) {
        fprintf(stderr, "tap: %s is one link: name another\n", arguments[1]);
        return 2;
    }
    if (count == 4 && weir_share(tap, arguments[3]) < 0)
        return failed("share");
    return run(tap);
}
