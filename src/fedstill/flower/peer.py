"""Whose process is at the other end of a connection from this machine (Linux)."""

import ipaddress
import sys
from pathlib import Path

ESTABLISHED = "01"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def tells_owners() -> bool:
    """Does this system say whose a connection is? Then one of which it says nothing is nobody's who may ask."""
    return TABLES[0].exists()


def owner(host: str, port: int) -> int | None:
    """The user number of the process whose end of a connection is `host`:`port`; None where that cannot be said.

    Only of a connection that is open both ways: the kernel gives one that is being closed to user 0.
    """
    wanted = ipaddress.ip_address(host)
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == ESTABLISHED and int(number, 16) == port and _same(_read(address), wanted):
                return int(fields[7])
    return None


def _read(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel writes it: words of four bytes, each in the machine's own order."""
    words = [bytes.fromhex(text[i : i + 8]) for i in range(0, len(text), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return ipaddress.ip_address(b"".join(words))


def _same(
    one: ipaddress.IPv4Address | ipaddress.IPv6Address, other: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> bool:
    mapped = one.ipv4_mapped if isinstance(one, ipaddress.IPv6Address) else None
    return other in (one, mapped)
