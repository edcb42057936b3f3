/*
 * weir_socket.h: TCP and UDP sockets of weir's own host, for programs in C.
 *
 * weir_open gives the process a host with its own links and addresses. The
 * sockets that weir_socket makes are that host's; the calls on them are those of
 * socket(2), bind(2), connect(2) and so on, with the same arguments, results and
 * errno. The process's other sockets stay the kernel's.
 *
 *     struct weir_link link = {"tap0", "192.0.2.5/24", "192.0.2.1"};
 *     if (weir_open(&link, 1) != 0)
 *         errx(1, "%s", weir_open_error());
 *     int listener = weir_socket(AF_INET, SOCK_STREAM, 0);
 *
 * A socket is a descriptor. poll(2), select(2) and epoll(7) wait for it beside the
 * kernel's, by level and by edge; dup(2), fcntl(2) and ioctl(2) take it, and
 * close(2), read(2), write(2) and the others do what the calls here do.
 *
 * One process has a link. A child of fork(2) shares its sockets with the process,
 * and opens no others. Peers get what was written when the process exits by
 * exit(3), within 5 s. What differs from the kernel's sockets, and the options that
 * there are, is in docs/reference/exec.md.
 *
 * Threads may call everything here at the same time, and handlers of signals what
 * POSIX lets them call, if they were installed after weir_open. Build with
 * `cargo build --release -p weir-exec`, and link with `-lweir_exec`
 * (libweir_exec.so, in target/release or /usr/lib/weir). The library also defines
 * the C library's calls on sockets and descriptors, and passes on what is not
 * weir's: link it ahead of the C library, as -l does.
 */
#ifndef WEIR_SOCKET_H
#define WEIR_SOCKET_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mmsghdr;
struct timespec;

/* A link of the host, and the host's configuration on it. */
struct weir_link {
    const char *name;      /* "tap0": a TAP interface; "port:eth0": a port of weir's
                              broker, beside the kernel on that interface;
                              "shm:lan": a link in shared memory */
    const char *addresses; /* with the length of their network, such as
                              "192.0.2.5/24 2001:db8::5/64", "dhcp" or "auto" */
    const char *gateways;  /* routers to all other networks, or NULL */
};

/* Starts the process's host on 1 to 16 links, and waits for addresses that are
 * assigned. Returns 0, or -1 with errno: EINVAL for what is wrong in `links`,
 * EALREADY if the process has a host, or why a link cannot be opened. */
int weir_open(const struct weir_link *links, size_t count);

/* Why this thread's last weir_open failed; valid until its next one. */
const char *weir_open_error(void);

/* A socket of the host: AF_INET or AF_INET6, SOCK_STREAM or SOCK_DGRAM, also with
 * SOCK_NONBLOCK and SOCK_CLOEXEC. Others are EAFNOSUPPORT or EPROTONOSUPPORT;
 * without a host it is ENETDOWN. */
int weir_socket(int domain, int type, int protocol);

int weir_bind(int fd, const struct sockaddr *address, socklen_t len);
int weir_listen(int fd, int backlog);
int weir_accept(int fd, struct sockaddr *address, socklen_t *len);
int weir_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int weir_connect(int fd, const struct sockaddr *address, socklen_t len);
int weir_shutdown(int fd, int how);
int weir_close(int fd);

ssize_t weir_read(int fd, void *to, size_t len);
ssize_t weir_write(int fd, const void *from, size_t len);
ssize_t weir_readv(int fd, const struct iovec *parts, int count);
ssize_t weir_writev(int fd, const struct iovec *parts, int count);
ssize_t weir_recv(int fd, void *to, size_t len, int flags);
ssize_t weir_send(int fd, const void *from, size_t len, int flags);
ssize_t weir_recvfrom(int fd, void *to, size_t len, int flags, struct sockaddr *address,
                      socklen_t *address_len);
ssize_t weir_sendto(int fd, const void *from, size_t len, int flags,
                    const struct sockaddr *address, socklen_t address_len);
ssize_t weir_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t weir_sendmsg(int fd, const struct msghdr *message, int flags);
int weir_recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags,
                  struct timespec *timeout);
int weir_sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags);

int weir_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int weir_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int weir_getsockname(int fd, struct sockaddr *address, socklen_t *len);
int weir_getpeername(int fd, struct sockaddr *address, socklen_t *len);

#ifdef __cplusplus
}
#endif

#endif
