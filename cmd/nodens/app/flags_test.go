package app

import (
	"io"
	"os"
	"strings"
	"testing"
)

func TestPlace(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host = strings.ToLower(host)
	for _, tt := range []struct {
		name, args         string
		envNode, envZone   string
		wantNode, wantZone string
	}{
		{"nothing", "", "", "", host, ""},
		{"environment", "", "env-1", "env-zone", "env-1", "env-zone"},
		{"flags", "-node-name=flag-1 -node-zone=flag-zone", "", "", "flag-1", "flag-zone"},
		{"flags go before the environment", "-node-name flag-1 -node-zone flag-zone", "env-1", "env-zone", "flag-1", "flag-zone"},
		{"empty flags", "-node-name= -node-zone=", "env-1", "env-zone", "env-1", "env-zone"},
		{"a name is taken as it is", "-node-name=Node.Example.ORG", "", "", "Node.Example.ORG", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", tt.envNode)
			t.Setenv("NODE_ZONE", tt.envZone)
			o, err := parseFlags(strings.Fields(tt.args), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if o.node() != tt.wantNode || o.zone() != tt.wantZone {
				t.Errorf("node %q in zone %q, want %q in %q", o.node(), o.zone(), tt.wantNode, tt.wantZone)
			}
		})
	}
}
