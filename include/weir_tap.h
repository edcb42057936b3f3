/*
 * weir_tap.h: exclusive ownership of the frames of whole links, without copies.
 *
 * The six calls of the NetTap paper (Blott, Brustoloni, Martin, 2000, §5), on
 * Linux by AF_XDP. Frames are in memory shared by the kernel and the process;
 * between pull and push they pass without system calls.
 *
 *     paper              here
 *     mbuf_map           weir_map     allocate memory for frames
 *     mbuf_unmap         weir_unmap   free all of it
 *     mbuf_pull          weir_pull    get a number of chunks, or wait for a frame
 *     mbuf_push          weir_push    send and free now, on all links
 *     interface_tap      weir_tap     a link's frames go to the tap; counted
 *     interface_untap    weir_untap   the last untap returns the link to the host
 *
 *     tap_in             weir_take    the next frame of a link
 *     tap_out            weir_give    send a frame on a link
 *     mbuf_alloc         weir_alloc   an empty frame
 *     mbuf_dealloc       weir_free    free a frame
 *
 * Ownership of frames: weir_take and weir_alloc pass a frame to the caller, who
 * must pass it on exactly once, to weir_give or weir_free. Until then only the
 * caller reads and writes its bytes.
 *
 * A tap and its frames belong to the thread that created them: calls from
 * another thread fail. While frames arrive, call weir_pull or weir_push more
 * often than `hang_us`; otherwise the frames take the bypass, until the next
 * call.
 *
 * A call that fails returns -1 or NULL; weir_error returns the message. Build
 * with `cargo build --release -p weir-ctap`, and link with `-lweirtap`
 * (libweirtap.so or libweirtap.a, in target/release).
 */
#ifndef WEIR_TAP_H
#define WEIR_TAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct weir;       /* a tap */
struct weir_frame; /* a frame, with its chunks */

/* The path of frames while no process takes them. */
enum weir_bypass {
    WEIR_BYPASS_KERNEL = 0, /* to the host's own protocols */
    WEIR_BYPASS_WIRE = 1,   /* the two links of weir_between are joined */
    WEIR_BYPASS_DROP = 2    /* frames are dropped */
};

struct weir_config {
    uint32_t chunks;      /* chunks of memory for all links; at most 2^18 */
    uint32_t chunk_bytes; /* bytes of a chunk, 2048 or 4096 */
    uint32_t kept;        /* chunks reserved for weir_alloc */
    uint32_t ring;        /* entries of each ring, a power of two, 64 to 65536 */
    uint32_t spin_us;     /* polling time before sleeping, in microseconds */
    uint32_t hang_us;     /* time without a call after which the process
                             counts as hung, in microseconds; 0: never */
    uint32_t bypass;      /* enum weir_bypass */
};

/* Numbers of chunks, by owner. */
struct weir_census {
    uint32_t free;    /* no owner */
    uint32_t process; /* processes, as frames */
    uint32_t fill;    /* the kernel, for reception */
    uint32_t tx;      /* the kernel, for transmission */
};

/* The last error message of this thread; valid until its next failure. */
const char *weir_error(void);

/* Writes the default configuration (that of NULL): rings of 16,384 entries for
 * two links, 96 MiB. */
void weir_config_default(struct weir_config *config);

/* Allocates memory for frames; no link is tapped yet. */
struct weir *weir_map(const struct weir_config *config);

/* As weir_map, with two links tapped (0 and 1), which can be joined for the
 * bypass. Unless the bypass is the kernel, it stays when the process ends,
 * until the next process takes over, or until `weir bridge A B --clean`. */
struct weir *weir_between(const struct weir_config *config, const char *a,
                          const char *b);

/* Frees everything, and counts the chunks by owner: all are free, unless a frame
 * was neither given nor freed. A shared tap continues in the other processes;
 * the last one returns the links to the host. `census` may be NULL. The tap must
 * not be used afterwards, even if the call fails, except in the wrong thread. */
int weir_unmap(struct weir *tap, struct weir_census *census);

/* With `chunks` > 0: reserves this many for weir_alloc; returns 1 if there are.
 * With 0: waits at most wait_us microseconds for a frame on any link; returns 1
 * if there is one, otherwise 0. */
int weir_pull(struct weir *tap, uint32_t chunks, uint32_t wait_us);

/* Sends the frames passed to weir_give. */
int weir_push(struct weir *tap);

/* Taps a link; returns its number, from 0. A further call for the same link only
 * counts. */
int weir_tap(struct weir *tap, const char *interface);

/* Untaps a link; returns 1 if that was the last holder of all processes. */
int weir_untap(struct weir *tap, int link);

/* The next frame of a link: returns 1 and the frame, or 0 if there is none. */
int weir_take(struct weir *tap, int link, struct weir_frame **frame);

/* Passes a frame to a link, to be sent by the next weir_push. The frame must not
 * be used afterwards. Returns 1, or 0 if it was dropped for lack of room. */
int weir_give(struct weir *tap, int link, struct weir_frame *frame);

/* An empty frame; NULL if no chunk is free. */
struct weir_frame *weir_alloc(struct weir *tap);

/* Frees a frame. */
int weir_free(struct weir_frame *frame);

/* The bytes of a fragment of a frame, numbered from 0, and their number; NULL
 * behind the last fragment. A frame has one fragment, unless it is longer than a
 * chunk less 256 bytes. */
uint8_t *weir_bytes(struct weir_frame *frame, uint32_t piece, size_t *len);

/* Sets the bytes of a frame. */
int weir_set(struct weir_frame *frame, const uint8_t *bytes, size_t len);

/* Lets other processes join, by a socket at this path. When this process ends in
 * any way, the processes that have joined continue, and others can join them. */
int weir_share(struct weir *tap, const char *path);

/* Joins the tap shared at a path; its links have the same numbers as there. */
struct weir *weir_join(const char *path, const struct weir_config *config);

/* Number of processes that share the tap. */
int weir_members(struct weir *tap);

#ifdef __cplusplus
}
#endif

#endif
