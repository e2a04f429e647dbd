package harness

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const statistics = `DNS Performance Testing Tool
Version 2.10.0

[Status] Command line: dnsperf -p 5300
[Status] Testing complete (time limit)

Statistics:

  Queries sent:         1000
  Queries completed:    998 (99.80%)
  Queries lost:         2 (0.20%)

  Response codes:       NOERROR 990 (99.20%), NXDOMAIN 8 (0.80%)
  Average packet size:  request 38, response 54
  Run time (s):         0.250000
  Queries per second:   3992.000000

  Average Latency (s):  0.000600 (min 0.000100, max 0.003000)
  Latency StdDev (s):   0.000200
`

func TestParse(t *testing.T) {
	got, err := parseDnsperf([]byte(statistics))
	if err != nil {
		t.Fatal(err)
	}
	want := LoadResult{
		Sent: 1000, Completed: 998, Lost: 2,
		Rcodes:  map[string]uint64{"NOERROR": 990, "NXDOMAIN": 8},
		Request: 38, Response: 54, Elapsed: 250 * time.Millisecond,
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(LoadResult{})); d != "" {
		t.Errorf("statistics (-want +got):\n%s", d)
	}
}

func TestParseBroken(t *testing.T) {
	for _, test := range []struct{ name, old, put string }{
		{"no statistics", statistics, "Error: nothing to do\n"},
		{"a line is missing", "  Queries lost:         2 (0.20%)\n", ""},
		{"no number", "Queries sent:         1000", "Queries sent:         many"},
		{"a number is missing", "request 38, response 54", "request 38"},
		{"a count is missing", "NXDOMAIN 8 (0.80%)", "NXDOMAIN x (0.80%)"},
		{"no time", "0.250000", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(statistics, test.old, test.put, 1)
			if text == statistics {
				t.Fatal("the case changes nothing")
			}
			if o, err := parseDnsperf([]byte(text)); err == nil {
				t.Errorf("read as %+v, want an error", o)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(statistics))
	f.Add([]byte("Queries sent:\nResponse codes: A 1 (\nRun time (s): NaN\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if o, err := parseDnsperf(text); err == nil && o.Rcodes == nil {
			t.Errorf("no map in %+v", o)
		}
	})
}

func TestOutcomeCheck(t *testing.T) {
	whole := LoadResult{Sent: 5, Completed: 5, Rcodes: map[string]uint64{"NOERROR": 5}}
	for _, test := range []struct {
		name string
		o    LoadResult
		ok   bool
	}{
		{"all answered", whole, true},
		{"nothing asked", LoadResult{Rcodes: map[string]uint64{}}, false},
		{"one lost", LoadResult{Sent: 6, Completed: 5, Lost: 1, Rcodes: whole.Rcodes}, false},
		{"one of a thousand lost", LoadResult{Sent: 1000, Completed: 999, Lost: 1, Rcodes: map[string]uint64{"NOERROR": 999}}, true},
		{"two of a thousand lost", LoadResult{Sent: 1000, Completed: 998, Lost: 2, Rcodes: map[string]uint64{"NOERROR": 998}}, false},
		{"one refused", LoadResult{Sent: 5, Completed: 5, Rcodes: map[string]uint64{"NOERROR": 4, "REFUSED": 1}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := test.o.Check("NOERROR"); (err == nil) != test.ok {
				t.Errorf("check = %v, want success %v", err, test.ok)
			}
		})
	}
}
