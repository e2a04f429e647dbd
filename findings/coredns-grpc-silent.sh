#!/usr/bin/env bash
# CoreDNS does not ask the next gRPC server while the first one is silent.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind forward grpc template
python3 - <<'PYTHON'
from loopback import *
import signal

COUNT = 8


def server(address):
    """Starts a server that answers every name over gRPC and UDP, and returns the process and the two ports."""
    grpc, dns = free_port(), free_port()
    p = start("coredns", "-conf", write(f"Corefile-{address}", "".join(f"""{listen} {{
    bind 127.0.0.1
    template IN A {{
        answer "{{{{ .Name }}}} 1 IN A {address}"
    }}
}}
""" for listen in (f"grpc://.:{grpc}", f".:{dns}"))), ready=answers(dns))
    return p, grpc, dns


def found(plugin, ports):
    """Returns how many names are found within 4 s by a CoreDNS that uses the plugin with both servers while the first one is silent,
    and the shortest time that another one takes to get a reply."""
    port = free_port()
    p = start("coredns", "-conf", write(f"Corefile-{plugin}", f""".:{port} {{
    bind 127.0.0.1
    {plugin} . 127.0.0.1:{ports[0]} 127.0.0.1:{ports[1]} {{
        policy sequential
    }}
}}
"""), ready=lambda: (ask(port, "ready.example.")[0] or b"").endswith(socket.inet_aton("192.0.2.1")))
    first.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # its threads may run for a moment
    replies = [ask(port, f"name-{i}.example.", timeout=8) for i in range(COUNT)]
    first.send_signal(signal.SIGCONT)
    end(p)
    in_time = [rcode(r) == NOERROR and seconds < 4 for r, seconds in replies]
    return sum(in_time), min((seconds for ok, (_, seconds) in zip(in_time, replies) if not ok), default=0)


first, grpc_1, dns_1 = server("192.0.2.1")
_, grpc_2, dns_2 = server("192.0.2.2")
grpc, seconds = found("grpc", (grpc_1, grpc_2))
forward, _ = found("forward", (dns_1, dns_2))
conclude("while one of two servers is silent, a name is asked of the next one, as by forward",
         "CoreDNS 1.15.0, grpc with policy sequential",
         f"{grpc} of {COUNT} names are found within 4 s, and the others get a reply after {seconds:.0f} s or more, as the first server has all of the time, and stays the first; "
         f"{forward} are found with forward",
         (grpc, forward) == (0, COUNT) and seconds > 4.5)
PYTHON
