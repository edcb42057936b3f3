/* Calls of weir_socket.h beside the C library's: which socket is whose. Prints what is wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weir_socket.h>

static int wrong;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);             \
            wrong = 1;                                                                             \
        }                                                                                          \
    } while (0)

static struct sockaddr_in at(const char *ip, int port) {
    struct sockaddr_in made = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &made.sin_addr);
    return made;
}

#define ADDRESS(name) (struct sockaddr *)&name, sizeof name

int main(int count, char **arguments) {
    struct sockaddr_in own = at("192.0.2.5", 4000), local = at("127.0.0.1", 4000);
    struct sockaddr_in far = at("198.51.100.7", 4000), kernel = at("192.0.2.1", 4001);
    struct weir_link link = {"tap0", count > 1 ? arguments[1] : NULL, NULL};
    CHECK(weir_socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == ENETDOWN);
    CHECK(weir_open(NULL, 1) == -1 && errno == EINVAL);
    CHECK(weir_open(&link, 0) == -1 && errno == EINVAL);
    CHECK(strlen(weir_open_error()) > 0);
    CHECK(weir_open(&link, 1) == 0);
    CHECK(weir_open(&link, 1) == -1 && errno == EALREADY);
    CHECK(weir_socket(AF_UNIX, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT);
    CHECK(weir_socket(AF_INET, SOCK_RAW, 0) == -1 && errno == EPROTONOSUPPORT);

    /* The kernel has not the address that weir has, and the other way round. */
    int theirs = socket(AF_INET, SOCK_DGRAM, 0), ours = weir_socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(theirs, ADDRESS(own)) == -1 && errno == EADDRNOTAVAIL);
    CHECK(weir_bind(ours, ADDRESS(local)) == -1 && errno == EADDRNOTAVAIL);
    CHECK(weir_bind(ours, ADDRESS(own)) == 0);
    CHECK(weir_sendto(ours, "x", 1, 0, ADDRESS(far)) == -1 && errno == ENETUNREACH);
    CHECK(bind(theirs, ADDRESS(kernel)) == 0);

    /* Both ways between them, by both names of calls. */
    char bytes[10];
    CHECK(weir_sendto(ours, "out", 3, 0, ADDRESS(kernel)) == 3);
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    CHECK(recvfrom(theirs, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len) == 3);
    CHECK(from.sin_addr.s_addr == own.sin_addr.s_addr && from.sin_port == own.sin_port);
    CHECK(sendto(theirs, "back", 4, 0, ADDRESS(own)) == 4);
    struct pollfd ready = {.fd = ours, .events = POLLIN};
    CHECK(poll(&ready, 1, 10000) == 1 && ready.revents == POLLIN);
    CHECK(read(ours, bytes, sizeof bytes) == 4 && memcmp(bytes, "back", 4) == 0);
    int flag = 1, got = 0;
    len = sizeof got;
    CHECK(weir_setsockopt(ours, SOL_SOCKET, SO_BROADCAST, &flag, sizeof flag) == 0);
    CHECK(weir_getsockopt(ours, SOL_SOCKET, SO_BROADCAST, &got, &len) == 0 && got == 1);

    /* A connection between two of weir's, and its end in a child. */
    struct sockaddr_in name = {0};
    len = sizeof name;
    int listener = weir_socket(AF_INET, SOCK_STREAM, 0), client = weir_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(weir_bind(listener, ADDRESS(own)) == 0 && weir_listen(listener, 1) == 0);
    CHECK(weir_connect(client, ADDRESS(own)) == 0);
    int server = weir_accept(listener, NULL, NULL);
    CHECK(server >= 0);
    CHECK(weir_getpeername(client, (struct sockaddr *)&name, &len) == 0);
    CHECK(name.sin_port == own.sin_port);
    CHECK(weir_getsockname(server, (struct sockaddr *)&name, &len) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(weir_write(server, "child", 5) == 5);
        // It has its parent's sockets, and opens no others.
        int other = weir_socket(AF_INET, SOCK_DGRAM, 0);
        CHECK(weir_bind(other, ADDRESS(own)) == -1 && errno == ENETDOWN);
        _exit(wrong);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(weir_recv(client, bytes, 5, MSG_WAITALL) == 5 && memcmp(bytes, "child", 5) == 0);
    CHECK(weir_shutdown(server, SHUT_WR) == 0);
    CHECK(weir_read(client, bytes, sizeof bytes) == 0);
    CHECK(weir_close(client) == 0 && close(server) == 0 && weir_close(listener) == 0);
    CHECK(weir_close(client) == -1 && errno == EBADF);
    return wrong;
}
