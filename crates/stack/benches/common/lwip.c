/* lwIP on a link in memory, for benches: two interfaces of one stack, a client at
 * one and a server at the other, as the raw API has them (no thread, no lock).
 *
 * A line on standard input says what to do and how often ("requests 2000",
 * "connections 500", "bytes 100000000"); the seconds that it took come back.
 */
#include "lwip/etharp.h"
#include "lwip/init.h"
#include "lwip/netif.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/tcp.h"
#include "netif/ethernet.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Frames on their way to each end, a ring. */
#define FRAMES_MAX 4096
static struct pbuf *frames[2][FRAMES_MAX];
static unsigned first[2], count[2];
static struct netif ends[2];

static struct tcp_pcb *client, *server;
static unsigned long answers, opened, read_bytes;
static int echoes, ended;

static void fail(const char *what)
{
    fprintf(stderr, "lwip: %s failed\n", what);
    exit(1);
}

static err_t carry(struct netif *from, struct pbuf *frame)
{
    int to = from == &ends[0];
    if (count[to] == FRAMES_MAX)
        return ERR_MEM;
    /* A wire has frames of its own: what is sent may go again. */
    struct pbuf *copy = pbuf_clone(PBUF_RAW, PBUF_RAM, frame);
    if (!copy)
        return ERR_MEM;
    frames[to][(first[to] + count[to]++) % FRAMES_MAX] = copy;
    return ERR_OK;
}

static err_t start(struct netif *end)
{
    end->name[0] = 'm';
    end->name[1] = 'e';
    end->mtu = 1500;
    end->hwaddr_len = 6;
    memset(end->hwaddr, 0, 6);
    end->hwaddr[0] = 2;
    end->hwaddr[5] = end == &ends[0] ? 1 : 2;
    end->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET |
                 NETIF_FLAG_LINK_UP;
    end->output = etharp_output;
    end->linkoutput = carry;
    return ERR_OK;
}

/* One end takes what came, and sends what that led to. */
static void turn(int end)
{
    while (count[end]) {
        struct pbuf *frame = frames[end][first[end]];
        first[end] = (first[end] + 1) % FRAMES_MAX;
        count[end]--;
        if (ends[end].input(frame, &ends[end]) != ERR_OK)
            pbuf_free(frame);
    }
}

static err_t at_client(void *arg, struct tcp_pcb *pcb, struct pbuf *bytes, err_t error)
{
    (void)arg, (void)error;
    if (bytes) {
        answers += bytes->tot_len;
        tcp_recved(pcb, bytes->tot_len);
        pbuf_free(bytes);
    }
    return ERR_OK;
}

static err_t at_server(void *arg, struct tcp_pcb *pcb, struct pbuf *bytes, err_t error)
{
    (void)arg, (void)error;
    if (!bytes) {
        ended = 1;
        tcp_recv(pcb, NULL);
        return tcp_close(pcb);
    }
    read_bytes += bytes->tot_len;
    tcp_recved(pcb, bytes->tot_len);
    if (echoes && tcp_write(pcb, bytes->payload, bytes->len, TCP_WRITE_FLAG_COPY) == ERR_OK)
        tcp_output(pcb);
    pbuf_free(bytes);
    return ERR_OK;
}

static err_t accepted(void *arg, struct tcp_pcb *pcb, err_t error)
{
    (void)arg, (void)error;
    server = pcb;
    tcp_nagle_disable(pcb);
    tcp_recv(pcb, at_server);
    return ERR_OK;
}

static err_t connected(void *arg, struct tcp_pcb *pcb, err_t error)
{
    (void)arg, (void)pcb, (void)error;
    opened++;
    return ERR_OK;
}

static void open_one(void)
{
    unsigned long before = opened;
    server = NULL;
    client = tcp_new();
    if (!client)
        fail("tcp_new");
    tcp_bind_netif(client, &ends[0]);
    tcp_nagle_disable(client);
    tcp_recv(client, at_client);
    if (tcp_connect(client, netif_ip_addr4(&ends[1]), 80, connected) != ERR_OK)
        fail("tcp_connect");
    for (int turns = 0; opened == before || !server; turns++) {
        if (turns == 1000)
            fail("the connection");
        turn(1);
        turn(0);
    }
}

static void close_one(void)
{
    ended = 0;
    if (tcp_close(client) != ERR_OK)
        fail("tcp_close");
    for (int turns = 0; !ended || count[0] || count[1]; turns++) {
        if (turns == 1000)
            fail("the end");
        turn(1);
        turn(0);
    }
    /* What is left of it need not be waited for. */
    if (client->state == TIME_WAIT)
        tcp_abort(client);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static double requests(long times)
{
    open_one();
    echoes = 1;
    double began = now();
    for (long time = 0; time < times; time++) {
        unsigned long before = answers;
        if (tcp_write(client, "x", 1, TCP_WRITE_FLAG_COPY) != ERR_OK)
            fail("tcp_write");
        tcp_output(client);
        turn(1);
        turn(0);
        if (answers != before + 1)
            fail("the answer");
    }
    double took = now() - began;
    close_one();
    return took;
}

static double connections(long times)
{
    double began = now();
    for (long time = 0; time < times; time++) {
        open_one();
        close_one();
    }
    return now() - began;
}

static double bytes(long total)
{
    static char block[1 << 16];
    open_one();
    echoes = 0;
    read_bytes = 0;
    long written = 0;
    double began = now();
    while (read_bytes < (unsigned long)total) {
        long room = tcp_sndbuf(client);
        long left = total - written;
        long next = room < left ? room : left;
        if (next > (long)sizeof block)
            next = sizeof block;
        if (next > 0 && tcp_write(client, block, (u16_t)next, TCP_WRITE_FLAG_COPY) == ERR_OK)
            written += next;
        tcp_output(client);
        turn(1);
        turn(0);
        /* Delayed acknowledgments. */
        if (!count[0] && !count[1])
            tcp_fasttmr();
    }
    double took = now() - began;
    close_one();
    return took;
}

int main(void)
{
    lwip_init();
    for (int end = 0; end < 2; end++) {
        ip4_addr_t address, mask, none;
        IP4_ADDR(&address, 192, 0, 2, 1 + end);
        IP4_ADDR(&mask, 255, 255, 255, 0);
        IP4_ADDR(&none, 0, 0, 0, 0);
        /* The server's is the last, by which what has no interface goes. */
        if (!netif_add(&ends[end], &address, &mask, &none, NULL, start, ethernet_input))
            fail("netif_add");
        netif_set_up(&ends[end]);
    }
    struct tcp_pcb *waits = tcp_new();
    if (!waits || tcp_bind(waits, netif_ip_addr4(&ends[1]), 80) != ERR_OK)
        fail("tcp_bind");
    waits = tcp_listen(waits);
    tcp_accept(waits, accepted);

    char what[32];
    long times;
    while (scanf("%31s %ld", what, &times) == 2) {
        double took = 0;
        if (!strcmp(what, "requests"))
            took = requests(times);
        else if (!strcmp(what, "connections"))
            took = connections(times);
        else if (!strcmp(what, "bytes"))
            took = bytes(times);
        else
            fail(what);
        printf("%.9f\n", took);
        fflush(stdout);
    }
    return 0;
}
