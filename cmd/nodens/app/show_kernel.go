package app

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/fastpath"
	"github.com/nodens-dns/nodens/server/resolver"
)

// kernelClient returns what the programs know of q's client; nil without programs, and if they do not know it.
func (q *explainQuery) kernelClient() *report.KernelClient {
	if !q.kernel.available() {
		return nil
	}
	c, ok := q.kernel.program.Client(q.from.addr, q.listen)
	if !ok {
		return nil
	}
	out := &report.KernelClient{Answering: c.Answering, Result: c.Result}
	if i, err := net.InterfaceByIndex(c.Interface); err == nil {
		out.Interface = i.Name
	}
	return out
}

// explainedKernel returns what the programs have for the question of x, whose query is packet; nil without programs.
func (q *explainQuery) explainedKernel(packet []byte, x *resolver.Explanation) *report.ExplainedKernel {
	if !q.kernel.available() {
		return nil
	}
	k := &report.ExplainedKernel{Excluded: cmp.Or(q.excluded(), x.NotCopied)}
	var query wire.Query
	if query.Parse(packet) == wire.Serve {
		k.Excluded = cmp.Or(k.Excluded, fastpath.Unsupported(&query, x.Reply))
	}
	k.Copies = newKernelCopies(q.kernel.program.Copies([]byte(x.Name), x.Type, q.listen))
	return k
}

// excluded returns why the kernel answers no query to q's listener, "" if it may.
func (q *explainQuery) excluded() string {
	switch {
	case q.listener.Transport != config.PlainDNS:
		return "clients use " + q.listener.Transport.String()
	case q.proto != resolver.UDP:
		return "the query comes over TCP"
	case q.listen.Addr().IsUnspecified():
		return "the agent listens on all addresses"
	}
	return ""
}

// copiesOf returns the copies of answers for name, and of one type unless qtype is 0, at all listeners.
func (s *fastPath) copiesOf(name wire.Name, qtype uint16) []report.KernelCopy {
	if !s.available() {
		return []report.KernelCopy{}
	}
	return newKernelCopies(s.program.Copies([]byte(name), qtype, netip.AddrPort{}))
}

// newKernelCopies returns list for the reply, in order.
func newKernelCopies(list []fastpath.CopyInfo) []report.KernelCopy {
	slices.SortFunc(list, func(a, b fastpath.CopyInfo) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), a.Listener.Compare(b.Listener), slices.Compare(formFlags(a.Form), formFlags(b.Form)), cmp.Compare(a.Rcode, b.Rcode))
	})
	copies := []report.KernelCopy{}
	for _, c := range list {
		k := report.KernelCopy{
			Listener: c.Listener.String(), Type: wire.TypeName(c.Type), Flags: formFlags(c.Form), Rcode: c.Rcode.String(), State: c.State.String(), OneNamespace: c.Grouped,
		}
		if left := c.Left.Seconds(); c.Left >= 0 {
			k.TTLSeconds = &left
		}
		if idle := c.Idle.Seconds(); c.Idle >= 0 {
			k.IdleSeconds = &idle
		}
		copies = append(copies, k)
	}
	return copies
}

// formFlags returns what queries of a form have.
func formFlags(f fastpath.Form) []string {
	flags := []string{}
	for _, b := range [...]struct {
		name string
		set  bool
	}{{"RD", f.RD}, {"AD", f.AD}, {"CD", f.CD}, {"EDNS", f.EDNS}, {"DO", f.DO}} {
		if b.set {
			flags = append(flags, b.name)
		}
	}
	return flags
}
