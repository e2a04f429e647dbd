package upstream

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// cookieOf returns the cookie of a message in hexadecimal, "" for none.
func cookieOf(m *dns.Msg) string {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if c, ok := o.(*dns.EDNS0_COOKIE); ok {
				return c.Cookie
			}
		}
	}
	return ""
}

// withCookie adds a cookie to m.
func withCookie(m *dns.Msg, cookie string) *dns.Msg {
	if m.IsEdns0() == nil {
		m.SetEdns0(1232, false)
	}
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: cookie})
	return m
}

const serverCookie = "0123456789abcdef"

// TestCookies: what is sent to a server after its replies, and which replies count.
func TestCookies(t *testing.T) {
	client := func(r request) string { return cookieOf(r.Msg)[:16] }
	good := func(r request) { r.reply(withCookie(r.answer(1), client(r)+serverCookie)) }
	for name, tt := range map[string]struct {
		script script
		asks   int
		want   []string // of each query: the transport, and what it has: nothing, a cookie, or the server's as well
	}{
		"a server with cookies":            {good, 3, []string{"udp c", "udp c+s", "udp c+s"}},
		"a server without":                 {answerOK, 11, append(repeated("udp c", cookieTries), repeated("udp", 3)...)},
		"a server that sends options back": {func(r request) { r.reply(withCookie(r.answer(1), client(r))) }, 2, []string{"udp c", "udp c"}},
		"a wrong client cookie is dropped": {func(r request) {
			r.reply(withCookie(r.answer(2), hex.EncodeToString([]byte("attacker"))+serverCookie))
			r.reply(withCookie(r.answer(3), client(r)[:14]))
			good(r)
		}, 2, []string{"udp c", "udp c+s"}},
		"a reply without a cookie is not believed": {func(r request) {
			if r.over == "udp" && r.nth > 1 {
				r.reply(r.answer(2))
				return
			}
			good(r)
		}, 2, []string{"udp c", "udp c+s", "tcp c+s"}},
		"cookies that end": {func(r request) {
			if r.nth == 1 {
				good(r)
				return
			}
			answerOK(r)
		}, 4, []string{"udp c", "udp c+s", "tcp c+s", "udp", "udp"}},
		"BADCOOKIE once": {func(r request) {
			if len(cookieOf(r.Msg)) == 16 {
				m := withCookie(r.answer(0), client(r)+serverCookie)
				m.Rcode = dns.RcodeBadCookie
				r.reply(m)
				return
			}
			good(r)
		}, 2, []string{"udp c", "udp c+s", "udp c+s"}},
		"BADCOOKIE always": {func(r request) {
			m := withCookie(r.answer(0), client(r)+serverCookie)
			if m.Rcode = dns.RcodeBadCookie; r.over == "tcp" {
				good(r)
				return
			}
			r.reply(m)
		}, 1, []string{"udp c", "udp c+s", "tcp c+s"}},
		"FORMERR because of the option": {func(r request) {
			if cookieOf(r.Msg) == "" {
				answerOK(r)
				return
			}
			m := r.answer(0)
			m.Rcode = dns.RcodeFormatError
			m.SetEdns0(1232, false)
			r.reply(m)
		}, 2, []string{"udp c", "udp", "udp"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, tt.script)
			p := newPool(t, forwardTo(f))
			for range tt.asks {
				if resp, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil || resp.Answers != 1 {
					t.Fatalf("%d answers, error %v", resp.Answers, err)
				}
			}
			var got []string
			for _, r := range f.requests() {
				got = append(got, r.over+map[int]string{0: "", 16: " c", 32: " c+s"}[len(cookieOf(r.Msg))])
			}
			equal(t, tt.want, got, "queries")
		})
	}
}

func repeated(s string, n int) (list []string) {
	for range n {
		list = append(list, s)
	}
	return list
}

// TestCookiesDropped: a server that drops queries with cookies is asked without them after a few.
func TestCookiesDropped(t *testing.T) {
	f := startFake(t, func(r request) {
		if cookieOf(r.Msg) == "" {
			answerOK(r)
		}
	})
	cfg := forwardTo(f)
	cfg.ReadTimeout = 50 * time.Millisecond
	p := newPool(t, cfg)
	failed := 0
	for range 3 * cookieTries {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
			failed++
		}
	}
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil || failed > cookieTries {
		t.Errorf("%d of %d failed, and then %v", failed, 3*cookieTries, err)
	}
}

// TestCookiePause: after the pause a server is tried again; each server has its own client cookie.
func TestCookiePause(t *testing.T) {
	now := time.Now()
	var c, other cookies
	for i := range cookieTries + 1 {
		if _, s := c.put(nil, now, true); s.sent != (i < cookieTries) {
			t.Errorf("query %d: sent %t", i, s.sent)
		}
	}
	if _, s := c.put(nil, now.Add(cookiePause-1), true); s.sent {
		t.Error("sent during the pause")
	}
	options, first := c.put(nil, now.Add(cookiePause), true)
	_, second := other.put(nil, now, true)
	if !first.sent || first.client == second.client || len(options) != 4+clientCookieLen {
		t.Errorf("%v %v %x", first, second, options)
	}
	if _, s := c.put(nil, now.Add(cookiePause), false); s.sent {
		t.Error("a repetition has a cookie although the server is not known to have any")
	}
	if _, s := other.put(wire.SetOption(nil, wire.OptionCookie, []byte("configured")), now, true); s.sent {
		t.Error("a cookie of the Corefile is replaced")
	}
}
