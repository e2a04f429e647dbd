package app

import (
	"cmp"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/kernelpath"
)

// newKernelCopies returns list for the reply, in order.
func newKernelCopies(list []kernelpath.CopyInfo) []report.KernelCopy {
	slices.SortFunc(list, func(a, b kernelpath.CopyInfo) int {
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
func formFlags(f kernelpath.Form) []string {
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
