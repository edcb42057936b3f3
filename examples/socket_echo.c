/*
 * An echo server on a host of weir's own: TCP and UDP, one thread, epoll.
 *
 * Usage: socket_echo LINK ADDRESSES PORT
 *   such as: socket_echo tap0 "192.0.2.5/24 2001:db8::5/64" 7007
 *
 * See include/weir_socket.h for how to build it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <weir_socket.h>

enum { EVENTS = 64, BYTES = 65536 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void watch(int set, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("epoll_ctl");
}

/* A socket at all addresses of the host, of both versions of IP. */
static int opened(int type, uint16_t port) {
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int fd = weir_socket(AF_INET6, type | SOCK_NONBLOCK, 0);
    if (fd < 0)
        fail("weir_socket");
    if (weir_bind(fd, (struct sockaddr *)&any, sizeof any) != 0)
        fail("weir_bind");
    return fd;
}

/* Sends all of it back; blocks the server while the peer takes nothing. */
static int echo(int fd, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t sent = weir_send(fd, bytes, len, MSG_NOSIGNAL);
        if (sent < 0)
            return -1;
        bytes += sent;
        len -= (size_t)sent;
    }
    return 0;
}

int main(int count, char **arguments) {
    static char bytes[BYTES];
    if (count != 4) {
        fprintf(stderr, "usage: %s LINK ADDRESSES PORT\n", arguments[0]);
        return 2;
    }
    struct weir_link link = {arguments[1], arguments[2], NULL};
    if (weir_open(&link, 1) != 0) {
        fprintf(stderr, "weir_open: %s\n", weir_open_error());
        return 1;
    }
    uint16_t port = (uint16_t)atoi(arguments[3]);
    int listener = opened(SOCK_STREAM, port);
    int datagrams = opened(SOCK_DGRAM, port);
    if (weir_listen(listener, 16) != 0)
        fail("weir_listen");
    int set = epoll_create1(EPOLL_CLOEXEC);
    watch(set, listener);
    watch(set, datagrams);
    fprintf(stderr, "ready\n");
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(set, events, EVENTS, -1);
        if (ready < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int at = 0; at < ready; at++) {
            int fd = events[at].data.fd;
            if (fd == listener) {
                int connection = weir_accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                if (connection >= 0)
                    watch(set, connection);
            } else if (fd == datagrams) {
                struct sockaddr_storage peer;
                socklen_t len = sizeof peer;
                ssize_t got = weir_recvfrom(fd, bytes, BYTES, 0, (struct sockaddr *)&peer, &len);
                if (got >= 0)
                    weir_sendto(fd, bytes, (size_t)got, 0, (struct sockaddr *)&peer, len);
            } else {
                ssize_t got = weir_recv(fd, bytes, BYTES, 0);
                if (got <= 0 || echo(fd, bytes, (size_t)got) != 0)
                    weir_close(fd);
            }
        }
    }
}
