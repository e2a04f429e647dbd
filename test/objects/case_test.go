package objects

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// testCase is a file of testdata.
type testCase struct {
	name           string
	options, block string
	objects        []map[string]any
	queries        []query
}

// query is a question with the answers that are wanted.
type query struct {
	line             int
	name             string
	qtype            uint16
	answer, coredns  string
	differenceReason string
}

// readCases returns the files of testdata in their order.
func readCases(t *testing.T) (cases []*testCase) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		check.NoError(t, err)
		c := &testCase{name: strings.TrimSuffix(filepath.Base(file), ".txt")}
		if err := c.read(string(text)); err != nil {
			t.Fatalf("%s:%v", file, err)
		}
		cases = append(cases, c)
	}
	return cases
}

// differences is the page whose section of this name has the reasons of all differences.
const differences = "../../docs/reference/corefile/kubernetes.md"

// TestReasons: the page on differences from CoreDNS has each of the cases.
func TestReasons(t *testing.T) {
	text, err := os.ReadFile(differences)
	check.NoError(t, err)
	page := strings.Join(strings.Fields(string(text)), " ")
	for _, c := range readCases(t) {
		for _, q := range c.queries {
			if !strings.Contains(page, q.differenceReason) {
				t.Errorf("%s: line %d: %s does not say: %s", c.name, q.line, differences, q.differenceReason)
			}
		}
	}
}

// read fills c. The error begins with the number of a line.
func (c *testCase) read(text string) error {
	section, manifest := "", ""
	for i, line := range strings.Split(text, "\n") {
		var err error
		switch {
		case line == "OPTIONS" || line == "BLOCK" || line == "OBJECTS" || line == "QUERIES":
			section = line
		case strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "":
		case section == "OPTIONS":
			c.options += line + "\n"
		case section == "BLOCK":
			c.block += line + "\n"
		case section == "OBJECTS":
			manifest += line + "\n"
		case section == "QUERIES":
			err = c.readQuery(i+1, line)
		default:
			err = fmt.Errorf("%q is in no section", line)
		}
		if err != nil {
			return fmt.Errorf("%d: %w", i+1, err)
		}
	}
	for doc := range strings.SplitSeq(manifest, "---\n") {
		o := map[string]any{}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return fmt.Errorf("OBJECTS: %w", err)
		}
		c.objects = append(c.objects, o)
	}
	return nil
}

// readQuery reads a line below QUERIES.
func (c *testCase) readQuery(number int, line string) error {
	if other, ok := strings.CutPrefix(strings.TrimSpace(line), "CoreDNS: "); ok && len(c.queries) > 0 {
		answer, reason, ok := strings.Cut(other, " | ")
		q := &c.queries[len(c.queries)-1]
		if q.coredns, q.differenceReason = answer, reason; !ok || q.coredns == q.answer {
			return fmt.Errorf("%q has no difference, or no reason", line)
		}
		return nil
	}
	question, answer, ok := strings.Cut(line, " = ")
	name, qtype, two := strings.Cut(question, " ")
	q := query{line: number, name: name, qtype: dns.StringToType[qtype], answer: answer, coredns: answer}
	if !ok || !two || q.qtype == 0 {
		return fmt.Errorf("%q is no query", line)
	}
	if !strings.HasSuffix(q.name, ".") {
		q.name += ".cluster.local."
	}
	c.queries = append(c.queries, q)
	return nil
}

// ask returns the answer of the server at addr as a case writes it.
func (q *query) ask(addr string) (string, error) {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	if q.qtype == dns.TypeAXFR {
		return transferred(m, addr)
	}
	r, _, err := (&dns.Client{Net: "tcp", Timeout: 5 * time.Second}).Exchange(m, addr)
	if err != nil {
		return "", err
	}
	var list []string
	for _, rr := range r.Answer {
		data := recordData(rr)
		if rr.Header().Rrtype != q.qtype {
			data = dns.Type(rr.Header().Rrtype).String() + " " + data
		}
		list = append(list, data)
	}
	return answerText(dns.RcodeToString[r.Rcode], list), nil
}

// transferred returns the records of a zone transfer.
func transferred(m *dns.Msg, addr string) (string, error) {
	messages, err := new(dns.Transfer).In(m, addr)
	if err != nil {
		return "", err
	}
	var list []string
	for e := range messages {
		if e.Error != nil {
			return "", e.Error
		}
		for _, rr := range e.RR {
			if h := rr.Header(); h.Rrtype != dns.TypeSOA {
				list = append(list, fmt.Sprintf("%s %s %s", strings.TrimSuffix(h.Name, ".cluster.local."), dns.Type(h.Rrtype), recordData(rr)))
			}
		}
	}
	return answerText("NOERROR", list), nil
}

func recordData(rr dns.RR) string { return strings.TrimPrefix(rr.String(), rr.Header().String()) }
