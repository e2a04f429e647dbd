package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// replyTimeout is how long a server has for a reply: what a C library gives it. Half would
// count a busy machine as silence, and twice as much is more than any client waits.
const replyTimeout = 5 * time.Second

// queryServers sends each query, a line `PROTO SIZE NAME TYPE`, to each of the servers (ADDR:PORT)
// and writes a line for each:
//
//	SERVER <tab> QUERY <tab> TTL <tab> REPLY
//
// SIZE is what EDNS offers; 0 is without it. TTL is the longest one of the reply, and
// REPLY all of it that doesn't change from one reply to the next: records are sorted and
// without their TTL, a SOA without its serial number.
func queryServers(ctx context.Context, servers []string, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		q, proto, err := parseQuery(lines.Text())
		if err != nil {
			return err
		}
		for _, server := range servers {
			c := dns.Client{Net: proto, Timeout: replyTimeout}
			if o := q.IsEdns0(); o != nil {
				c.UDPSize = o.UDPSize()
			}
			reply, _, err := c.ExchangeContext(ctx, q, server)
			ttl, text := uint32(0), fmt.Sprint(err)
			if err == nil {
				ttl, text = normalize(reply)
			}
			fmt.Fprintf(out, "%s\t%s\t%d\t%s\n", server, lines.Text(), ttl, text)
		}
	}
	return lines.Err()
}

// parseQuery reads a line.
func parseQuery(line string) (q *dns.Msg, proto string, err error) {
	f := strings.Fields(line)
	if len(f) != 4 {
		return nil, "", fmt.Errorf("%q is not PROTO SIZE NAME TYPE", line)
	}
	size, err := strconv.ParseUint(f[1], 10, 16)
	if err != nil {
		return nil, "", fmt.Errorf("%q: the size: %w", line, err)
	}
	kind, ok := dns.StringToType[f[3]]
	if !ok {
		return nil, "", fmt.Errorf("%q: there is no type %s", line, f[3])
	}
	q = new(dns.Msg).SetQuestion(dns.Fqdn(f[2]), kind)
	if size > 0 {
		q.SetEdns0(uint16(size), false)
	}
	return q, f[0], nil
}

// normalize is the reply without what chance or time decides, and its longest TTL.
func normalize(m *dns.Msg) (ttl uint32, text string) {
	var flags []string
	for _, f := range []struct {
		name string
		set  bool
	}{{"qr", m.Response}, {"aa", m.Authoritative}, {"tc", m.Truncated}, {"rd", m.RecursionDesired}, {"ra", m.RecursionAvailable}, {"ad", m.AuthenticatedData}, {"cd", m.CheckingDisabled}} {
		if f.set {
			flags = append(flags, f.name)
		}
	}
	out := []string{dns.RcodeToString[m.Rcode] + " " + strings.Join(flags, " ")}
	for _, q := range m.Question {
		out = append(out, q.String())
	}
	for _, section := range []struct {
		name    string
		records []dns.RR
	}{{"answer", m.Answer}, {"authority", m.Ns}, {"additional", m.Extra}} {
		longest, records := sectionText(section.records)
		ttl = max(ttl, longest)
		out = append(out, section.name+" "+strings.Join(records, ", "))
	}
	return ttl, strings.ReplaceAll(strings.Join(out, "; "), "\t", " ")
}

// sectionText are a section's records as text.
func sectionText(records []dns.RR) (longest uint32, text []string) {
	for _, r := range records {
		r = dns.Copy(r)
		switch r := r.(type) {
		case *dns.OPT:
			text = append(text, fmt.Sprintf("OPT %d %d", r.Version(), r.UDPSize()))
			continue
		case *dns.SOA:
			r.Serial = 0
		}
		longest = max(longest, r.Header().Ttl)
		r.Header().Ttl = 0
		text = append(text, r.String())
	}
	slices.Sort(text)
	return longest, text
}
