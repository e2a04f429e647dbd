package netsetup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetupOnAnEmptyNode(t *testing.T) {
	tests := []struct {
		name    string
		noDummy bool
		want    string
	}{
		{"dummy link", false, `
addr 169.254.20.10/32 on nodelocaldns
addr fd00::a/128 on nodelocaldns
link lo kind device up true
link nodelocaldns kind dummy up true`},
		{"loopback", true, `
addr 169.254.20.10/32 on lo
addr fd00::a/128 on lo
link lo kind device up true`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := NewFake()
			f.NoDummy = tt.noDummy
			f.PutLink(Link{Name: "lo", Kind: "device"}) // down
			s := newSetup(t, dualStack(), f)
			if err := s.Links(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), strings.ReplaceAll(f.Dump(), "lo kind device up false", "lo kind device up true")); diff != "" {
				t.Errorf("after Links (-want +got):\n%s", diff)
			}
			if tt.noDummy != strings.Contains(f.Dump(), "link lo kind device up true") {
				t.Errorf("lo must be brought up if and only if it is used:\n%s", f.Dump())
			}
			if err := s.Rules(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, r := range s.Plan().Rules {
				if n := strings.Count(f.Dump(), r.String()); n != 1 {
					t.Errorf("%d of rule %v", n, r)
				}
			}
			once := f.Dump()
			apply(t, s)
			if diff := cmp.Diff(once, f.Dump()); diff != "" {
				t.Errorf("twice (-once +twice):\n%s", diff)
			}
		})
	}
}

func TestNothingToSetUpTouchesNothing(t *testing.T) {
	f := NewFake()
	f.Fail = func(call string) error {
		t.Errorf("called %s", call)
		return nil
	}
	s := newSetup(t, Config{}, f)
	apply(t, s)
	s.recheck(t.Context())
	if err := s.Teardown(nil); err != nil {
		t.Error(err)
	}
	// The kernel's own Node is not opened either: this needs no root.
	apply(t, newSetup(t, Config{}, nil))
}

// record makes f keep the calls that change something.
func record(f *Fake) *[]string {
	var calls []string
	f.Fail = func(call string) error {
		for _, p := range []string{"AddLink", "AddAddr", "SetUp", "Delete", "Insert"} {
			if strings.HasPrefix(call, p) {
				calls = append(calls, call)
			}
		}
		return nil
	}
	return &calls
}

func TestOrderOfSteps(t *testing.T) {
	f := NewFake()
	calls := record(f)
	c := dualStack()
	c.Addresses = c.Addresses[1:]
	s := newSetup(t, c, f)
	apply(t, s)
	want := []string{"AddLink nodelocaldns", "SetUp nodelocaldns", "AddAddr {nodelocaldns fd00::a/128}"}
	for _, r := range s.Plan().Rules {
		want = append(want, "InsertRule "+r.String())
	}
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Errorf("start (-want +got):\n%s", diff)
	}
	firstRaw := slices.IndexFunc(*calls, func(s string) bool { return strings.Contains(s, "NOTRACK") })
	if slices.ContainsFunc((*calls)[firstRaw:], func(s string) bool { return strings.Contains(s, "ACCEPT") }) {
		t.Error("an ACCEPT rule comes after a NOTRACK rule of its address")
	}

	*calls = nil
	if err := s.Teardown(nil); err != nil {
		t.Fatal(err)
	}
	want = nil
	for _, r := range slices.Backward(s.Plan().Rules) {
		want = append(want, "DeleteRule "+r.String())
	}
	want = append(want, "DeleteLink nodelocaldns")
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Errorf("teardown (-want +got):\n%s", diff)
	}
}

