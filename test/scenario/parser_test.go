package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// head is the least that a file has in front of its steps, in five lines.
const head = "TITLE t\nCOREFILE\n. {\n}\nEND\n"

// TestFaults: what is wrong with a file is said with its line and with what to write.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "f.txt:1: the title is missing"},
		{"no Corefile", "TITLE t\nQUERY a A\n", "f.txt:1: the Corefile is missing"},
		{"no steps", head, "nothing happens"},
		{"no END", "TITLE t\nCOREFILE\n. {\n}\n", "f.txt:2: the line END is missing"},
		{"unknown statement", head + "QUREY a A\n", `f.txt:6: "QUREY" begins no statement; one begins with ADDITIONAL, ADVANCE, `},
		{"record of nobody", head + "ANSWER a 1 A 192.0.2.1\n", "f.txt:6: it stands below an ON or an EXPECT; write: ANSWER OWNER TTL TYPE RDATA"},
		{"action of nobody", head + "DELAY 1s\n", "f.txt:6: it stands below an ON"},
		{"rule of nobody", head + "ON * *\n", "f.txt:6: it stands below an UPSTREAM"},
		{"rule behind a step", head + "UPSTREAM up\nQUERY a A\nON * *\n", "f.txt:8: it stands below an UPSTREAM"},
		{"bad record", head + "UPSTREAM up\nON * *\nANSWER @ 300 A 192.0.2\n", `f.txt:8: "@ 300 A 192.0.2" is no record`},
		{"bad TTL", head + "QUERY a A\nEXPECT NOERROR\nANSWER a soon A 192.0.2.1\n", `f.txt:8: "soon" is no TTL, which is N, N..M or *`},
		{"bad expected record", head + "QUERY a A\nEXPECT NOERROR\nANSWER a 1 A x\n", "f.txt:8: "},
		{"bad rcode", head + "QUERY a A\nEXPECT NXDOMIAN\n", `f.txt:7: "NXDOMIAN" is no rcode`},
		{"EXPECT first", head + "EXPECT NOERROR\n", "f.txt:6: it stands behind a QUERY"},
		{"bad type", head + "QUERY a B\n", `f.txt:6: "B" is no type`},
		{"no type", head + "QUERY a\n", "f.txt:6: a type is missing; write: QUERY NAME TYPE"},
		{"bad option", head + "QUERY a A twice\n", `f.txt:6: "twice" is not an option`},
		{"bad transport", head + "QUERY a A over sctp\n", `"sctp" is no transport, which is one of udp, tcp, tls, https`},
		{"too many", head + "QUERY a A times 1000000\n", "a number from 1 to 2000"},
		{"bad duration", head + "ADVANCE 10\n", `f.txt:6: "10" is no time, which is a duration such as 20ms or 30s`},
		{"left over", head + "ADVANCE 10s more\n", `f.txt:6: "more" is not expected`},
		{"no upstream", head + "QUERY a A\nEXPECT-UPSTREAM up count 1\n", "f.txt:7: there is no UPSTREAM up"},
		{"no count", head + "UPSTREAM up\nQUERY a A\nEXPECT-UPSTREAM up a A\n", "f.txt:8: the count is missing"},
		{"no label", head + "QUERY a A\nEXPECT NOERROR of crowd\n", "f.txt:7: no QUERY is made as crowd"},
		{"upstream twice", head + "UPSTREAM up\nUPSTREAM up\nQUERY a A\n", "f.txt:7: the name up is taken"},
		{"upstream of a reserved name", head + "UPSTREAM ca\nQUERY a A\n", "f.txt:6: the name ca is taken"},
		{"late upstream", head + "QUERY a A\nUPSTREAM up\n", "f.txt:7: an upstream stands before the first step"},
		{"file outside", head + "FILE ../x\nEND\nQUERY a A\n", "is no plain file name"},
		{"bad span", head + "UPSTREAM up\nEXPECT-UPSTREAM up count 3..1\n", `"3..1" is no count, which is N, N..M or N..`},
		{"bad label of a metric", head + "EXPECT-METRIC x{a=b} 1\n", `"a=b" is no label`},
		{"too long", strings.Repeat("#", maxSize+1), "f.txt:1: the file has 65537 bytes, the most is 65536"},
		{"all of them", head + "QUERY a\nQUERY b\n", "f.txt:7: a type is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc, err := Parse("f.txt", []byte(c.text))
			if err == nil || sc != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestParse: every statement there is, in one file.
func TestParse(t *testing.T) {
	text := `TITLE all
NEEDS one two
ARGS -a=b
` + strings.TrimPrefix(head, "TITLE t\n") + `FILE x
line
END
UPSTREAM up port 5300
ON www.example.org A over udp times 2 with edns without do
    DELAY 1ms
    STRAY id question
    ANSWER @ 1 A 192.0.2.$n
    AUTHORITY . 1 NS a.
    ADDITIONAL a. 1 A 192.0.2.1
    RCODE NXDOMAIN
    FLAGS aa -ra
    TC
    MANY 2
    CHAIN 3
    CUT 1 bytes
    EXTRA 1 bytes
    BARE
    NO-EDNS
    EDE 22
ON *.example.org *
    SILENT
ON * *
    HOLD
    RESET
    CLOSE after 3 bytes
    RAW 8180
UPSTREAM dot tls expired
UPSTREAM doh https unknown for other.test
QUERY a A over tcp do cd ad aa -rd edns 512 nsid class CH from 127.0.0.1 times 3 spread window 2 again as x
EXPECT NOERROR aa -tc any answers 1..2 bytes ..9 edns do nsid me ede 3 of x
`
	text = strings.Replace(text, "bytes ..9", "bytes 0..9", 1) + `    ANSWER a 1..2 A 192.0.2.1
    ANSWER a * A 192.0.2.2
EXPECT nothing
ADVANCE 24h
SILENCE up dot
REVIVE up
STOP up
DROP up
RELEASE up
FLUSH example.org subtree count 1..
RELOAD refused it is bad
. {
END
FILE y
END
EXPECT-UPSTREAM up * A over tcp count 0
EXPECT-CONNECTIONS up count ..
EXPECT-METRIC m{a="b",c="d"} 3
EXPECT-LOG some words
EXPECT-NO-LOG others
`
	text = strings.Replace(text, "count ..\n", "count 0..\n", 1)
	sc, err := Parse("f.txt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	table := (&parser{sc: sc}).keywords()
	for name := range table {
		if !regexp.MustCompile(`(?m)^\s*`+name+`\b`).MatchString(text) && name != "REFUSED" {
			t.Errorf("%s is not in the text", name)
		}
	}
	u := sc.Upstreams[0]
	got := fmt.Sprintf("%v %d %d %d %+v", sc.Needs, len(sc.Files), len(sc.Upstreams), len(sc.Steps), *u.rules[0])
	want := "[one two] 1 3 17 {line:12 name:www.example.org. qtype:1 over:udp with:[edns] without:[do] times:2 " +
		"action:{delay:1000000 silent:false held:false reset:false closes:false sent:0 strays:[id question] rcode:3 set:[aa tc] unset:[ra] " +
		"sections:[[@ 1 A 192.0.2.$n] [. 1 NS a.] [a. 1 A 192.0.2.1]] many:2 chain:3 cut:1 extra:1 bare:true noEDNS:true ede:22 raw:[]}}"
	if got != want {
		t.Errorf("it is\n%s, want\n%s", got, want)
	}
}

// FuzzParse holds that no file makes Parse panic, and that each line of an error says
// which line of the file is at fault.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no scenarios: %v", err)
	}
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(head + "QUERY a A\nEXPECT NOERROR\nANSWER a *"))
	located := regexp.MustCompile(`^f\.txt:[0-9]+: .`)
	f.Fuzz(func(t *testing.T, body []byte) {
		sc, err := Parse("f.txt", body)
		switch {
		case err == nil && (sc.Title == "" || len(sc.Steps) == 0 && sc.Refused == ""):
			t.Fatalf("a file in which nothing happens is taken: %+v", sc)
		case err == nil:
			return
		case sc != nil:
			t.Fatal("an error and a scenario")
		}
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok {
			joined = singleError{err}
		}
		for _, e := range joined.Unwrap() {
			if !located.MatchString(e.Error()) {
				t.Fatalf("an error without its line: %q", e)
			}
		}
	})
}

type singleError struct{ err error }

func (s singleError) Unwrap() []error { return []error{s.err} }
