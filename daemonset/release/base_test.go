package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// elfProgram is the least that is one: a header for a machine.
func elfProgram(machine elf.Machine) string {
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	var out bytes.Buffer
	_ = binary.Write(&out, binary.LittleEndian, h)
	return out.String()
}

// packed is a package with files; what begins with -> is a link.
func packed(name string, files map[string]string) *debian.Package {
	d := &debian.Package{Name: name, Version: "1", Arch: "amd64", Source: name, Sum: sha256Hex([]byte(name)), Control: "Package: " + name + "\n", Files: make(map[string]debian.File)}
	files["usr/share/doc/"+name+"/copyright"] = "terms of " + name
	for path, body := range files {
		f := debian.File{Path: path, Mode: 0o644, Body: []byte(body)}
		if to, ok := strings.CutPrefix(body, "->"); ok {
			f.Mode, f.Link, f.Body = fs.ModeSymlink|0o777, to, nil
		}
		d.Files[path] = f
	}
	return d
}

// few are the fewest packages that there can be an image of.
func few(a architecture) map[string]map[string]string {
	tables := map[string]string{"usr/sbin/multi": elfProgram(a.machine)}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, flavour := range []string{"-nft", "-legacy"} {
			for _, does := range []string{"", "-restore", "-save"} {
				tables["usr/sbin/"+family+flavour+does] = "->/sbin/multi"
			}
		}
	}
	for _, name := range []string{"libxt_udp.so", "libipt_icmp.so", "libip6t_icmp6.so", "libebt_ip.so"} {
		tables["usr/lib/"+a.triple+"/xtables/"+name] = elfProgram(a.machine)
	}
	return map[string]map[string]string{
		"iptables":          tables,
		"netbase":           {"etc/protocols": "udp 17", "etc/services": "domain 53/udp"},
		"base-files":        {osRelease: "ID=debian\nVERSION_ID=\"12\"\n"},
		certificatesPackage: {"usr/share/ca-certificates/mozilla/b.crt": "B", "usr/share/ca-certificates/mozilla/a.crt": "A\n\n"},
		"openssl":           {"usr/bin/openssl": elfProgram(a.machine)},
	}
}

func debs(files map[string]map[string]string) (list []*debian.Package) {
	for name, f := range files {
		list = append(list, packed(name, f))
	}
	return list
}

// TestBase: what is needed is chosen with all that it needs, and nothing else.
func TestBase(t *testing.T) {
	b, err := architectures["amd64"].base(debs(few(architectures["amd64"])))
	if err != nil {
		t.Fatal(err)
	}
	files := b.layer
	for _, want := range []string{"usr/sbin/multi", "usr/lib/x86_64-linux-gnu/xtables/libxt_udp.so", "etc/services",
		"usr/share/doc/iptables/copyright", "usr/share/doc/ca-certificates/copyright", "var/lib/dpkg/status.d/iptables", "run", "tmp"} {
		if _, ok := files[want]; !ok {
			t.Errorf("/%s is missing", want)
		}
	}
	for _, none := range []string{"usr/bin/openssl", "usr/share/doc/openssl/copyright", "usr/lib/x86_64-linux-gnu/xtables/libebt_ip.so", "lib64", "bin"} {
		if _, ok := files[none]; ok {
			t.Errorf("/%s is there, and nothing needs it", none)
		}
	}
	for name, to := range map[string]string{"usr/sbin/iptables": "iptables-nft", "usr/sbin/ip6tables-restore": "ip6tables-nft-restore", "sbin": "usr/sbin", "etc/os-release": "../usr/lib/os-release"} {
		if got := string(files[name].Data); got != to {
			t.Errorf("/%s leads to %q, want %q", name, got, to)
		}
	}
	if got := string(files[certificatesPath].Data); got != "A\nB\n" {
		t.Errorf("the authorities are %q, want them in the order of their names", got)
	}
	if got := b.distribution(); got != "debian-12" {
		t.Errorf("the distribution is %s", got)
	}
}

// TestBaseMissing: packages that lack something make no image; the error says what.
func TestBaseMissing(t *testing.T) {
	tests := []struct {
		name   string
		change func(map[string]map[string]string)
		want   string
	}{
		{"program", func(f map[string]map[string]string) { delete(f["iptables"], "usr/sbin/iptables-nft") }, "/usr/sbin/iptables-nft"},
		{"behind-a-link", func(f map[string]map[string]string) { delete(f["iptables"], "usr/sbin/multi") }, "/usr/sbin/multi"},
		{"extensions", func(f map[string]map[string]string) {
			delete(f["iptables"], "usr/lib/x86_64-linux-gnu/xtables/libip6t_icmp6.so")
		}, "libip6t_"},
		{"certificates", func(f map[string]map[string]string) { delete(f, certificatesPackage) }, "contains no certificates"},
		{"release", func(f map[string]map[string]string) { delete(f, "base-files") }, osRelease},
		{"machine", func(f map[string]map[string]string) { f["iptables"]["usr/sbin/multi"] = elfProgram(elf.EM_AARCH64) }, "EM_AARCH64"},
		{"half-a-program", func(f map[string]map[string]string) {
			f["iptables"]["usr/sbin/multi"] = elfProgram(elf.EM_X86_64)[:20]
		}, "/usr/sbin/multi"},
		{"link-out", func(f map[string]map[string]string) { f["iptables"]["usr/sbin/multi"] = "->../../../etc/shadow" }, "/etc/shadow"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := few(architectures["amd64"])
			tt.change(files)
			if _, err := architectures["amd64"].base(debs(files)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	t.Run("license", func(t *testing.T) {
		list := debs(few(architectures["amd64"]))
		at := slices.IndexFunc(list, func(d *debian.Package) bool { return d.Name == "iptables" })
		delete(list[at].Files, "usr/share/doc/iptables/copyright")
		if _, err := architectures["amd64"].base(list); err == nil || !strings.Contains(err.Error(), "license of package iptables") {
			t.Errorf("error %v, want one about the license", err)
		}
	})
}

// TestBaseLoop: links that lead to each other are no end of the world.
func TestBaseLoop(t *testing.T) {
	files := few(architectures["amd64"])
	files["netbase"]["etc/protocols"], files["netbase"]["etc/protocols2"] = "->protocols2", "->protocols"
	if _, err := architectures["amd64"].base(debs(files)); err != nil {
		t.Error(err)
	}
}
