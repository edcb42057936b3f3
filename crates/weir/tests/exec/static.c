/* A statically linked program, in several manners: see tests/exec/all.rs. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
	printf("%s: %s\n", what, strerrorname_np(errno));
	exit(1);
}

static struct sockaddr_in at(const char *ip, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &address.sin_addr);
	return address;
}

static int opened(const char *ip, int port)
{
	struct sockaddr_in to = at(ip, port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (void *)&to, sizeof to) < 0)
		fail("connect");
	return fd;
}

static int listening(const char *ip, int port, int flags)
{
	struct sockaddr_in own = at(ip, port);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (void *)&own, sizeof own) < 0)
		fail("bind");
	if (listen(fd, 16) < 0)
		fail("listen");
	return fd;
}

static void put(int fd, const char *from, size_t len)
{
	while (len > 0) {
		ssize_t count = write(fd, from, len);
		if (count < 0)
			fail("write");
		from += count;
		len -= count;
	}
}

/* Copies all that comes back, until its end. */
static void echo(int fd)
{
	static __thread char room[65536];
	ssize_t count;
	while ((count = read(fd, room, sizeof room)) > 0)
		put(fd, room, count);
	if (count < 0)
		fail("read");
	close(fd);
}

static char byte(size_t where)
{
	return (where * 2654435761u) >> 24;
}

struct flow {
	int fd;
	size_t len;
};

static void *sends(void *argument)
{
	struct flow *flow = argument;
	char room[40000];
	for (size_t sent = 0; sent < flow->len;) {
		size_t count = flow->len - sent < sizeof room ? flow->len - sent : sizeof room;
		for (size_t i = 0; i < count; i++)
			room[i] = byte(sent + i);
		put(flow->fd, room, count);
		sent += count;
	}
	shutdown(flow->fd, SHUT_WR);
	return NULL;
}

/* Sends bytes to an echo and compares what comes back. */
static void exchange(int fd, size_t len)
{
	struct flow flow = { fd, len };
	pthread_t thread;
	char room[65536];
	size_t got = 0;
	ssize_t count;
	pthread_create(&thread, NULL, sends, &flow);
	while ((count = read(fd, room, sizeof room)) > 0) {
		for (ssize_t i = 0; i < count; i++)
			if (room[i] != byte(got + i)) {
				printf("byte %zu differs\n", got + i);
				exit(1);
			}
		got += count;
	}
	pthread_join(thread, NULL);
	printf("%zu bytes\n", got);
	close(fd);
}

static void show(const char *what, int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_in address = { 0 };
	socklen_t len = sizeof address;
	char text[64];
	if (name(fd, (void *)&address, &len) < 0) {
		printf("%s %s\n", what, strerrorname_np(errno));
		return;
	}
	inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
	printf("%s %s %d\n", what, text, len);
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof value;
	if (getsockopt(fd, level, name, &value, &len) < 0)
		return -errno;
	return value;
}

/* A connection whose descriptor is in an epoll set before connect. */
static void early(const char *ip, int port)
{
	struct sockaddr_in to = at(ip, port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int copy = dup(fd), set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 77 };
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	epoll_wait(set, &event, 1, 0);
	if (connect(fd, (void *)&to, sizeof to) == 0 || errno != EINPROGRESS)
		fail("no EINPROGRESS");
	if (epoll_wait(set, &event, 1, 20000) != 1 || event.data.u64 != 77)
		fail("no event");
	int error = option(fd, SOL_SOCKET, SO_ERROR);
	printf("%s\n", error ? strerrorname_np(error) : "open");
	if (error)
		return;
	show("peer", copy, getpeername);
	printf("flags %d %d %d\n", !!(fcntl(fd, F_GETFL) & O_NONBLOCK), fcntl(fd, F_GETFD),
	       fcntl(copy, F_GETFD));
	event.events = EPOLLIN;
	if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) < 0)
		fail("EPOLL_CTL_MOD");
	put(copy, "early", 5);
	if (epoll_wait(set, &event, 1, 20000) != 1)
		fail("no data");
	char room[6] = "";
	read(fd, room, 5);
	printf("%s\n", room);
}

static void *serves(void *argument)
{
	echo((int)(long)argument);
	return NULL;
}

static void *one_client(void *argument)
{
	int fd = opened(argument, 7);
	char room[16];
	put(fd, "thread", 6);
	if (read(fd, room, 6) != 6 || memcmp(room, "thread", 6))
		fail("thread");
	close(fd);
	return NULL;
}

static void *one_accept(void *argument)
{
	accept((int)(long)argument, NULL, NULL);
	return NULL;
}

