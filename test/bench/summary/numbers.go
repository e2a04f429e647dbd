package summary

import (
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// number is a row of the table in the README: a cell for nodens and one for CoreDNS of a table in a page, from a row or a column.
type number struct {
	what, page string
	heading    string   // that the table follows
	header     []string // its first cells
	row        string   // or
	column     string
	unit       string
}

// numbers are the rows. %s is the address of the page.
func numbers() []number {
	cpu := func(rate, kind string) number {
		return number{
			what: "CPU per [answer from memory](%s#the-rates-of-a-real-node) at " + rate + " queries/s", page: "low-rates.md",
			heading: "### " + rate + " qps", header: []string{"server"}, column: kind, unit: " µs",
		}
	}
	return []number{
		{
			what: "queries lost when the [agent is killed](%s#agents-that-go-away): 10,000 queries/s, restarted after 2 s", page: "agents-that-go-away.md",
			heading: "### All faults", header: []string{"queries lost"}, row: "kill -9",
		},
		{
			what: "p99 of cache misses when [one of two upstreams freezes](%s#upstreams-that-fail-and-tls-to-upstreams): 500 queries/s, the first 5 s", page: "upstreams-that-fail.md",
			heading: "### one of two upstreams freezes", header: []string{"server"}, column: "p99 ms, first 5 s", unit: " ms",
		},
		cpu("10,000", "cached A"),
		cpu("1,000", "Service A"),
	}
}

// Numbers is the table of the README, from the pages in dir. Links lead from the repository's root to the folder.
func Numbers(dir, folder string) (string, error) {
	rows := [][]string{{"measured", "nodens", "CoreDNS"}}
	for _, n := range numbers() {
		text, err := harness.ReadPage(dir, n.page)
		if err != nil {
			return "", err
		}
		_, section, _ := strings.Cut(text, "\n"+n.heading+"\n")
		nodens, coreDNS := n.cells(findTable(section, n.header...))
		if nodens == "" || coreDNS == "" {
			return "", fmt.Errorf("%s has no table with %q for both servers below %q", n.page, n.row+n.column, n.heading)
		}
		rows = append(rows, []string{fmt.Sprintf(n.what, folder+"/"+harness.Question(n.page)), nodens + n.unit, coreDNS + n.unit})
	}
	return figures.Table(rows), nil
}

// cells are nodens' and CoreDNS's cells; empty if the table has none. Servers are columns if there is a row, and else rows.
func (n number) cells(table [][]string) (nodens, coreDNS string) {
	for _, r := range table {
		for i, head := range table[0] {
			server, of := r[0], head
			if n.row != "" {
				server, of = head, r[0]
			}
			if of != n.row+n.column {
				continue
			}
			switch server {
			case "nodens", "nodens, nftables":
				nodens = r[i]
			case "CoreDNS", "CoreDNS, NodeLocal's rules":
				coreDNS = r[i]
			}
		}
	}
	return nodens, coreDNS
}
