#!/usr/bin/env bash
# gomemcache looks its server's name up once; if that fails, it never has a server.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command set stores a value 40 times, four times a second, and prints "ok" or the error.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	client := memcache.New(os.Args[1])
	client.Timeout = time.Second
	for range 40 {
		if err := client.Set(&memcache.Item{Key: "key", Value: []byte("value")}); err != nil {
			fmt.Println(err)
		} else {
			fmt.Println("ok")
		}
		time.Sleep(250 * time.Millisecond)
	}
}
GO
build set github.com/bradfitz/gomemcache 0.0.0-20260422231931-4d751bb6e37c
look_ups $'nameserver 127.0.0.1\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

OLD, NEW, NAME = "127.0.0.2", "127.0.0.3", "cache-0.cache.shop.svc.cluster.local"
address, code = [OLD], [NOERROR]
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, code[0], ttl=1, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0), port=53)


class Memcached:
    """Says that it has stored each value."""

    def __init__(self, at):
        self.listener, self.connections = socket.create_server((at, 11211)), []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(c)
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        try:
            with c.makefile("rb") as lines:
                while lines.readline() and lines.readline():
                    c.sendall(b"STORED\r\n")
        except OSError:
            pass

    def stop(self):
        for s in (*self.connections, self.listener):
            s.shutdown(socket.SHUT_RDWR)
            s.close()


def run(change):
    """Returns what a client prints, and how many of its queries come 2 s after its start, when change is called, and later."""
    p = subprocess.Popen(["set", NAME + ":11211"], stdout=subprocess.PIPE, text=True)
    time.sleep(2)
    change()
    before = len(dns.queries)
    lines = p.communicate()[0].splitlines()
    return lines, len(dns.queries) - before


def move():
    old.stop()
    address[0] = NEW


old, new = Memcached(OLD), Memcached(NEW)
moved, again = run(move)
code[0] = SERVFAIL
failed, more = run(lambda: code.__setitem__(0, NOERROR))
after = moved[12:]
conclude("when a pod's name, with a TTL of a second, gets another address, the client goes there, and if the first look-up gets SERVFAIL, a later one counts",
         "gomemcache v0.0.0-20260422231931-4d751bb6e37c, memcache.New",
         f"after the change {after.count('ok')} of {len(after)} values are stored, with {again} more queries (\"{after[-1]}\"); "
         f"if the first look-up fails, {failed.count('ok')} of {len(failed)} are, with {more} queries after the name server's return (\"{failed[-1]}\")",
         moved[0] == "ok" and not after.count("ok") and not failed.count("ok") and again == more == 0)
PYTHON
