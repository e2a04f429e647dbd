package main // the program has no API

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestResults reads the events of a package with one test of each kind, one that does not
// build, and one that panics outside of its tests.
func TestResults(t *testing.T) {
	var out bytes.Buffer
	r := newResults(&out)
	err := r.read("suites", strings.NewReader(`
go: downloading something
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"quiet\n"}
{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":1.5}
{"Action":"output","Package":"m/a","Test":"TestTwo/sub","Output":"a_test.go:7: is 1, want 2\n"}
{"Action":"fail","Package":"m/a","Test":"TestTwo/sub","Elapsed":0.1}
{"Action":"pass","Package":"m/a","Test":"TestTwo/good","Elapsed":0.1}
{"Action":"fail","Package":"m/a","Test":"TestTwo","Elapsed":0.2}
{"Action":"output","Package":"m/a","Test":"TestThree","Output":"    a_test.go:9: needs root\n"}
{"Action":"skip","Package":"m/a","Test":"TestThree","Elapsed":0}
{"Action":"fail","Package":"m/a","Elapsed":2}
{"ImportPath":"m/b [m/b.test]","Action":"build-output","Output":"b_test.go:3: undefined: x\n"}
{"Action":"fail","Package":"m/b","Elapsed":0,"FailedBuild":"m/b [m/b.test]"}
{"Action":"output","Package":"m/c","Test":"TestHangs","Output":"goroutine 1 waits\n"}
{"Action":"output","Package":"m/c","Output":"panic: no\n"}
{"Action":"fail","Package":"m/c","Elapsed":0.3}
`[1:]))
	if err != nil {
		t.Fatal(err)
	}
	r.check("fuzzers", time.Second, nil, "")
	r.check("churn", time.Second, errors.New("exit status 1"), "memory grows\n")
	if done, failures := r.progress(); done["suites"] != 3 || failures != 4 {
		t.Errorf("%d tests ended and %d failed, want 3 and 4", done["suites"], failures)
	}
	if r.printSummary(2) {
		t.Error("the summary reports success")
	}
	for _, want := range []string{
		"go: downloading something\n",
		"--- FAIL m/a TestTwo/sub\na_test.go:7: is 1, want 2\n",
		"--- m/b does not build\nb_test.go:3: undefined: x\n",
		"--- FAIL m/c\ngoroutine 1 waits\npanic: no\n",
		"--- FAIL churn churn\nmemory grows\nexit status 1\n",
		"skipped m/a TestThree: needs root\n",
		"      1.5 m/a TestOne (suites)\n      1.0 fuzzers fuzzers (fuzzers)\n",
		"\n3 passed, 4 failed, 1 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "quiet") {
		t.Error("the output of a test that passed is printed")
	}
}

// TestNothingRan: a run without a test is a failure.
func TestNothingRan(t *testing.T) {
	var out bytes.Buffer
	if r := newResults(&out); r.printSummary(1) {
		t.Error("the summary reports success")
	}
}
