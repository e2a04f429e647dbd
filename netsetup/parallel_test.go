package netsetup

// Inside the package: a package has one TestMain, and most tests are inside.

import (
	"flag"
	"os"
	"testing"
)

// parallelTests is how many tests run at a time, in namespaces of their own. They wait for programs and
// refusals more than they compute, so there may be more than processors.
const parallelTests = "6"

// TestMain raises the number of parallel tests, unless -parallel is set.
func TestMain(m *testing.M) {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if !isSet {
		if err := flag.Set("test.parallel", parallelTests); err != nil {
			panic(err) // the testing package defines this flag
		}
	}
	os.Exit(m.Run())
}
