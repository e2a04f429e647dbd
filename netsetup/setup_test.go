// These tests use lockTries, recheck and families, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"
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
			f := newFakeNode()
			f.noDummy = tt.noDummy
			f.putInterface(Interface{Name: "lo", Kind: "device"}) // down
			s := newSetup(t, dualStack(), f)
			check.NoError(t, s.EnsureInterface(t.Context()))
			check.Equal(t, strings.TrimPrefix(tt.want, "\n"), strings.ReplaceAll(f.dump(), "lo kind device up false", "lo kind device up true"), "after Links")
			if tt.noDummy != strings.Contains(f.dump(), "link lo kind device up true") {
				t.Errorf("lo must be brought up if and only if it is used:\n%s", f.dump())
			}
			check.NoError(t, s.EnsureRules(t.Context()))
			apply(t, s)
			wantComplete(t, f, s, "after Rules")
			once := f.dump()
			apply(t, s)
			if diff := cmp.Diff(once, f.dump()); diff != "" {
				t.Errorf("twice (-once +twice):\n%s", diff)
			}
		})
	}
}

func TestNothingToSetUpTouchesNothing(t *testing.T) {
	f := newFakeNode()
	f.fail = func(call string) error {
		t.Errorf("called %s", call)
		return nil
	}
	s := newSetup(t, Config{}, f)
	apply(t, s)
	s.recheck(t.Context())
	if err := s.Teardown(0, nil); err != nil {
		t.Error(err)
	}
	// The kernel's own Node is not opened either: this needs no root.
	apply(t, newSetup(t, Config{}, nil))
}

// recordChanges makes f keep the calls that change something: of iptables the tables that are
// written.
func recordChanges(f *fakeNode) *[]string {
	var calls []string
	f.fail = func(call string) error {
		for _, p := range []string{"AddDummy", "AddAddr", "SetUp", "Delete", "openOwnerTable"} {
			if strings.HasPrefix(call, p) {
				calls = append(calls, call)
			}
		}
		if program, _, restores := strings.Cut(call, "-restore "); restores {
			for line := range strings.Lines(call) {
				if _, table, found := strings.Cut(line, "*"); found {
					calls = append(calls, program+" "+strings.TrimSpace(table))
				}
			}
		}
		return nil
	}
	return &calls
}

func TestOrderOfSteps(t *testing.T) {
	f := newFakeNode()
	calls := recordChanges(f)
	c := dualStack()
	c.Addresses = c.Addresses[1:]
	s := newSetup(t, c, f)
	apply(t, s)
	want := []string{
		"AddDummy nodelocaldns", "SetUp nodelocaldns", "AddAddr {nodelocaldns fd00::a/128 }",
		"openOwnerTable [fd00::a]", "ip6tables filter", "ip6tables raw", "ip6tables nat",
	}
	check.Equal(t, want, *calls, "start")

	*calls = nil
	if err := s.Divert(t.Context(), servers[2:]); err != nil || *calls != nil {
		t.Errorf("the same diversion again: %v, calls %q", err, *calls)
	}
	check.NoError(t, s.Teardown(0, nil))
	want = []string{"ip6tables raw", "ip6tables nat", "ip6tables filter", "DeleteInterface nodelocaldns"}
	check.Equal(t, want, *calls, "teardown")
}