static void pass(int fd, int other)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &other, sizeof other);
	if (sendmsg(fd, &message, 0) < 0)
		fail("sendmsg");
}

static int passed(int fd)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	int other;
	if (recvmsg(fd, &message, 0) < 0)
		fail("recvmsg");
	memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof other);
	return other;
}

static void on_alarm(int signal)
{
	(void)signal;
}

/* Has a signal interrupt the call that waits a second later. */
static void interrupt(void)
{
	struct sigaction action = { .sa_handler = on_alarm };
	sigaction(SIGALRM, &action, NULL);
	alarm(1);
}

static void result(const char *what, int done)
{
	printf("%s %s\n", what, done < 0 ? strerrorname_np(errno) : "done");
}

/* Calls that fail, on sockets that are used on. */
static void again(const char *ip, const char *own, const char *silent)
{
	struct sockaddr_in to = at(silent, 7), from = at(own, 4005);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	/* The same registers, and another peer. */
	interrupt();
	result("interrupted", connect(fd, (void *)&to, sizeof to));
	to = at(ip, 7);
	result("connected", connect(fd, (void *)&to, sizeof to));
	show("peer", fd, getpeername);
	result("no address", connect(fd, (void *)1, sizeof to));
	exchange(fd, 1000);
	/* A bound socket outlives a connect and a listen that fail. */
	int other = listening(own, 4006, 0);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	bind(fd, (void *)&from, sizeof from);
	to = at(ip, 10);
	result("refused", connect(fd, (void *)&to, sizeof to));
	result("no address", connect(fd, (void *)1, sizeof to));
	to = at(ip, 7);
	result("connected", connect(fd, (void *)&to, sizeof to));
	show("own", fd, getsockname);
	close(fd);
	/* Time limits. */
	struct timeval limit = { .tv_usec = 200000 };
	setsockopt(other, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	result("accept", accept(other, NULL, NULL));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	to = at(silent, 7);
	result("connect", connect(fd, (void *)&to, sizeof to));
	result("connect", connect(fd, (void *)&to, sizeof to));
}

/* An epoll set that has a closed file by the number of a socket. */
static void stale(const char *ip)
{
	int pair[2], set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 };
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event);
	dup(pair[0]);
	close(pair[0]);
	int fd = opened(ip, 7);
	char room;
	put(fd, "x", 1);
	recv(fd, &room, 1, MSG_PEEK);
	printf("same %d events %d\n", fd == pair[0], epoll_wait(set, &event, 1, 0));
	close(fd);
}

static pthread_t first;

static void *outlives(void *argument)
{
	pthread_join(first, NULL);
	stale(argument);
	int fd = opened(argument, 7);
	show("peer", fd, getpeername);
	exchange(fd, 1000);
	exit(0);
}

