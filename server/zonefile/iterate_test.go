package zonefile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/race"
)

const zTest wire.Name = "\x01z\x04test\x00"

// asText returns rr in presentation form, read by an independent implementation.
func asText(t *testing.T, rr wire.RR) string {
	t.Helper()
	packed := append(slices.Clone(rr.Owner), byte(rr.Type>>8), byte(rr.Type), 0, 1,
		byte(rr.TTL>>24), byte(rr.TTL>>16), byte(rr.TTL>>8), byte(rr.TTL), byte(len(rr.Data)>>8), byte(len(rr.Data)))
	got, n, err := dns.UnpackRR(append(packed, rr.Data...), 0)
	if err != nil || n != len(packed)+len(rr.Data) {
		t.Fatalf("%x: %v", packed, err)
	}
	return strings.ReplaceAll(strings.ReplaceAll(got.String(), "\t", " "), " IN ", " ")
}

// TestAll: the records of a zone in canonical order, each once, with their own TTLs.
func TestAll(t *testing.T) {
	z := table(t, `
@     60 SOA ns host 7 2 3 4 30
www   61 A 192.0.2.1
www   61 A 192.0.2.1
www   61 A 192.0.2.2
www   61 RRSIG A 13 2 61 20300101000000 20200101000000 1 z.test. aGVsbG8=
a.b.c 62 TXT "deep"
*     63 CNAME www
@     60 NS ns
`).Zone(zTest)
	var got []string
	for rr := range z.All() {
		got = append(got, asText(t, rr))
	}
	want := []string{
		"z.test. 60 NS ns.z.test.",
		"z.test. 60 SOA ns.z.test. host.z.test. 7 2 3 4 30",
		"*.z.test. 63 CNAME www.z.test.",
		`a.b.c.z.test. 62 TXT "deep"`,
		"www.z.test. 61 A 192.0.2.1",
		"www.z.test. 61 A 192.0.2.2",
		"www.z.test. 61 RRSIG A 13 2 61 20300101000000 20200101000000 1 z.test. aGVsbG8=",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(got) != z.Records() {
		t.Errorf("%d records, the zone says %d", len(got), z.Records())
	}
	if got := asText(t, z.SOA()); got != want[1] {
		t.Errorf("the SOA record is %s", got)
	}
}

// TestAllStops: a transfer that ends early gets no further records.
func TestAllStops(t *testing.T) {
	z := table(t, shapes).Zone(zTest)
	for want := range z.Records() {
		n := 0
		for range z.All() {
			if n++; n > want {
				break
			}
		}
		if n != want+1 {
			t.Fatalf("%d records after a stop at %d", n, want+1)
		}
	}
}

// TestAllAllocPin: reading all records allocates nothing.
func TestAllAllocPin(t *testing.T) {
	race.SkipSequential(t)
	z := table(t, shapes).Zone(zTest)
	bytes := 0
	if n := testing.AllocsPerRun(10, func() {
		for rr := range z.All() {
			bytes += len(rr.Data)
		}
	}); n > 0 || bytes == 0 {
		t.Errorf("%v allocations, %d bytes", n, bytes)
	}
}

// TestServes: a zone is served before its data can be read.
func TestServes(t *testing.T) {
	tab, err := zonefile.New(directive(t, filepath.Join(t.TempDir(), "none")), zonefile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	data, served := tab.Data(zTest)
	if _, other := tab.Data("\x01y\x04test\x00"); !served || data != nil || other {
		t.Error("a zone without data is not served, or has data")
	}
	if z := table(t, shapes).Zone("\x03www\x01z\x04test\x00"); z != nil {
		t.Errorf("a name in the zone has the zone %s", z.Origin())
	}
}

// TestChanged: Run passes the zones that are loaded at its start, and then each new version, when it is in service.
func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "db")
		version := time.Now()
		write := func(serial int) {
			if err := os.WriteFile(path, fmt.Appendf(nil, "@ 60 SOA ns host %d 2 3 4 5\n", serial), 0o600); err != nil {
				t.Fatal(err)
			}
			version = version.Add(time.Second)
			if err := os.Chtimes(path, version, version); err != nil {
				t.Fatal(err)
			}
		}
		write(1)
		var tab *zonefile.Table
		var serials []uint32
		tab, err := zonefile.New(directive(t, path, "reload 10s"), zonefile.Options{Changed: func(z *zonefile.Zone) {
			if tab.Zone(z.Origin()) != z {
				t.Errorf("serial %d is not in service", z.Serial())
			}
			serials = append(serials, z.Serial())
		}})
		if err != nil {
			t.Fatal(err)
		}
		if len(serials) > 0 {
			t.Errorf("before Run: %d", serials)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { tab.Run(ctx); close(ended) }()
		for _, serial := range []int{1, 2, 2, 3} {
			write(serial)
			time.Sleep(30 * time.Second)
			synctest.Wait()
		}
		cancel()
		<-ended
		if diff := cmp.Diff([]uint32{1, 2, 3}, serials); diff != "" {
			t.Error(diff)
		}
	})
}
