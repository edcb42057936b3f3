/*
 * Calls the functions of weir_port.h as its standard input says, a call a line,
 * and prints a line for each.
 */
#define _POSIX_C_SOURCE 200809L

#include "weir_port.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define FRAMES 256

static struct weir_port *port;

static void failed(void)
{
    printf("failed: %s\n", weir_port_error());
}

static void result(int number)
{
    if (number < 0)
        failed();
    else
        printf("%d\n", number);
}

/* FLAGS SNAP_LEN BROKER INTERFACE FILTER; without a broker `-`. */
static void opens(char *text)
{
    struct weir_port_options options = {.size = sizeof options};
    char broker[108], interface[16];
    int end = 0;

    if (sscanf(text, "%" SCNu32 " %" SCNu32 " %107s %15s %n", &options.flags,
               &options.snap_len, broker, interface, &end) != 4)
        abort();
    if (strcmp(broker, "-") != 0)
        options.broker = broker;
    port = weir_port_open(interface, text + end, &options);
    if (port)
        printf("opened, link type %d\n", weir_port_linktype(port));
    else
        failed();
}

/* Each frame as captured length/length: its last four bytes. */
static void receives(char *text)
{
    struct weir_port_frame frames[FRAMES];
    long long timeout_us;
    int most, count;

    if (sscanf(text, "%d %lld", &most, &timeout_us) != 2 || most > FRAMES)
        abort();
    count = weir_port_recv(port, frames, (size_t)most, timeout_us);
    if (count < 0) {
        failed();
        return;
    }
    printf("%d", count);
    for (int i = 0; i < count; i++) {
        const struct weir_port_frame *frame = &frames[i];
        const uint8_t *last = frame->bytes + frame->caplen - 4;
        printf(" %" PRIu32 "/%" PRIu32 ":%02x%02x%02x%02x", frame->caplen,
               frame->len, last[0], last[1], last[2], last[3]);
        if (frame->flags & WEIR_PORT_OUTGOING)
            printf("o");
        if (frame->flags & WEIR_PORT_CUT)
            printf("c");
        if (frame->time_ns < 1000000000 || frame->lost_before > 0)
            printf("?");
    }
    printf("\n");
}

static uint8_t frame[64] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0,
                            0,    0,    0,    9,    0x88, 0xb5};

static void sends(char *text)
{
    struct iovec frames[16];
    int count = atoi(text);

    for (int i = 0; i < count && i < 16; i++)
        frames[i] = (struct iovec){frame, sizeof frame};
    result(count == 1 ? weir_port_send(port, frame, sizeof frame)
                      : weir_port_send_batch(port, frames, (size_t)count));
}

static void polls(char *text)
{
    struct pollfd fd = {.fd = weir_port_fd(port), .events = POLLIN};
    result(poll(&fd, 1, atoi(text)));
}

static void counts(void)
{
    struct weir_port_counters now;
    if (weir_port_counters(port, &now) < 0)
        failed();
    else
        printf("delivered %" PRIu64 " lost %" PRIu64 " sent %" PRIu64
               " refused %" PRIu64 "\n",
               now.delivered, now.lost, now.sent, now.refused);
}

static void *waits(void *result)
{
    *(int *)result = weir_port_wait(port, 60000000);
    return NULL;
}

/* Another thread waits for the frames of this one's peer, while this one sends,
 * changes the filter, and sees its own messages. */
static void threads(char *filter)
{
    pthread_t other;
    int waited = -1, sent;

    if (pthread_create(&other, NULL, waits, &waited) != 0)
        abort();
    /* Until it sleeps, or not: both must do. */
    poll(NULL, 0, 50);
    sent = weir_port_send(port, frame, sizeof frame);
    if (weir_port_set_filter(port, filter) < 0)
        failed();
    printf("sent %d\n", sent);
    fflush(stdout);
    if (pthread_join(other, NULL) != 0)
        abort();
    printf("waited %d\n", waited);
}

/* Calls whose arguments can be seen to be wrong. */
static void wrong(char *interface)
{
    struct weir_port_options old = {.size = 8};
    struct weir_port_options flags = {.size = sizeof flags, .flags = 0x30};
    struct weir_port_options high = {.size = sizeof high, .priority = 65536};
    struct weir_port_options share = {.size = sizeof share, .fanout = "4/4"};
    struct weir_port_options shorter = {
        .size = offsetof(struct weir_port_options, fanout),
        .priority = 65536,
        .fanout = "4/4",
    };
    struct iovec none = {NULL, 60};
    struct weir_port_frame to;

    if (weir_port_open(NULL, NULL, NULL) ||
        weir_port_open(interface, "\xff", NULL) ||
        weir_port_open(interface, NULL, &flags) ||
        weir_port_open(interface, NULL, &high) ||
        weir_port_open(interface, NULL, &old) ||
        strncmp(weir_port_error(), "options: a size of 8 bytes", 26) != 0)
        abort();
    if (weir_port_open(interface, NULL, &share) ||
        strncmp(weir_port_error(), "options: fanout: `4/4` is no share", 34) ||
        weir_port_open(interface, NULL, &shorter) ||
        strncmp(weir_port_error(), "options: priority 65536", 23) != 0)
        abort();
    if (weir_port_recv(NULL, &to, 1, 0) != -1 ||
        weir_port_wait(NULL, 0) != -1 || weir_port_fd(NULL) != -1 ||
        weir_port_linktype(NULL) != -1 || weir_port_counters(NULL, NULL) != -1 ||
        weir_port_set_filter(NULL, "") != -1 ||
        weir_port_send(NULL, frame, 60) != -1 ||
        weir_port_recv(port, NULL, 1, 0) != -1 ||
        weir_port_recv(port, &to, 0, 0) != -1 ||
        weir_port_counters(port, NULL) != -1 ||
        weir_port_set_filter(port, NULL) != -1 ||
        weir_port_send(port, NULL, 60) != -1 ||
        weir_port_send_batch(port, &none, 1) != -1 ||
        weir_port_send_batch(port, NULL, 1) != -1 ||
        weir_port_send(port, frame, (size_t)-1) != -1 ||
        weir_port_send_batch(port, NULL, 0) != 0)
        abort();
    weir_port_close(NULL);
    printf("all refused\n");
}

int main(void)
{
    char line[512];

    while (fgets(line, sizeof line, stdin)) {
        char *text = strchr(line, ' ');
        line[strcspn(line, "\n")] = '\0';
        text = text ? text + 1 : line + strlen(line);
        if (strncmp(line, "open ", 5) == 0)
            opens(text);
        else if (strncmp(line, "recv ", 5) == 0)
            receives(text);
        else if (strncmp(line, "wait ", 5) == 0)
            result(weir_port_wait(port, atoll(text)));
        else if (strncmp(line, "poll ", 5) == 0)
            polls(text);
        else if (strncmp(line, "filter ", 7) == 0)
            result(weir_port_set_filter(port, text));
        else if (strncmp(line, "send ", 5) == 0)
            sends(text);
        else if (strncmp(line, "threads ", 8) == 0)
            threads(text);
        else if (strncmp(line, "wrong ", 6) == 0)
            wrong(text);
        else if (strcmp(line, "counters") == 0)
            counts();
        else if (strcmp(line, "close") == 0)
            weir_port_close(port), puts("closed");
        else
            abort();
        fflush(stdout);
    }
    return 0;
}
