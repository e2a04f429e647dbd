package netsetup

// Inside the package: so are the tests that run themselves again.

import "flag"

// coverageFlag returns the flag that has another run of this test binary add to this one's
// coverage counters, if it keeps any.
func coverageFlag() []string {
	if f := flag.Lookup("test.gocoverdir"); f != nil && f.Value.String() != "" {
		return []string{"-" + f.Name + "=" + f.Value.String()}
	}
	return nil
}
