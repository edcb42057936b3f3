// What calls on descriptors that are no Internet sockets take: a line for each, its name and the least
// nanoseconds of many rounds. A listener at the address keeps weir's host running. With another argument
// the process first gets what weir's host brings along: a second thread, so that the kernel counts
// references of descriptors, and a filter of system calls (seccomp(2)).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 60, CALLS = 2000 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void check(const char *what, long result) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static void *idle(void *nothing) {
    pause();
    return nothing;
}

// Refuses io_uring_setup(2), as weir does.
static void filter(void) {
    struct sock_filter code[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
        {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, SYS_io_uring_setup},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | 1},
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    check("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    check("seccomp", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

#define MEASURE(name, count, call)                                \
    do {                                                          \
        double least = 1e18;                                      \
        for (int round = 0; round < ROUNDS; round++) {            \
            double began = now_ns();                              \
            for (int at = 0; at < CALLS; at++)                    \
                check(name, call);                                \
            double each = (now_ns() - began) / CALLS / count;     \
            if (each < least)                                     \
                least = each;                                     \
        }                                                         \
        printf("%s %.2f\n", name, least);                         \
    } while (0)

int main(int count, char **words) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(9)};
    if (count < 2 || inet_pton(AF_INET, words[1], &at.sin_addr) != 1)
        return 2;
    pthread_t thread;
    if (count > 2) {
        check("pthread_create", -pthread_create(&thread, NULL, idle, NULL));
        filter();
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check("bind", bind(listener, (struct sockaddr *)&at, sizeof at));
    check("listen", listen(listener, 5));
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    int pair[2], set = epoll_create1(0);
    check("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct epoll_event event = {.events = EPOLLIN}, ready[8];
    check("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event));
    struct pollfd fds[2] = {{pair[0], POLLIN, 0}, {pair[1], POLLIN, 0}};
    char byte = 1;
    struct iovec part = {&byte, 1};
    int bytes;
    MEASURE("read", 1, read(zero, &byte, 1));
    MEASURE("write", 1, write(null, &byte, 1));
    MEASURE("readv", 1, readv(zero, &part, 1));
    MEASURE("writev", 1, writev(null, &part, 1));
    MEASURE("send+recv", 2, send(pair[1], &byte, 1, 0) + recv(pair[0], &byte, 1, 0));
    MEASURE("fcntl", 1, fcntl(zero, F_GETFL));
    MEASURE("ioctl", 1, ioctl(pair[0], FIONREAD, &bytes));
    MEASURE("dup+close", 2, close(dup(zero)));
    MEASURE("poll", 1, poll(fds, 2, 0));
    MEASURE("epoll_wait", 1, epoll_wait(set, ready, 8, 0));
    return 0;
}
