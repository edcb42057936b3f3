/* Threads that are cancelled in calls on sockets, and after that the sockets. Arguments: an own address, and
   one with the transport port where bytes are echoed. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in own, peer;
static int stream, datagrams, listener, pipes[2], set, plain;
static volatile int cleaned;

static void clean(void *none)
{
    (void)none;
    if (send(stream, "", 0, MSG_NOSIGNAL) != 0)
        perror("send in a cleanup handler");
    cleaned++;
}

static int dial(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (const struct sockaddr *)to, sizeof *to) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static int echoes(int fd)
{
    char bytes[5] = {0};
    return send(fd, "hello", 5, 0) == 5 && recv(fd, bytes, 5, MSG_WAITALL) == 5 &&
           memcmp(bytes, "hello", 5) == 0;
}

static void in_poll(void) { struct pollfd one = {stream, POLLIN, 0}; poll(&one, 1, -1); }
static void in_poll_of_both(void)
{
    struct pollfd both[2] = {{stream, POLLIN, 0}, {pipes[0], POLLIN, 0}};
    poll(both, 2, -1);
}
static void in_poll_of_pipe(void) { struct pollfd one = {pipes[0], POLLIN, 0}; poll(&one, 1, -1); }
static void in_ppoll(void) { struct pollfd one = {stream, POLLIN, 0}; ppoll(&one, 1, NULL, NULL); }
static void in_select(void)
{
    fd_set fds;
    FD_ZERO(&fds);
    FD_SET(stream, &fds);
    select(stream + 1, &fds, NULL, NULL, NULL);
}
static void in_select_of_pipe(void)
{
    fd_set fds;
    FD_ZERO(&fds);
    FD_SET(pipes[0], &fds);
    select(pipes[0] + 1, &fds, NULL, NULL, NULL);
}
static void in_epoll(void) { struct epoll_event one[8]; epoll_wait(set, one, 8, -1); }
static void in_epoll_p(void) { struct epoll_event one[8]; epoll_pwait(set, one, 8, -1, NULL); }
static void in_epoll_of_pipe(void) { struct epoll_event one[8]; epoll_wait(plain, one, 8, -1); }
static void in_read(void) { char byte; if (read(stream, &byte, 1) < 0) perror("read"); }
static void in_readv(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    if (readv(stream, &part, 1) < 0)
        perror("readv");
}
static void in_recv(void) { char bytes[9]; recv(stream, bytes, 9, MSG_WAITALL); }
static void in_recvfrom(void) { char byte; recvfrom(datagrams, &byte, 1, 0, NULL, NULL); }
static void in_recvmsg(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    recvmsg(datagrams, &message, 0);
}
static void in_recvmmsg(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    recvmmsg(datagrams, &message, 1, 0, NULL);
}
static void in_accept(void) { accept(listener, NULL, NULL); }
static void in_accept4(void) { accept4(listener, NULL, NULL, SOCK_CLOEXEC); }
static void in_read_of_pipe(void) { char byte; if (read(pipes[0], &byte, 1) < 0) perror("read"); }
static void in_splice(void) { splice(stream, NULL, pipes[1], NULL, 100, 0); }
static void in_connect(void)
{
    struct sockaddr_in silent = own;
    inet_pton(AF_INET, "192.0.2.77", &silent.sin_addr);
    connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&silent, sizeof silent);
}
static void in_write(void)
{
    static char zeros[1 << 16];
    int fd = dial(&peer);
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
}
/* The call is over by then; the next point ends the thread. */
static void by_number(void)
{
    struct pollfd one = {stream, POLLIN, 0};
    pthread_cancel(pthread_self());
    if (syscall(SYS_ppoll, &one, 1, &(struct timespec){0, 1000000}, NULL, 8) == 0)
        printf("by number: over, ");
    fflush(stdout);
    pthread_testcancel();
}
/* The bytes stay: a call does not begin in a thread that is to end. */
static void before_read(void)
{
    char bytes[5];
    struct pollfd one = {stream, POLLIN, 0};
    if (send(stream, "hello", 5, 0) != 5 || poll(&one, 1, -1) != 1)
        perror("echo");
    pthread_cancel(pthread_self());
    if (read(stream, bytes, 5) < 0)
        perror("read");
}
static void switched_off(void)
{
    struct pollfd one = {stream, POLLIN, 0};
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    printf("switched off: %d, ", poll(&one, 1, 200));
    fflush(stdout);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
}

struct call {
    const char *name;
    void (*run)(void);
    int ms;
};

static void *run(void *call)
{
    pthread_cleanup_push(clean, NULL);
    for (;;)
        ((struct call *)call)->run();
    pthread_cleanup_pop(0);
    return NULL;
}

static int join(pthread_t thread, void **result)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 15;
    return pthread_timedjoin_np(thread, result, &limit);
}

