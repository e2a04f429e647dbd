// Command report prints the statement coverage of each package in coverage profiles, and with -in
// also the functions and blocks of some packages that no test reaches. Run it in the root of
// the repository:
//
//	go run ./test/coverage/report [-in cache,server/resolver] PROFILE...
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nodens-dns/nodens/test/coverage"
)

// module is the prefix of the packages' import paths.
const module = "github.com/nodens-dns/nodens/"

func main() {
	in := flag.String("in", "", "comma-separated `directories` of packages; lists what no test reaches in them")
	flag.Parse()
	if err := run(os.Stdout, *in, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, in string, files []string) error {
	profile := make(coverage.Profile)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = profile.Add(f)
		f.Close()
		if err != nil {
			return err
		}
	}
	profile.WriteTable(w, module)
	if in == "" {
		return nil
	}
	fmt.Fprintln(w)
	return profile.WriteUncovered(w, ".", module, strings.Split(in, ","))
}
