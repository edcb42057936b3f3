/* Prints messages of NETLINK_XFRM without their netlink header: type and bytes in hexadecimal digits.
 *
 *   messages SRC DST SPI KEYBYTE ALGORITHM KEYBITS MODE REQID SPORT DPORT FLAGS WINDOW OSEQ SEQ
 *
 * The lines: the SA (XFRM_MSG_NEWSA), its hard expiry (XFRM_MSG_EXPIRE), its deletion (XFRM_MSG_DELSA), and
 * the removal of all SAs (XFRM_MSG_FLUSHSA), each as the kernel's header lays them out. */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/xfrm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char bytes[4096];
static size_t used;

static void *put(size_t len)
{
    void *at = bytes + used;
    used += NLA_ALIGN(len);
    return at;
}

static void *attribute(int type, size_t len)
{
    struct nlattr *head = put(NLA_HDRLEN + len);
    head->nla_type = (unsigned short)type;
    head->nla_len = (unsigned short)(NLA_HDRLEN + len);
    return (char *)head + NLA_HDRLEN;
}

static int address(const char *text, xfrm_address_t *into)
{
    int family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, text, into) != 1)
        exit(1);
    return family;
}

static void print(int type)
{
    printf("%#x ", (unsigned)type);
    for (size_t i = 0; i < used; i++)
        printf("%02x", bytes[i]);
    printf("\n");
    memset(bytes, 0, sizeof bytes);
    used = 0;
}

static void state(struct xfrm_usersa_info *sa, char **with)
{
    sa->family = (unsigned short)address(with[1], &sa->saddr);
    address(with[2], &sa->id.daddr);
    sa->id.spi = htonl((unsigned)strtoul(with[3], NULL, 0));
    sa->id.proto = 50;
    sa->sel.family = sa->family;
    sa->lft.soft_byte_limit = sa->lft.hard_byte_limit = XFRM_INF;
    sa->lft.soft_packet_limit = sa->lft.hard_packet_limit = XFRM_INF;
    sa->mode = (unsigned char)atoi(with[7]);
    sa->reqid = (unsigned)atoi(with[8]);
    sa->flags = (unsigned char)atoi(with[11]);
    sa->curlft.add_time = 1;
}

int main(int argc, char **with)
{
    if (argc != 15)
        return 1;
    unsigned bits = (unsigned)atoi(with[6]);
    state(put(sizeof(struct xfrm_usersa_info)), with);
    struct xfrm_algo_aead *aead = attribute(XFRMA_ALG_AEAD, sizeof *aead + bits / 8);
    strncpy(aead->alg_name, with[5], sizeof aead->alg_name - 1);
    aead->alg_key_len = bits;
    aead->alg_icv_len = 128;
    memset(aead->alg_key, atoi(with[4]), bits / 8);
    if (atoi(with[9])) {
        struct xfrm_encap_tmpl *encap = attribute(XFRMA_ENCAP, sizeof *encap);
        encap->encap_type = 2;
        encap->encap_sport = htons((unsigned short)atoi(with[9]));
        encap->encap_dport = htons((unsigned short)atoi(with[10]));
    }
    unsigned window = (unsigned)atoi(with[12]);
    unsigned words = (window + 31) / 32;
    struct xfrm_replay_state_esn *esn = attribute(XFRMA_REPLAY_ESN_VAL, sizeof *esn + 4 * words);
    unsigned long long oseq = strtoull(with[13], NULL, 0), seq = strtoull(with[14], NULL, 0);
    esn->bmp_len = words;
    esn->replay_window = window;
    esn->oseq = (unsigned)oseq;
    esn->oseq_hi = (unsigned)(oseq >> 32);
    esn->seq = (unsigned)seq;
    esn->seq_hi = (unsigned)(seq >> 32);
    print(XFRM_MSG_NEWSA);

    struct xfrm_user_expire *expire = put(sizeof *expire);
    state(&expire->state, with);
    expire->hard = 1;
    print(XFRM_MSG_EXPIRE);

    struct xfrm_usersa_id *id = put(sizeof *id);
    id->family = (unsigned short)address(with[2], &id->daddr);
    id->spi = htonl((unsigned)strtoul(with[3], NULL, 0));
    id->proto = 50;
    print(XFRM_MSG_DELSA);

    struct xfrm_usersa_flush *flush = put(sizeof *flush);
    flush->proto = 0;
    print(XFRM_MSG_FLUSHSA);
    return 0;
}