// TestEveryCallFails lets each call of each step fail in turn. The step reports it
// with a type and a count, leaves no NOTRACK without its ACCEPT, and the next try
// brings the node to the same state as if nothing had failed.
func TestEveryCallFails(t *testing.T) {
	broken := errors.New("the call failed")
	steps := []struct {
		name string
		// prepare comes before the failing step, which returns what it reports.
		prepare func(t *testing.T, s *Setup, f *Fake)
		step    func(s *Setup) error
	}{
		{"Links", func(*testing.T, *Setup, *Fake) {}, func(s *Setup) error { return s.Links(context.Background()) }},
		{"Rules", func(t *testing.T, s *Setup, _ *Fake) {
			if err := s.Links(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, func(s *Setup) error { return s.Rules(context.Background()) }},
		{"recheck", func(t *testing.T, s *Setup, f *Fake) {
			apply(t, s)
			ruin(t, f, s.Plan())
		}, func(s *Setup) error {
			before := total(s)
			s.recheck(context.Background())
			if total(s) == before {
				return nil
			}
			return &Error{Type: Iptables, Err: broken}
		}},
		{"Teardown", func(t *testing.T, s *Setup, _ *Fake) { apply(t, s) }, func(s *Setup) error { return s.Teardown(nil) }},
	}
	for _, noDummy := range []bool{false, true} {
		for _, step := range steps {
			t.Run(fmt.Sprintf("%s/noDummy=%v", step.name, noDummy), func(t *testing.T) {
				for n := 0; ; n++ {
					f := NewFake()
					f.NoDummy = noDummy
					before := f.Dump()
					s := newSetup(t, dualStack(), f)
					step.prepare(t, s, f)
					call, failed := 0, ""
					f.Fail = func(what string) error {
						call++
						if call == n+1 {
							failed = what
							return broken
						}
						return nil
					}
					err := step.step(s)
					f.Fail = nil
					if failed == "" {
						if n < 5 {
							t.Fatalf("the step makes %d calls only", n)
						}
						return // every call has had its turn
					}
					var e *Error
					if !errors.As(err, &e) || !errors.Is(err, broken) || total(s) != 1 {
						t.Fatalf("%s fails: reported %v, counted %d", failed, err, total(s))
					}
					if step.name != "recheck" { // which starts from such a state
						wantAcceptBeforeNotrack(t, f, s.Plan(), failed)
					}

					if step.name == "Teardown" {
						err = s.Teardown(nil)
						if diff := cmp.Diff(before, f.Dump()); err != nil || diff != "" {
							t.Fatalf("%s fails: the second teardown: %v (-before +after):\n%s", failed, err, diff)
						}
						continue
					}
					if step.name == "recheck" {
						s.recheck(t.Context())
					} else {
						apply(t, s)
					}
					wantComplete(t, f, s.Plan(), failed)
				}
			})
		}
	}
}

// ruin takes away and doubles parts of the plan, as a stranger might.
func ruin(t *testing.T, f *Fake, p Plan) {
	t.Helper()
	for i, r := range p.Rules {
		var err error
		switch i % 3 {
		case 0:
			_, err = f.DeleteRule(r)
		case 1:
			err = f.InsertRule(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	addrs, err := f.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.DeleteAddr(addrs[0]); err != nil {
		t.Fatal(err)
	}
	f.PutLink(Link{Name: loopback, Kind: "device"})
	if addrs[0].Link != loopback {
		f.PutLink(Link{Name: addrs[0].Link, Kind: kindDummy})
	}
}

// total is the number of errors counted, of all types.
func total(s *Setup) (n uint64) {
	for _, v := range s.Stats().Errors {
		n += v
	}
	return n
}

// wantAcceptBeforeNotrack checks that an address with a NOTRACK rule for the DNS
// port has all its ACCEPT rules.
func wantAcceptBeforeNotrack(t *testing.T, f *Fake, p Plan, when string) {
	t.Helper()
	dump := f.Dump()
	for _, a := range p.Addresses {
		var accept, accepted, untracked int
		for _, r := range p.Rules {
			if !slices.Contains(r.Spec, a.Addr().String()) {
				continue
			}
			there := strings.Contains(dump, r.String())
			switch {
			case r.Table == "filter":
				accept++
				if there {
					accepted++
				}
			case there:
				untracked++
			}
		}
		if untracked > 0 && accepted < accept {
			t.Errorf("%s fails: %v has %d NOTRACK rules and %d of %d ACCEPT rules",
				when, a, untracked, accepted, accept)
		}
	}
}

// wantComplete checks that the whole plan is in place, each part once.
func wantComplete(t *testing.T, f *Fake, p Plan, when string) {
	t.Helper()
	dump := f.Dump()
	for _, r := range p.Rules {
		if n := strings.Count(dump, r.String()); n != 1 {
			t.Fatalf("%s: %d of %v in\n%s", when, n, r, dump)
		}
	}
	for _, a := range p.Addresses {
		if !strings.Contains(dump, fmt.Sprintf("addr %v on ", a)) {
			t.Fatalf("%s: %v is missing in\n%s", when, a, dump)
		}
	}
	home := p.Link
	if f.NoDummy {
		home = loopback
	}
	if l, err := f.Link(home); err != nil || !l.Up {
		t.Fatalf("%s: link %s: %+v, %v", when, home, l, err)
	}
}

func TestLockIsWaitedFor(t *testing.T) {
	tests := []struct {
		name   string
		locked int // how many calls find the lock held
		want   ErrorType
	}{
		{"for a while", lockTries - 1, ""},
		{"for too long", lockTries, IptablesLock},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := NewFake()
			c := dualStack()
			c.Addresses = c.Addresses[:1]
			s := newSetup(t, c, f)
			if err := s.Links(t.Context()); err != nil {
				t.Fatal(err)
			}
			calls := 0
			f.Fail = func(string) error {
				if calls++; calls <= tt.locked {
					return fmt.Errorf("iptables: %w", ErrLocked)
				}
				return nil
			}
			err := s.Rules(t.Context())
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				wantComplete(t, f, s.Plan(), tt.name)
				return
			}
			wantError(t, err, tt.want, "rule 1 of", "/run/xtables.lock")
			if calls != lockTries {
				t.Errorf("%d tries, want %d", calls, lockTries)
			}
			if got := s.Stats().Errors[tt.want]; got != 1 {
				t.Errorf("%d errors of the type counted, want 1", got)
			}
		})
	}
}

func TestOneFamilyDoesNotStopTheOther(t *testing.T) {
	for _, f := range []Family{IPv4, IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			fake := NewFake()
			s := newSetup(t, dualStack(), fake)
			fake.Fail = func(call string) error {
				if strings.Contains(call, " "+f.String()+" ") {
					return ErrNoTool
				}
				return nil
			}
			wantError(t, s.Rules(t.Context()), Iptables, f.String(), "install")
			for _, r := range s.Plan().Rules {
				if got := strings.Contains(fake.Dump(), r.String()); got != (r.Family != f) {
					t.Errorf("rule in place: %v: %v", got, r)
				}
			}
			if err := s.Teardown(nil); err == nil {
				t.Error("Teardown hides that it could not look")
			}
			for _, r := range s.Plan().Rules {
				if strings.Contains(fake.Dump(), r.String()) {
					t.Errorf("left behind: %v", r)
				}
			}
		})
	}
}

