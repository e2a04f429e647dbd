#!/usr/bin/env bash
# CoreDNS goes on with a certificate whose files have been renewed.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind reload template tls
certificate
declare -f certificate >"$work/certificate.bash"
python3 - <<'PYTHON'
import ssl
from loopback import *

port, work = free_port(), os.environ["work"]
TEXT = f"""tls://.:{port} {{
    bind 127.0.0.1
    tls {work}/cert.pem {work}/key.pem
    reload 2s 1s
    template ANY ANY
}}
"""


def certificate():
    try:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    except OSError:
        return None


def seconds(limit):
    """Returns after how many seconds clients get the certificate that is in the file, or None after the limit."""
    with open(work + "/cert.pem") as f:
        new, begin = f.read().strip(), time.monotonic()
    while time.monotonic() - begin < limit:
        if (certificate() or "").strip() == new:
            return time.monotonic() - begin
        time.sleep(0.5)
    return None


start("coredns", "-conf", write("Corefile", TEXT), ready=certificate)
if seconds(5) is None:
    sys.exit(2)
subprocess.run(["bash", "-c", '. "$work/certificate.bash" && certificate'], check=True)
renewed = seconds(60)
write("Corefile", TEXT + "# renewed\n")
comment = seconds(30)
write("Corefile", TEXT.replace("reload 2s", "reload 3s"))
changed = seconds(30)
conclude("with reload 2s, a server for DNS over TLS takes a renewed certificate from its files within a minute, at the latest when the Corefile is edited",
         "CoreDNS 1.15.0, tls and reload",
         f"{'not within a minute' if renewed is None else f'after {renewed:.0f} s'}; {'nor' if comment is None else 'but'} in 30 s after a comment is added "
         f"to the Corefile; {'not within 30 s' if changed is None else f'in {changed:.0f} s'} after an option is changed",
         renewed is None and comment is None and changed is not None)
PYTHON
