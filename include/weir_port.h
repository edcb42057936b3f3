/*
 * weir_port.h: ports, queues of the frames of an interface that a filter accepts.
 *
 * The kernel runs the filter, and writes accepted frames into a ring that it
 * shares with this process. Any user opens a port through the broker, if the
 * broker's policy grants it; without a broker, root opens it in this process.
 *
 *     weir_port_open         a port on an interface, by a pcap-filter(7) expression
 *     weir_port_recv         the frames that are there, or the first that arrive
 *     weir_port_wait         waits for frames, and leaves them in the queue
 *     weir_port_fd           a descriptor for poll and epoll
 *     weir_port_send         sends a frame; weir_port_send_batch, several
 *     weir_port_set_filter   replaces the filter
 *     weir_port_counters     frames delivered, lost, sent, refused
 *     weir_port_linktype     the format of the frames
 *     weir_port_close        ends the port
 *     weir_port_error        the reason of this thread's last failure
 *
 * The bytes of received frames are in the ring. They are valid until the next
 * call of weir_port_recv, weir_port_wait, weir_port_fd or weir_port_close on the
 * port: copy what is needed for longer.
 *
 * Threads: every function may be called from every thread. Calls on one port
 * take turns; while weir_port_recv and weir_port_wait sleep, calls of other
 * threads continue, so that one thread can send while another one receives: they
 * wait at most for the 250 microseconds in which frames gather. A call that asks
 * the broker or looks host names up (weir_port_set_filter, weir_port_counters)
 * keeps the others waiting until it is done, whatever their time limits. Only
 * one thread at a time may receive, because of the bytes. weir_port_close must be
 * the last call on the port, and no other call may be running.
 *
 * A child of fork(2) must not use its parent's ports, nor close them; exec(2)
 * closes them in the child.
 *
 * A call that fails returns -1 or NULL; weir_port_error returns the message.
 * Build with `cargo build --release -p weir-cport`, and link with `-lweirport`
 * (libweirport.so or libweirport.a, in target/release). A program that also uses
 * weir_tap.h links with both shared libraries.
 */
#ifndef WEIR_PORT_H
#define WEIR_PORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct iovec;     /* of sys/uio.h */
struct weir_port; /* an open port */

/* Flags of struct weir_port_options. */
enum weir_port_option {
    WEIR_PORT_TAKE = 1,    /* ports of lower priority and the host do not get the
                              frames; without it the port gets a copy */
    WEIR_PORT_SEND = 2,    /* weir_port_open fails unless the port may send, and
                              the first frame is sent as fast as any other */
    WEIR_PORT_LATENCY = 4, /* waiting minimises the delay of frames; without it
                              frames gather for up to 200 microseconds under load */
    WEIR_PORT_UNTIMED = 8  /* frames have no time, which saves some 20 ns each */
};

/* In all fields but `size`, 0 or NULL is the default. */
struct weir_port_options {
    uint32_t size;        /* sizeof(struct weir_port_options) */
    uint32_t flags;       /* of enum weir_port_option */
    uint64_t queue_bytes; /* bytes of the queue, rounded up to a power of two;
                             default 1 MiB, or what the grant has room for */
    uint32_t snap_len;    /* bytes delivered of a frame at most; default all */
    uint32_t priority;    /* ports of higher priority see a frame earlier; at
                             most 65535 */
    const char *broker;   /* path of the broker's socket; then the port is opened
                             through this broker only. Default: as `weir listen`,
                             /run/weir/broker/socket, or in this process if no
                             broker serves its network and the user is root */
    const char *fanout;   /* the share of the frames that the port gets, by flow:
                             "0/4" is the first of four equal ones; a name is a
                             group, whose members share all frames, and a number
                             as the name is also the most members. Default: all.
                             Programs built without this field are accepted */
};

/* Flags of struct weir_port_frame. */
enum weir_port_flag {
    WEIR_PORT_OUTGOING = 1, /* the host sent the frame */
    WEIR_PORT_CUT = 2,      /* the frame is longer than its captured bytes */
    WEIR_PORT_VLAN = 4      /* the frame has a VLAN tag that the device had
                               stripped */
};