static void check(const char *where, const struct call *call)
{
    pthread_t thread;
    void *result = NULL;
    cleaned = 0;
    pthread_create(&thread, NULL, run, (void *)call);
    usleep(call->ms * 1000);
    pthread_cancel(thread);
    int joined = join(thread, &result);
    if (call->run == before_read) {
        char bytes[5];
        printf("left %d, ", (int)recv(stream, bytes, 5, MSG_DONTWAIT));
    }
    printf("%s %s: %s, %d cleaned, %s\n", where, call->name,
           joined != 0 ? "not ended" : result == PTHREAD_CANCELED ? "cancelled" : "returned", cleaned,
           echoes(stream) ? "echoes" : "is dead");
    fflush(stdout);
    if (joined != 0)
        _exit(1);
}

static const struct call calls[] = {
    {"poll", in_poll, 30},
    {"poll of both", in_poll_of_both, 30},
    {"poll of a pipe", in_poll_of_pipe, 30},
    {"ppoll", in_ppoll, 30},
    {"select", in_select, 30},
    {"select of a pipe", in_select_of_pipe, 30},
    {"epoll_wait", in_epoll, 30},
    {"epoll_pwait", in_epoll_p, 30},
    {"epoll_wait of a pipe", in_epoll_of_pipe, 30},
    {"read", in_read, 30},
    {"readv", in_readv, 30},
    {"recv", in_recv, 30},
    {"recvfrom", in_recvfrom, 30},
    {"recvmsg", in_recvmsg, 30},
    {"recvmmsg", in_recvmmsg, 30},
    {"accept", in_accept, 30},
    {"accept4", in_accept4, 30},
    {"read of a pipe", in_read_of_pipe, 30},
    {"splice", in_splice, 30},
    {"connect", in_connect, 30},
    {"write", in_write, 500},
    {"by number", by_number, 30},
    {"before a read", before_read, 200},
    {"switched off", switched_off, 30},
};

static void check_all(const char *where)
{
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++)
        check(where, &calls[at]);
}

static void leave(int signal)
{
    (void)signal;
    pthread_exit((void *)7);
}

/* A handler that ends its thread in a wait, which is unwinding too. */
static void check_exit(void)
{
    static const struct call call = {"exit", in_poll, 30};
    pthread_t thread;
    void *result = NULL;
    signal(SIGUSR1, leave);
    cleaned = 0;
    pthread_create(&thread, NULL, run, (void *)&call);
    usleep(50000);
    pthread_kill(thread, SIGUSR1);
    int joined = join(thread, &result);
    printf("exit in a handler: %d, %ld, %d cleaned, %s\n", joined, (long)result, cleaned,
           echoes(stream) ? "echoes" : "is dead");
}

static void *echo(void *none)
{
    (void)none;
    int fd = dial(&peer);
    for (;;)
        if (!echoes(fd))
            printf("no echo\n");
    return NULL;
}

/* Whenever a thread is cancelled. */
static void check_often(void)
{
    int ended = 0;
    for (int round = 0; round < 150; round++) {
        pthread_t threads[2];
        void *result;
        for (int at = 0; at < 2; at++)
            pthread_create(&threads[at], NULL, echo, NULL);
        usleep(round * 37 % 3000);
        for (int at = 0; at < 2; at++)
            pthread_cancel(threads[at]);
        for (int at = 0; at < 2; at++)
            ended += join(threads[at], &result) == 0 && result == PTHREAD_CANCELED;
    }
    printf("often: %d ended, %s\n", ended, echoes(stream) ? "echoes" : "is dead");
}

int main(int count, char **words)
{
    int status;
    if (count != 4 || inet_pton(AF_INET, words[1], &own.sin_addr) != 1 ||
        inet_pton(AF_INET, words[2], &peer.sin_addr) != 1)
        return 2;
    own.sin_family = peer.sin_family = AF_INET;
    own.sin_port = htons(4000);
    peer.sin_port = htons(atoi(words[3]));
    stream = dial(&peer);
    datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    connect(datagrams, (struct sockaddr *)&peer, sizeof peer);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) != 0 || listen(listener, 8) != 0) {
        perror("listen");
        return 1;
    }
    if (pipe2(pipes, O_CLOEXEC) != 0)
        return 1;
    struct epoll_event event = {.events = EPOLLIN};
    set = epoll_create1(0);
    plain = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, stream, &event);
    epoll_ctl(plain, EPOLL_CTL_ADD, pipes[0], &event);
    check_all("alone:");
    check_exit();
    check_often();
    /* From here on the processes share the sockets. */
    fflush(stdout);
    if (fork() == 0) {
        check_all("child:");
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    printf("child %d\n", status);
    check_all("parent:");
    return 0;
}
