#!/usr/bin/env bash
# aardvark-dns, Podman's name server, tells clients to use TCP, which it does not serve.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian aardvark-dns=1.4.0-3
export PATH=$work/root/usr/lib/podman:$PATH
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
import signal
from loopback import *

COUNT, PODMAN = 40, "127.0.0.2"


def handle(name, qtype, q, tcp):
    """Has 40 addresses for one name, which take TCP, and one address for the others."""
    many = name == "many.example."
    if qtype != A or (many and not tcp):
        return reply(q, tc=many), 0
    count = COUNT if many else 1
    records = b"".join(struct.pack("!3HLH4s", 0xC00C, A, 1, 300, 4, bytes([192, 0, 2, i + 1])) for i in range(count))
    return q[:2] + struct.pack("!5H", 0x8580, 1, count, 0, 0) + q[12 : question(q)[2]] + records, 0


def tc(name):
    r, _ = ask(53, name, address=PODMAN, timeout=3)
    return bool(r[2] & 2)


def libc(server, name):
    """Returns how many addresses a program finds, or the error, with the given name server."""
    write("resolv.conf", f"nameserver {server}\n")
    program = "import socket, sys\ntry: print(len(socket.gethostbyname_ex(sys.argv[1])[2]))\nexcept OSError as e: print(e.strerror)"
    return subprocess.run([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


Upstream(handle, port=53)
directory = folder("networks")
write("networks/podman1", PODMAN + "\n1d1d 10.89.0.2  web,1d1d\n")
# It goes to the background.
subprocess.run(["aardvark-dns", "--config", directory, "--port", "53", "run"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
with open(directory + "/aardvark.pid") as f:
    atexit.register(os.kill, int(f.read()), signal.SIGTERM)
until = time.monotonic() + 20
while ask(53, "web.", address=PODMAN, timeout=0.5)[0] is None:
    if time.monotonic() > until:
        sys.exit(2)
direct, few, many = libc("127.0.0.1", "many.example"), libc(PODMAN, "few.example"), libc(PODMAN, "many.example")
stream, _ = ask(53, "web.", address=PODMAN, tcp=True, timeout=3)
conclude(f"a name with {COUNT} addresses is found in a container, as name servers that set TC serve TCP (RFC 7766, 5)",
         "aardvark-dns 1.4.0 (Debian 1.4.0-3)",
         f"aardvark-dns answers with TC: {tc('many.example.')}, and over TCP: {stream is not None}; glibc finds {direct} addresses without it, and behind it: {many}, and for a name with one address: {few}",
         (direct, few, many, stream) == (str(COUNT), "1", "Temporary failure in name resolution", None) and tc("many.example."))
PYTHON