int main(int count, char **words)
{
	const char *manner = words[1], *ip = words[2];
	setvbuf(stdout, NULL, _IOLBF, 0);
	(void)count;
	if (!strcmp(manner, "exit"))
		return 7;
	if (!strcmp(manner, "signal"))
		raise(SIGTERM);
	if (!strcmp(manner, "sleep")) {
		fprintf(stderr, "ready\n");
		for (;;)
			pause();
	}
	if (!strcmp(manner, "client")) {
		int fd = opened(ip, 7);
		show("peer", fd, getpeername);
		show("own", fd, getsockname);
		printf("type %d domain %d protocol %d\n", option(fd, SOL_SOCKET, SO_TYPE),
		       option(fd, SOL_SOCKET, SO_DOMAIN), option(fd, SOL_SOCKET, SO_PROTOCOL));
		exchange(fd, 64 << 20);
	} else if (!strcmp(manner, "early")) {
		early(ip, 7);
		early(ip, 10);
	} else if (!strcmp(manner, "refused")) {
		struct sockaddr_in to = at(ip, 10);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		connect(fd, (void *)&to, sizeof to);
		printf("%s\n", strerrorname_np(errno));
		to.sin_port = htons(7);
		printf("%d\n", connect(fd, (void *)&to, sizeof to));
	} else if (!strcmp(manner, "again")) {
		again(ip, words[3], words[4]);
	} else if (!strcmp(manner, "outlives")) {
		pthread_t thread;
		first = pthread_self();
		pthread_create(&thread, NULL, outlives, (void *)ip);
		pthread_exit(NULL);
	} else if (!strcmp(manner, "server")) {
		int listener = listening(ip, 4000, 0);
		show("own", listener, getsockname);
		printf("listens %d\n", option(listener, SOL_SOCKET, SO_ACCEPTCONN));
		for (int at = 0; at < 3; at++) {
			int fd = accept(listener, NULL, NULL);
			if (fd < 0)
				fail("accept");
			if (fork() == 0) {
				close(listener);
				echo(fd);
				exit(0);
			}
			close(fd);
			wait(NULL);
		}
		printf("served\n");
	} else if (!strcmp(manner, "epoll-server")) {
		int listener = listening(ip, 4000, SOCK_NONBLOCK), set = epoll_create1(0);
		struct epoll_event event = { .events = EPOLLIN };
		pthread_t threads[3];
		epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
		for (int at = 0; at < 3;) {
			struct sockaddr_in peer;
			socklen_t len = sizeof peer;
			epoll_wait(set, &event, 1, -1);
			int fd = accept4(listener, (void *)&peer, &len, SOCK_CLOEXEC);
			if (fd < 0 && errno == EAGAIN)
				continue;
			if (fd < 0)
				fail("accept4");
			show("peer", fd, getpeername);
			pthread_create(&threads[at++], NULL, serves, (void *)(long)fd);
		}
		for (int at = 0; at < 3; at++)
			pthread_join(threads[at], NULL);
		printf("served\n");
	} else if (!strcmp(manner, "threads")) {
		/* One waits in accept while others connect. */
		int listener = listening(words[3], 4001, 0);
		pthread_t waits, all[16];
		pthread_create(&waits, NULL, one_accept, (void *)(long)listener);
		for (int round = 0; round < 5; round++) {
			for (int at = 0; at < 16; at++)
				pthread_create(&all[at], NULL, one_client, (void *)ip);
			for (int at = 0; at < 16; at++)
				pthread_join(all[at], NULL);
		}
		printf("80 clients\n");
		sigset_t mask;
		sigemptyset(&mask);
		sigaddset(&mask, SIGALRM);
		int other = listening(words[3], 4002, 0);
		interrupt();
		printf("%d ", accept(other, NULL, NULL));
		printf("%s\n", strerrorname_np(errno));
		exit(0);
	} else if (!strcmp(manner, "passed")) {
		int pair[2];
		socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
		if (fork() == 0) {
			int fd = passed(pair[1]);
			show("peer", fd, getpeername);
			exchange(fd, 100000);
			exit(0);
		}
		int fd = opened(ip, 7);
		pass(pair[0], fd);
		close(fd);
		wait(NULL);
	} else if (!strcmp(manner, "udp")) {
		struct sockaddr_in to = at(ip, 7);
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		char room[16] = "";
		if (connect(fd, (void *)&to, sizeof to) < 0)
			fail("connect");
		show("peer", fd, getpeername);
		for (int at = 0; at < 100 && room[0] == 0; at++) {
			struct timeval limit = { .tv_usec = 300000 };
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
			send(fd, "datagram", 8, 0);
			recv(fd, room, 15, 0);
		}
		printf("%s\n", room);
		/* An empty datagram ends nothing, and comes back. */
		ssize_t got;
		send(fd, "", 0, 0);
		while ((got = recv(fd, room, 15, 0)) == 8)
			;
		printf("%zd ", got);
		send(fd, "more", 4, 0);
		printf("%zd\n", recv(fd, room, 15, 0));
		result("no address", connect(fd, (void *)1, sizeof to));
		show("peer", fd, getpeername);
		fd = socket(AF_INET, SOCK_DGRAM, 0);
		to = at(words[3], 5353);
		printf("%d ", bind(fd, (void *)&to, sizeof to));
		printf("%s\n", strerrorname_np(errno));
	} else if (!strcmp(manner, "kernel")) {
		/* Both ends are the kernel's. */
		int listener = listening("127.0.0.1", 4003, 0), fd = opened("127.0.0.1", 4003);
		char room[4] = "";
		put(accept(listener, NULL, NULL), "abc", 3);
		read(fd, room, 3);
		printf("%s %d\n", room, option(fd, SOL_SOCKET, SO_DOMAIN));
	} else if (!strcmp(manner, "orphan")) {
		/* Reads on after the supervisor's end. */
		if (fork() == 0) {
			int fd = opened(ip, 7);
			char byte;
			int out = open(words[3], O_CREAT | O_WRONLY, 0644);
			put(fd, "x", 1);
			read(fd, &byte, 1);
			FILE *file = fopen(words[4], "w");
			fclose(file);
			ssize_t got = read(fd, &byte, 1);
			struct sockaddr_in to = at(ip, 7);
			fd = socket(AF_INET, SOCK_STREAM, 0);
			connect(fd, (void *)&to, sizeof to);
			dprintf(out, "%d %s\n", got <= 0, strerrorname_np(errno));
			exit(0);
		}
		wait(NULL);
	}
	return 0;
}
