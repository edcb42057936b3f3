/*
 * Prints the frames that a filter accepts, and their number at the end, which
 * comes by SIGINT or SIGTERM:
 *
 *     port_count eth0 'udp port 53'
 *
 *     cargo build --release -p weir-cport
 *     cc -O2 -Iinclude examples/port_count.c -Ltarget/release -lweirport -o port_count
 */
#include "weir_port.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#define FRAMES 64

static volatile sig_atomic_t asked_to_end;

static void ask(int number)
{
    (void)number;
    asked_to_end = 1;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weir_port_error());
    return 1;
}

static void print(const struct weir_port_frame *frame)
{
    printf("%" PRId64 ".%09" PRId64 " %s %" PRIu32 " bytes:",
           frame->time_ns / 1000000000, frame->time_ns % 1000000000,
           frame->flags & WEIR_PORT_OUTGOING ? "out" : "in", frame->len);
    for (uint32_t i = 0; i < frame->caplen; i++)
        printf(" %02x", frame->bytes[i]);
    printf("\n");
}

int main(int count, char **arguments)
{
    /* The link-layer header is enough. */
    struct weir_port_options options = {.size = sizeof options, .snap_len = 14};
    struct weir_port_frame frames[FRAMES];
    struct weir_port_counters counters;
    struct weir_port *port;
    unsigned long seen = 0;

    if (count != 2 && count != 3) {
        fprintf(stderr, "usage: port_count INTERFACE [FILTER]\n");
        return 2;
    }
    signal(SIGINT, ask);
    signal(SIGTERM, ask);
    port = weir_port_open(arguments[1], count == 3 ? arguments[2] : NULL,
                          &options);
    if (!port)
        return failed("open");
    fprintf(stderr, "ready\n");
    while (!asked_to_end) {
        /* A signal before the call does not interrupt it: hence the limit. */
        int received = weir_port_recv(port, frames, FRAMES, 200000);
        if (received < 0)
            return failed("recv");
        for (int i = 0; i < received; i++)
            print(&frames[i]);
        seen += (unsigned long)received;
        fflush(stdout);
    }
    if (weir_port_counters(port, &counters) < 0)
        return failed("counters");
    weir_port_close(port);
    printf("%lu frames, %" PRIu64 " lost\n", seen, counters.lost);
    return 0;
}
