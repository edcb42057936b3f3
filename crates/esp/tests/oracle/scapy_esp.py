"""ESP by scapy. Each line of standard input is a JSON object: `sa`, and what to
do with `packet`: seal or open. Each answer is a line of hexadecimal digits."""

import json
import sys

from scapy.all import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, SecurityAssociation

conf.debug_dissector = 2


def ip(packet):
    return (IP if packet[0] >> 4 == 4 else IPv6)(packet)


def association(sa):
    header = None
    if sa["tunnel"]:
        header = (IPv6 if ":" in sa["src"] else IP)(src=sa["src"], dst=sa["dst"])
    return SecurityAssociation(
        ESP,
        spi=sa["spi"],
        seq_num=sa["sequence"] & 0xFFFFFFFF,
        crypt_algo=sa["algorithm"],
        crypt_key=bytes.fromhex(sa["key"]),
        auth_algo="NULL",
        auth_key=None,
        tunnel_header=header,
        nat_t_header=UDP(sport=4500, dport=4500) if sa["udp"] else None,
        esn_en=sa["esn"],
        esn=sa["sequence"] >> 32,
    )


for line in sys.stdin:
    task = json.loads(line)
    sa = association(task["sa"])
    packet = ip(bytes.fromhex(task["packet"]))
    done = sa.encrypt(packet) if task["do"] == "seal" else sa.decrypt(packet)
    print(bytes(done).hex(), flush=True)
