package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// pollInterval is between two queries of until: short against what is awaited, the way of an
// event through the API server, and 100 queries a second are no load.
const pollInterval = 10 * time.Millisecond

// pollUntil asks the name server of /etc/resolv.conf for the addresses of a name, by UDP, until
// the answer is the wanted one or the limit is over, which is an error. It writes a line
// for the first answer and for each one that isn't the one before it:
//
//	NANOSECONDS ASKED ANSWER
//
// ASKED is how many queries it took until then, and ANSWER a sorted list of addresses and
// of names that the name stands for, or none, nodata, failed or an rcode.
func pollUntil(ctx context.Context, limit time.Duration, name, want string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	if len(conf.Servers) == 0 {
		return errors.New("/etc/resolv.conf has no name server")
	}
	server := net.JoinHostPort(conf.Servers[0], conf.Port)
	c := dns.Client{Timeout: replyTimeout}
	last := ""
	for asked := 1; ; asked++ {
		reply, _, err := c.ExchangeContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), server)
		got := summarize(reply, err)
		if got != last {
			fmt.Fprintln(out, time.Now().UnixNano(), asked, got)
		}
		if got == want {
			return nil
		}
		last = got
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still %s, not %s: %w", name, got, want, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

// summarize is a reply in short. The error comes in place of a reply.
func summarize(reply *dns.Msg, err error) string {
	if err != nil {
		return "failed"
	}
	var all []string
	for _, r := range reply.Answer {
		switch r := r.(type) {
		case *dns.A:
			all = append(all, r.A.String())
		case *dns.CNAME:
			all = append(all, strings.TrimSuffix(r.Target, "."))
		}
	}
	switch {
	case reply.Rcode == dns.RcodeNameError:
		return "none"
	case reply.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[reply.Rcode]
	case len(all) == 0:
		return "nodata"
	}
	return strings.Join(uniqueSorted(all), " ")
}
