/* Calls on sockets by number, as libuv's: what they return is printed. The argument is an address. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long said(const char *what, long result)
{
	if (result < 0)
		printf("%s %s\n", what, strerrorname_np(errno));
	else
		printf("%s %ld\n", what, result);
	return result;
}

static void exchange(struct sockaddr_in *at, long listener)
{
	socklen_t len = sizeof *at;
	char bytes[16] = "";
	long client = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	said("connect", syscall(SYS_connect, client, at, len));
	long peer = syscall(SYS_accept4, listener, NULL, NULL, SOCK_NONBLOCK);
	said("nothing", syscall(SYS_read, peer, bytes, sizeof bytes));
	said("sendto", syscall(SYS_sendto, client, "abcdef", 6, MSG_NOSIGNAL, NULL, 0));
	struct pollfd wait = { .fd = peer, .events = POLLIN };
	said("ppoll", syscall(SYS_ppoll, &wait, 1, NULL, NULL, 8));
	said("recvfrom", syscall(SYS_recvfrom, peer, bytes, 4, MSG_PEEK, NULL, NULL));
	struct iovec parts[2] = { { bytes, 2 }, { bytes + 2, 14 } };
	said("readv", syscall(SYS_readv, peer, parts, 2));
	puts(bytes);
	int on = 1, value = 0;
	socklen_t size = sizeof value;
	said("setsockopt", syscall(SYS_setsockopt, peer, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
	said("getsockopt", syscall(SYS_getsockopt, peer, SOL_SOCKET, SO_KEEPALIVE, &value, &size));
	printf("%d\n", value);
	int set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP };
	said("epoll_ctl", syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, peer, &event));
	/* With this the peer's end has to come. */
	said("close", syscall(SYS_close, client));
	said("epoll_pwait", syscall(SYS_epoll_pwait, set, &event, 1, 5000, NULL, 8));
	said("end", syscall(SYS_read, peer, bytes, sizeof bytes));
	said("close", syscall(SYS_close, peer));
	said("again", syscall(SYS_close, peer));
	said("closed", syscall(SYS_getsockname, peer, at, &len));
	syscall(SYS_close, set);
}

int main(int count, char **arguments)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof at;
	inet_pton(AF_INET, arguments[count - 1], &at.sin_addr);
	long listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	said("bind", syscall(SYS_bind, listener, &at, len));
	said("listen", syscall(SYS_listen, listener, 5));
	said("getsockname", syscall(SYS_getsockname, listener, &at, &len));
	/* The numbers of closed sockets are those of new descriptors. */
	for (int turn = 0; turn < 20; turn++)
		exchange(&at, listener);
	said("close", syscall(SYS_close, listener));
	said("unknown", syscall(-1));
	said("unknown", syscall(100000));
	printf("%d\n", syscall(SYS_getpid) == getpid());
	return 0;
}
