/*
 * weir_tap.h: a program owns the frames of whole links, by pointer.
 *
 * The six calls of the NetTap paper (Blott, Brustoloni, Martin, 2000, §5), on
 * Linux by AF_XDP. Frames lie in memory that the kernel shares with the
 * program; between the calls they change hands without any system call.
 *
 *     paper              here
 *     mbuf_map           weir_map     memory for frames, some kept ready
 *     mbuf_unmap         weir_unmap   all of it back
 *     mbuf_pull          weir_pull    so many chunks now, or wait for a frame
 *     mbuf_push          weir_push    send and free now, on all links
 *     interface_tap      weir_tap     a link's frames come to us; counted
 *     interface_untap    weir_untap   the last one gives the link back
 *
 *     tap_in             weir_take    the next frame of a link
 *     tap_out            weir_give    send a frame on a link
 *     mbuf_alloc         weir_alloc   an empty frame
 *     mbuf_dealloc       weir_free    its chunks are free again
 *
 * Who owns a frame: weir_take and weir_alloc hand one to the caller, who ends
 * it by weir_give or weir_free, once. In between its bytes are the caller's,
 * to read and to write, and nobody else's.
 *
 * A tap and its frames belong to the thread that made them: calls from another
 * one fail. Call weir_pull or weir_push more often than `hang_us` while there
 * are frames; else the frames take the bypass, until the next call.
 *
 * What fails gives -1 or NULL; weir_error says why. Build with
 * `cargo build --release -p weir-ctap`, and link with
 * `-lweirtap` (libweirtap.so or libweirtap.a, in target/release).
 */
#ifndef WEIR_TAP_H
#define WEIR_TAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct weir;       /* a tap */
struct weir_frame; /* a frame, and the chunks that it lies in */

/* What becomes of frames while no process takes them. */
enum weir_bypass {
    WEIR_BYPASS_KERNEL = 0, /* the host's own protocols get them */
    WEIR_BYPASS_WIRE = 1,   /* the two links of weir_between are joined */
    WEIR_BYPASS_DROP = 2    /* none passes */
};

struct weir_config {
    uint32_t chunks;      /* chunks of memory, for all links; at most 2^18 */
    uint32_t chunk_bytes; /* bytes of each, 2048 or 4096 */
    uint32_t kept;        /* chunks kept ready for weir_alloc */
    uint32_t ring;        /* entries of each ring, a power of two, 64 to 65536 */
    uint32_t spin_us;     /* how long to look for frames before sleeping */
    uint32_t hang_us;     /* a program silent for longer hangs; 0: never does */
    uint32_t bypass;      /* enum weir_bypass */
};

/* How many chunks whom have. */
struct weir_census {
    uint32_t free;    /* nobody */
    uint32_t process; /* processes, as frames */
    uint32_t fill;    /* the kernel, to fill them */
    uint32_t tx;      /* the kernel, to send them */
};

/* What went wrong last in this thread; valid until its next failure. */
const char *weir_error(void);

/* The configuration that NULL stands for: rings of 16,384 for two links, 96 MiB. */
void weir_config_default(struct weir_config *config);

/* Makes memory for frames; no link is tapped yet. */
struct weir *weir_map(const struct weir_config *config);

/* As weir_map, with two links tapped (0 and 1) that can be joined for the
 * bypass. Unless that is the host's, it stays when the process ends: until the
 * next one, or `weir bridge A B --clean`. */
struct weir *weir_between(const struct weir_config *config, const char *a,
                          const char *b);

/* Gives everything back, and tells who has the chunks: all are free, unless a
 * frame was neither given nor freed. A shared tap goes on in the other
 * processes; with the last one the links are the host's. `census` may be
 * NULL. The tap is gone, even where this fails (but for the wrong thread). */
int weir_unmap(struct weir *tap, struct weir_census *census);

/* With `chunks`: makes as many ready for weir_alloc; 1 if there are. Without:
 * waits for a frame on any link, for wait_us at most; 1 if there is one. */
int weir_pull(struct weir *tap, uint32_t chunks, uint32_t wait_us);

/* Sends what was given. */
int weir_push(struct weir *tap);

/* Taps a link; its number, from 0. Once tapped, it is only counted. */
int weir_tap(struct weir *tap, const char *interface);

/* Untaps it; 1 if that was the last holder, of all processes. */
int weir_untap(struct weir *tap, int link);

/* The next frame of a link: 1 and the frame, or 0. */
int weir_take(struct weir *tap, int link, struct weir_frame **frame);

/* Sends a frame on a link with the next weir_push, and ends it in any case: 1,
 * or 0 if it was dropped for want of room. */
int weir_give(struct weir *tap, int link, struct weir_frame *frame);

/* An empty frame; NULL if no chunk is free. */
struct weir_frame *weir_alloc(struct weir *tap);

/* Ends a frame. */
int weir_free(struct weir_frame *frame);

/* The bytes of a piece of a frame, from 0, and how many; NULL behind the last.
 * A frame has one piece, unless it is longer than a chunk less 256 bytes. */
uint8_t *weir_bytes(struct weir_frame *frame, uint32_t piece, size_t *len);

/* Makes a frame these bytes. */
int weir_set(struct weir_frame *frame, const uint8_t *bytes, size_t len);

/* Lets other processes join: makes a socket at this path. Whatever becomes of
 * this process, those that have joined go on, and others can join them. */
int weir_share(struct weir *tap, const char *path);

/* Joins a tap that is shared at a path; its links have the numbers they have
 * there. */
struct weir *weir_join(const char *path, const struct weir_config *config);

/* How many processes have the tap. */
int weir_members(struct weir *tap);

#ifdef __cplusplus
}
#endif

#endif