func TestSkipTeardown(t *testing.T) {
	f := NewFake()
	c := dualStack()
	c.SkipTeardown = true
	s := newSetup(t, c, f)
	apply(t, s)
	before := f.Dump()
	if err := s.Teardown(nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, f.Dump()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestNoIPv6(t *testing.T) {
	f := NewFake()
	f.NoIPv6 = true
	s := newSetup(t, dualStack(), f)
	wantError(t, s.Links(t.Context()), InterfaceAdd, "fd00::a/128", "disable_ipv6", "-localip", "-setupinterface=false")
	if !strings.Contains(f.Dump(), "addr 169.254.20.10/32 on nodelocaldns") {
		t.Errorf("the IPv4 address is missing:\n%s", f.Dump())
	}
}

func TestDoneContextStopsBeforeTheNextCall(t *testing.T) {
	f := NewFake()
	s := newSetup(t, dualStack(), f)
	ctx, cancel := context.WithCancel(t.Context())
	inserted := 0
	f.Fail = func(call string) error {
		if strings.HasPrefix(call, "InsertRule") {
			if inserted++; inserted == 3 {
				cancel()
			}
		}
		return nil
	}
	if err := s.Rules(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "rule 4 of") {
		t.Errorf("Rules, cancelled in its 3rd rule, returned %v", err)
	}
	if inserted != 3 {
		t.Errorf("%d rules inserted, want 3", inserted)
	}
	calls := 0
	f.Fail = func(string) error { calls++; return nil }
	if err := s.Links(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Links returned %v", err)
	}
	if err := s.Rules(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Rules returned %v", err)
	}
	s.recheck(ctx)
	if calls != 0 {
		t.Errorf("%d calls with a done context", calls)
	}
	if got := total(s); got != 0 {
		t.Errorf("a shutdown counts as %d errors", got)
	}
}

func TestStatsBelongToTheCaller(t *testing.T) {
	s := newSetup(t, dualStack(), NewFake())
	for _, typ := range ErrorTypes() {
		if v, found := s.Stats().Errors[typ]; !found || v != 0 {
			t.Errorf("%s: %d, %v; want 0, true", typ, v, found)
		}
	}
	s.Stats().Errors[Iptables] = 5
	if got := s.Stats().Errors[Iptables]; got != 0 {
		t.Errorf("a caller's change is seen by the next: %d", got)
	}
}

// TestBetween: the callback comes once, after the rules and before the addresses,
// and also when nothing is torn down.
func TestBetween(t *testing.T) {
	for _, skip := range []bool{false, true} {
		fake := NewFake()
		c := dualStack()
		c.SkipTeardown = skip
		s := newSetup(t, c, fake)
		apply(t, s)
		calls := 0
		if err := s.Teardown(func() {
			calls++
			dump := fake.Dump()
			if rules := strings.Contains(dump, "--dport"); rules != skip {
				t.Errorf("skip %v: rules in between: %v", skip, rules)
			}
			if !strings.Contains(dump, "addr 169.254.20.10/32") {
				t.Errorf("skip %v: the address is gone in between:\n%s", skip, dump)
			}
		}); err != nil {
			t.Error(err)
		}
		if calls != 1 {
			t.Errorf("skip %v: called %d times, want once", skip, calls)
		}
	}
}
