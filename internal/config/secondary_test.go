package config

import (
	"fmt"
	"testing"
)

// TestSecondaryFaults: what is wrong with a secondary directive is named with its remedy.
func TestSecondaryFaults(t *testing.T) {
	many := "secondary a.test {\n transfer from"
	for i := range maxPrimaries + 1 {
		many += fmt.Sprintf(" 192.0.2.%d", i+1)
	}
	wantFaults(t, map[string]string{
		"secondary": `Corefile:2: secondary: no primary server; write in its block: transfer from ADDRESS…`,
		"secondary a.test {\n transferr from ::1\n}":         `unknown option "transferr" (did you mean "transfer"?)`,
		"secondary {\n transfer to 192.0.2.1\n}":             `Corefile:3: secondary transfer: "to" is not from; write: transfer from ADDRESS…`,
		"secondary {\n transfer from\n}":                     `Corefile:3: secondary: an argument is missing after "transfer"; write: transfer from ADDRESS…`,
		"secondary {\n transfer from *\n}":                   `Corefile:3: secondary transfer: "*" is not an IP address`,
		"secondary {\n transfer from a.test\n}":              `"a.test" is not an IP address, with or without a port, such as 192.0.2.1 or [2001:db8::1]:5353`,
		"secondary {\n transfer from 192.0.2.1:0\n}":         `"192.0.2.1:0" is not an IP address`,
		"secondary {\n transfer from 192.0.2.1\n catalog\n}": `CoreDNS has the option "catalog", this version of nodens doesn't: write the member zones`,
		"secondary a.test {\n transfer from 192.0.2.1\n}\nsecondary b.test a.test {\n transfer from 192.0.2.1\n}": "Corefile:5: secondary: the zone a.test. has a `secondary` already",
		many + "\n}": "a zone has more than 16 primary servers",
	})
}
