#!/usr/bin/env bash
# twemproxy answers no client of any pool while it looks up the name of one server.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nutcracker=0.5.0+dfsg-2 libyaml-0-2
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

silent = threading.Event()
dns = Upstream(lambda name, qtype, q, tcp: (None if silent.is_set() and name.startswith("lost.") else
                                            reply(q, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0), port=53)


class Server:
    """A memcached without values."""

    def __init__(self):
        self.listener, self.open = socket.create_server(("127.0.0.1", 0)), []
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(c)
            threading.Thread(target=self.answer, args=(c,), daemon=True).start()

    def answer(self, c):
        try:
            while c.recv(1000):
                c.sendall(b"END\r\n")
        except OSError:
            pass

    def end(self):
        self.listener.close()
        for c in self.open:
            c.close()


def get(port, timeout=60):
    """Returns the reply to a get, and how long it took."""
    begin = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as s:
            s.settimeout(timeout)
            s.sendall(b"get key\r\n")
            return s.recv(1000), time.monotonic() - begin
    except OSError:
        return None, time.monotonic() - begin


def pool(name, port, server):
    return f"""{name}:
  listen: 127.0.0.1:{port}
  hash: fnv1a_64
  distribution: ketama
  timeout: 1000
  server_retry_timeout: 1000
  auto_eject_hosts: false
  servers:
   - {name}.shop.svc.cluster.local:{server.port}:1
"""


def slow_gets(options):
    """Returns the slowest get of the pool kept before the server of the pool lost has gone, the median of
    the slow ones in the 30 s after that, and how many of the seconds were spent on those."""
    silent.clear()
    write("resolv.conf", "nameserver 127.0.0.1\n" + options)
    kept, lost, ports = Server(), Server(), (free_port(), free_port())
    conf = write("nutcracker.yml", pool("kept", ports[0], kept) + pool("lost", ports[1], lost))
    p = start("nutcracker", "-c", conf, "-s", str(free_port()), "-a", "127.0.0.1", "-o", os.environ["work"] + "/nutcracker.out",
              ready=lambda: get(ports[0], 1)[0] == get(ports[1], 1)[0] == b"END\r\n")
    before = max(get(ports[0])[1] for _ in range(20))
    silent.set()
    lost.end()
    begin, times, stop = time.monotonic(), [], threading.Event()

    def others():
        while not stop.is_set():
            get(ports[1])
            time.sleep(0.2)

    t = threading.Thread(target=others)
    t.start()
    while time.monotonic() < begin + 30:
        _, took = get(ports[0])
        times.append(took)
        time.sleep(0.05)
    stop.set()
    end(p)
    t.join()
    kept.end()
    slow = sorted(t for t in times if t > 0.5)
    return before, slow[len(slow) // 2] if slow else 0, sum(slow)


before, longest, waiting = slow_gets("")
_, short, _ = slow_gets("options timeout:1 attempts:1\n")
conclude("while the server of one pool is gone and its name gets no reply, the clients of another pool are answered as before",
         "twemproxy 0.5.0 (Debian 0.5.0+dfsg-2), two pools with host names, glibc",
         f"in half a minute, the slow gets of the other pool take {longest:.0f} s (median; before: {before * 1000:.0f} ms), {waiting:.0f} s in all; "
         f"with timeout:1 attempts:1 in resolv.conf they take {short:.0f} s",
         before < 2 and longest > 8 and waiting > 15 and 0 < short < 4)
PYTHON