// TestEveryCallFails lets each call of each step fail in turn. The step reports it
// with a type and a count, leaves no NOTRACK without its ACCEPT, and the next try
// brings the node to the same state as if nothing had failed.
func TestEveryCallFails(t *testing.T) {
	broken := errors.New("the call failed")
	steps := []struct {
		name string
		// prepare comes before the failing step, which returns what it reports.
		prepare func(t *testing.T, s *Setup, f *fakeNode)
		step    func(s *Setup) error
	}{
		{"Links", func(*testing.T, *Setup, *fakeNode) {}, func(s *Setup) error { return s.EnsureInterface(context.Background()) }},
		{"Rules", func(t *testing.T, s *Setup, _ *fakeNode) {
			check.NoError(t, s.EnsureInterface(t.Context()))
		}, func(s *Setup) error { return s.EnsureRules(context.Background()) }},
		{"recheck", func(t *testing.T, s *Setup, f *fakeNode) {
			apply(t, s)
			damage(t, f)
		}, func(s *Setup) error {
			before := totalErrors(s)
			s.recheck(context.Background())
			if totalErrors(s) == before {
				return nil
			}
			return &Error{Type: Iptables, Err: broken}
		}},
		{"Teardown", func(t *testing.T, s *Setup, _ *fakeNode) { apply(t, s) }, func(s *Setup) error { return s.Teardown(0, nil) }},
	}
	for _, noDummy := range []bool{false, true} {
		for _, step := range steps {
			t.Run(fmt.Sprintf("%s/noDummy=%v", step.name, noDummy), func(t *testing.T) {
				for n := 0; ; n++ {
					f := newFakeNode()
					f.noDummy = noDummy
					before := f.dump()
					s := newSetup(t, dualStack(), f)
					step.prepare(t, s, f)
					call, failed := 0, ""
					f.fail = func(what string) error {
						call++
						if call == n+1 {
							failed = what
							return broken
						}
						return nil
					}
					err := step.step(s)
					f.fail = nil
					if failed == "" {
						if n < 5 {
							t.Fatalf("the step makes %d calls only", n)
						}
						return // every call has had its turn
					}
					var e *Error
					// A write that fails is tried again after another look; who can't
					// have a table of its own uses another rule; of default routes that
					// can't be read the last known ones count.
					mended := strings.Contains(failed, "-restore") || strings.HasPrefix(failed, "openOwnerTable") ||
						strings.HasPrefix(failed, "defaultInterfaces")
					if err == nil && mended {
						if step.name != "Teardown" {
							wantComplete(t, f, s, failed)
						} else if diff := cmp.Diff(before, f.dump()); diff != "" {
							t.Fatalf("%s fails (-before +after):\n%s", failed, diff)
						}
						continue
					}
					if !errors.As(err, &e) || !errors.Is(err, broken) || totalErrors(s) != 1 {
						t.Fatalf("%s fails: reported %v, counted %d", failed, err, totalErrors(s))
					}
					if step.name != "recheck" { // which starts from such a state
						wantAcceptBeforeNotrack(t, f, failed)
					}

					if step.name == "Teardown" {
						err = s.Teardown(0, nil)
						if diff := cmp.Diff(before, f.dump()); err != nil || diff != "" {
							t.Fatalf("%s fails: the second teardown: %v (-before +after):\n%s", failed, err, diff)
						}
						continue
					}
					if step.name == "recheck" {
						s.recheck(t.Context())
					} else {
						apply(t, s)
					}
					wantComplete(t, f, s, failed)
				}
			})
		}
	}
}

// damage takes away and doubles parts of the plan, as a stranger might.
func damage(t *testing.T, f *fakeNode) {
	t.Helper()
	for _, command := range []string{
		"iptables -t filter -F NODENS-INPUT",
		"iptables -t filter -F INPUT",
		"ip6tables -t nat -I OUTPUT 1 -j NODENS-OUTPUT",
		"ip6tables -t raw -F PREROUTING",
		"iptables -t raw -F NODENS-OUTPUT",
	} {
		check.NoError(t, f.runIptables(command))
	}
	addrs, err := f.Addrs()
	check.NoError(t, err)
	check.NoError(t, f.DeleteAddr(addrs[0]))
	f.putInterface(Interface{Name: loopback, Kind: "device"})
	if addrs[0].Interface != loopback {
		f.putInterface(Interface{Name: addrs[0].Interface, Kind: kindDummy})
	}
}

// totalErrors is the number of errors counted, of all types.
func totalErrors(s *Setup) (n uint64) {
	for _, v := range s.Stats().Errors {
		n += v
	}
	return n
}

// wantAcceptBeforeNotrack checks that a family with rules that make packets untracked
// has all that let them pass.
func wantAcceptBeforeNotrack(t *testing.T, f *fakeNode, when string) {
	t.Helper()
	dump := f.dump()
	for _, program := range families() {
		untracks := strings.Contains(dump, program.String()+" raw -A NODENS")
		passes := strings.Count(dump, program.String()+" filter -A NODENS") == 4 &&
			strings.Contains(dump, program.String()+" filter -A INPUT -m comment --comment \""+jumpText) &&
			strings.Contains(dump, program.String()+" filter -A OUTPUT -m comment --comment \""+jumpText)
		if untracks && !passes {
			t.Errorf("%s fails: packets of %v are untracked and may not pass:\n%s", when, program, dump)
		}
	}
}

