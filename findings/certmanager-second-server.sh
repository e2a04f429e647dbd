#!/usr/bin/env bash
# cert-manager's self-check of a DNS01 challenge fails while one of its two recursive name servers is down.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir -p "$work/src"
cat >"$work/src/main.go" <<'GO'
// Prints true if the self-check finds the TXT record of a challenge, with the recursive name servers in its arguments.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/dns/util"
)

func main() {
	found, _ := util.PreCheckDNS(context.Background(), "_acme-challenge.shop.example.", "token", os.Args[1:], false)
	fmt.Println(found)
}
GO
build self-check github.com/cert-manager/cert-manager 1.21.2
python3 - <<'PYTHON'
from loopback import *

TXT = 16


def server(code):
    """Starts a name server that has the record, or answers with another RCODE than NOERROR, or not at all for None."""
    def handle(name, qtype, q, tcp):
        return None if code is None else reply(q, code, rdata=b"\5token" if qtype == TXT else None), 0

    return Upstream(handle)


def passes(*servers):
    r = subprocess.run(["self-check", *[f"127.0.0.1:{s.port}" for s in servers]], stdout=subprocess.PIPE, text=True, check=True)
    return r.stdout.strip() == "true"


well, silent, failing = server(NOERROR), server(None), server(SERVFAIL)
both = passes(well, server(NOERROR))
down = [passes(well, silent), passes(silent, well), passes(well, failing), passes(failing, well)]
conclude("with two recursive servers and --dns01-recursive-nameservers-only, the self-check passes while one of them is down",
         "cert-manager 1.21.2",
         f"with both it passes ({both}), and with one that is silent or answers SERVFAIL, as the first or as the second, {sum(down)} of {len(down)} times: each has to have the record",
         both and not any(down))
PYTHON
