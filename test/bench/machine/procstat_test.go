package machine

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 70 30 13 14 20 0 4 0"
	for _, test := range []struct {
		name, text   string
		user, kernel uint64
		ok           bool
	}{
		{"plain", "42 (nodens)" + rest, 70, 30, true},
		{"a name with a parenthesis and spaces", "42 (a) S 1 (b)" + rest, 70, 30, true},
		{"no name", "42 nodens" + rest, 0, 0, false},
		{"cut off", "42 (nodens) S 1 2 3 4 5 6 7 8 9 10 70", 0, 0, false},
		{"no number", "42 (nodens) S 1 2 3 4 5 6 7 8 9 10 x 30 13", 0, 0, false},
		{"empty", "", 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			user, kernel, err := parseStat([]byte(test.text))
			if (err == nil) != test.ok {
				t.Fatalf("parseStat = %v, want success %v", err, test.ok)
			}
			if test.ok && (user != test.user || kernel != test.kernel) {
				t.Errorf("user %d, kernel %d, want %d and %d", user, kernel, test.user, test.kernel)
			}
		})
	}
}

func TestParseIdle(t *testing.T) {
	const stat = "cpu  9 9 9 900 90 0\ncpu0 1 2 3 400 50 0 0 5 0 0\ncpu1 1 2 3 x 7 0\ncpu2 1 2 3\ncpu11 1 2 3 10 1 0\n"
	for _, test := range []struct {
		name string
		core int
		want time.Duration
		ok   bool
	}{
		{"first", 0, 4500 * time.Millisecond, true},
		{"two digits", 11, 110 * time.Millisecond, true},
		{"no number", 1, 0, false},
		{"cut off", 2, 0, false},
		{"no such core", 3, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseIdle([]byte(stat), test.core)
			if (err == nil) != test.ok || got != test.want {
				t.Errorf("parseIdle = %v, %v, want %v, success %v", got, err, test.want, test.ok)
			}
		})
	}
}

func TestField(t *testing.T) {
	const status = "Name:\tnodens\nVmRSS:\t   23456 kB\nThreads:\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"
	for key, want := range map[string]uint64{
		"VmRSS:": 23456, "voluntary_ctxt_switches:": 150, "nonvoluntary_ctxt_switches:": 545, "Threads:": 0, "Name:": 0, "VmHWM:": 0,
	} {
		if got := field([]byte(status), key); got != want {
			t.Errorf("%s %d, want %d", key, got, want)
		}
	}
}

// TestRead reads the test's own meters, before and after it has worked.
func TestRead(t *testing.T) {
	before, err := ReadProcStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if before.CPU <= 0 || before.RSS == 0 {
		t.Errorf("a process that runs has %+v", before)
	}
	after := before
	for after.CPU == before.CPU {
		if after, err = ReadProcStat(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if after.CPU < before.CPU {
		t.Errorf("the clock went from %v to %v", before.CPU, after.CPU)
	}
	if _, err := ReadProcStat(1 << 30); err == nil {
		t.Error("a process that can't be has meters")
	}
}