// wantComplete checks that the whole plan is in place, each part once.
func wantComplete(t *testing.T, f *fakeNode, s *Setup, when string) {
	t.Helper()
	p, dump := s.Plan(), f.dump()
	for _, family := range families() {
		if !family.has(p.rules.addrs) {
			continue
		}
		for _, c := range chains() {
			var lines []string
			for line := range strings.Lines(dump) {
				if rest, found := strings.CutPrefix(line, family.String()+" "+c.table+" -A "+c.name+" "); found {
					lines = append(lines, strings.TrimSpace(rest))
				}
			}
			if diff := cmp.Diff(chainRules(s.rules, family, c), lines); diff != "" {
				t.Fatalf("%s: %v %v (-want +got):\n%s", when, family, c, diff)
			}
			jump := family.String() + " " + c.table + " -A " + c.hook + " " + jumpComment(s.rules) + " -j " + c.name
			if n := strings.Count(dump, jump); n != 1 && c.hook != "" && lines != nil {
				t.Fatalf("%s: %d of %s in\n%s", when, n, jump, dump)
			}
		}
	}
	if f.ownerTables == 0 && !s.rules.untrackHost {
		t.Fatalf("%s: nobody keeps the node's own queries untracked", when)
	}
	for _, a := range p.Addresses {
		if !strings.Contains(dump, fmt.Sprintf("addr %v on ", a)) {
			t.Fatalf("%s: %v is missing in\n%s", when, a, dump)
		}
	}
	home := p.Interface
	if f.noDummy {
		home = loopback
	}
	if l, err := f.Interface(home); err != nil || !l.Up {
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
			f := newFakeNode()
			c := dualStack()
			c.Addresses = c.Addresses[:1]
			s := newSetup(t, c, f)
			check.NoError(t, s.EnsureInterface(t.Context()))
			calls := 0
			f.fail = func(call string) error {
				if !strings.HasPrefix(call, "iptables ") {
					return nil
				}
				if calls++; calls <= tt.locked {
					return fmt.Errorf("iptables: %w", ErrLocked)
				}
				return nil
			}
			err := s.EnsureRules(t.Context())
			if st := s.Stats(); st.RulesInPlace != (tt.want == "") || st.RulesSince.IsZero() || st.NoSocketMatch || st.FailOpen != st.RulesInPlace {
				t.Errorf("the state of the rules is %+v", st)
			}
			if tt.want == "" {
				check.NoError(t, err)
				wantComplete(t, f, s, tt.name)
				return
			}
			wantError(t, err, tt.want, "iptables rules", "/run/xtables.lock")
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
			fake := newFakeNode()
			s := newSetup(t, dualStack(), fake)
			fake.fail = func(call string) error {
				if strings.HasPrefix(call, f.String()) {
					return ErrNoTool
				}
				return nil
			}
			wantError(t, s.EnsureRules(t.Context()), Iptables, f.String(), "install")
			for _, other := range families() {
				if got := strings.Contains(fake.dump(), other.String()+" raw -A NODENS"); got != (other != f) {
					t.Errorf("%v rules are in place: %v", other, got)
				}
			}
			if err := s.Teardown(0, nil); err == nil {
				t.Error("Teardown hides that it could not look")
			}
			if strings.Contains(fake.dump(), "NODENS") {
				t.Errorf("left behind:\n%s", fake.dump())
			}
		})
	}
}

func TestDoneContextStopsBeforeTheNextCall(t *testing.T) {
	f := newFakeNode()
	s := newSetup(t, dualStack(), f)
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	f.fail = func(call string) error {
		if strings.Contains(call, "-S") {
			if looks++; looks == 3 {
				cancel()
			}
		}
		return nil
	}
	if err := s.EnsureRules(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Rules, cancelled in its 3rd look, returned %v", err)
	}
	if looks != 3 {
		t.Errorf("%d looks, want 3", looks)
	}
	calls := 0
	f.fail = func(string) error { calls++; return nil }
	if err := s.EnsureInterface(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Links returned %v", err)
	}
	if err := s.EnsureRules(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Rules returned %v", err)
	}
	s.recheck(ctx)
	if calls != 0 {
		t.Errorf("%d calls with a done context", calls)
	}
	if got := totalErrors(s); got != 0 {
		t.Errorf("a shutdown counts as %d errors", got)
	}
}

func TestStatsBelongToTheCaller(t *testing.T) {
	s := newSetup(t, dualStack(), newFakeNode())
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

// TestTeardownCallback: the callback comes once, after the rules and before the addresses,
// and also when nothing is torn down, as SkipTeardown says.
func TestTeardownCallback(t *testing.T) {
	for _, skip := range []bool{false, true} {
		fake := newFakeNode()
		c := dualStack()
		c.SkipTeardown = skip
		s := newSetup(t, c, fake)
		apply(t, s)
		applied := strings.Replace(fake.dump(), "owner tables 1\n", "", 1) // goes with the process in any case
		calls := 0
		if err := s.Teardown(0, func() {
			calls++
			dump := fake.dump()
			if rules := strings.Contains(dump, "--dport"); rules != skip {
				t.Errorf("skip %v: rules in between: %v", skip, rules)
			}
			if strings.Contains(dump, "owner tables") {
				t.Errorf("skip %v: the node's own queries are untracked still", skip)
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
		if stays := fake.dump() == applied; stays != skip {
			t.Errorf("skip %v: everything stays: %v", skip, stays)
		}
	}
}
