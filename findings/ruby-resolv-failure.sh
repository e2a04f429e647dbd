#!/usr/bin/env bash
# Ruby's Resolv::DNS takes an outage for a name without records.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian ruby3.1=3.1.7+really3.1.2-0+deb12u1 libruby3.1=3.1.7+really3.1.2-0+deb12u1
lib=$work/root/usr/lib
RUBYLIB=$lib/ruby/3.1.0:$(find "$lib" -path '*-linux-gnu/ruby/3.1.0' -print -quit)
export RUBYLIB
cat >"$work/resolve.rb" <<'RUBY'
# Prints the targets of a name's SRV records, the error if there is one, and the seconds that the look-up takes.
require 'resolv'
begin_at = Process.clock_gettime(Process::CLOCK_MONOTONIC)
begin
  error, found = 'none', Resolv::DNS.new.getresources(ARGV[0], Resolv::DNS::Resource::IN::SRV).map { |r| r.target.to_s }
rescue StandardError => e
  error, found = e.class, []
end
puts "#{found.size} #{error} #{Process.clock_gettime(Process::CLOCK_MONOTONIC) - begin_at}"
RUBY
look_ups $'nameserver 127.0.0.1\nnameserver 127.0.0.2\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

TARGET = struct.pack("!3H", 0, 100, 80) + b"\4db-0\2db\4shop\3svc\7cluster\5local\0"


def handle(failing):
    """Answers like a server for which the names below these labels fail."""
    def answer(name, qtype, q, tcp):
        label = name.split(".")[2]
        if label in failing:
            return (None if label == "silent" else reply(q, SERVFAIL)), 0
        return reply(q, NXDOMAIN if label == "missing" else NOERROR, rdata=TARGET), 0
    return answer


first, second = Upstream(handle(("half", "failing", "silent")), port=53), Upstream(handle(("failing", "silent")), "127.0.0.2", 53)


def resolve(label):
    """Returns how many records there are, the error, the seconds that it took, and how often the second server was asked."""
    before = len(second.queries)
    p = subprocess.run(["ruby3.1", os.environ["work"] + "/resolve.rb", f"_http._tcp.{label}.shop.svc.cluster.local."], stdout=subprocess.PIPE, text=True, check=True)
    found, error, seconds = p.stdout.split()
    return int(found), error, float(seconds), len(second.queries) - before


known, missing, half, failing, silent = (resolve(l) for l in ("db", "missing", "half", "failing", "silent"))
if known[:2] != (1, "none"):
    sys.exit(2)
conclude("a look-up that gets SERVFAIL is repeated with the second server, and raises an error if that fails, too, or if both are silent, after the time in resolv.conf, 2 s",
         "Ruby 3.1.2 (Debian 3.1.7+really3.1.2-0+deb12u1), Resolv::DNS#getresources",
         f"if one server answers SERVFAIL, or both, there are {half[0]} and {failing[0]} records and the error is {half[1]} and {failing[1]}, as for a name that does not exist, "
         f"with {half[3] + failing[3]} queries to the second server; if both are silent, so also ({silent[0]} records, error {silent[1]}), after {silent[2]:.0f} s",
         all(r[:2] == (0, "none") for r in (missing, half, failing, silent)) and half[3] == failing[3] == 0 and silent[2] > 60)
PYTHON