struct weir_port_frame {
    const uint8_t *bytes;   /* captured bytes, from the link-layer header on */
    int64_t time_ns;        /* receive time, in ns since 1970 UTC; 0: no time */
    uint32_t caplen;        /* number of captured bytes */
    uint32_t len;           /* length on the wire, in bytes */
    uint32_t lost_before;   /* frames lost between the previous frame and this */
    uint32_t segment_bytes; /* segment size of a GSO frame, which stands for
                               several frames on the wire and may have partial
                               checksums; 0: another frame */
    uint32_t flags;         /* of enum weir_port_flag */
};

/* Numbers of frames since the port was opened. */
struct weir_port_counters {
    uint64_t delivered;      /* put into the queue */
    uint64_t lost;           /* lost because the queue was full */
    uint64_t interface_lost; /* dropped by the interface, for any receiver */
    uint64_t sent;           /* sent by the path that checks; 0 for root */
    uint64_t refused;        /* dropped by that path, as the policy says */
};

/* The last error message of this thread; valid until its next failure. */
const char *weir_port_error(void);

/* Opens a port. The filter is a pcap-filter(7) expression, in which host names
 * are looked up now; NULL accepts every frame. `options` may be NULL. The
 * interface is not made promiscuous. */
struct weir_port *weir_port_open(const char *interface, const char *filter,
                                 const struct weir_port_options *options);

/* Closes a port and frees its queue. NULL is allowed. */
void weir_port_close(struct weir_port *port);

/* Receives up to frames_max frames, in order of arrival, at most 256 of them in
 * one call. If there are none, waits for the first for timeout_us microseconds: 0
 * does not wait, a negative number waits without limit. Returns the number of
 * frames; 0 if the time is over, or a signal has interrupted the wait. Fails also
 * if the interface is gone or the right to it has been withdrawn, which is
 * noticed within a second. */
int weir_port_recv(struct weir_port *port, struct weir_port_frame *frames,
                   size_t frames_max, int64_t timeout_us);

/* Waits for frames as weir_port_recv does, and leaves them in the queue. Returns
 * 1 if there are frames, otherwise 0. */
int weir_port_wait(struct weir_port *port, int64_t timeout_us);

/* The descriptor that is readable when there are frames, until weir_port_close.
 * It is the port's: do not read or close it. Before each poll(2) or epoll_wait(2),
 * call weir_port_recv with timeout 0 until it returns 0. The descriptor does not
 * tell that the interface is gone: poll with a time limit, and weir_port_recv
 * does. */
int weir_port_fd(struct weir_port *port);

/* Sends a whole frame, with its link-layer header. Returns 1, or 0 if there is no
 * room now: send it again later. Root sends by a packet socket, and waits while
 * that has frames for the interface's queue that fill its buffer. Any other user
 * sends by a path that checks each frame: it drops and counts the frames that the
 * policy does not allow. */
int weir_port_send(struct weir_port *port, const uint8_t *bytes, size_t len);

/* As weir_port_send, for several frames in one system call, at most 1,024.
 * Returns how many were sent, which are the first ones. */
int weir_port_send_batch(struct weir_port *port, const struct iovec *frames,
                         size_t count);

/* Replaces the filter; if it is refused, the old one stays. From now on the port
 * gets what the new filter accepts. Frames of the old filter are in the queue,
 * and may still arrive for moments. */
int weir_port_set_filter(struct weir_port *port, const char *filter);

/* Writes the counters. Without a broker to ask, it fails if the port was opened
 * through one. */
int weir_port_counters(struct weir_port *port,
                       struct weir_port_counters *counters);

/* The link type of the frames, as capture files name it (LINKTYPE_): 1 is
 * Ethernet. */
int weir_port_linktype(struct weir_port *port);

#ifdef __cplusplus
}
#endif

#endif
