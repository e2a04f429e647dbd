package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// TestKernelOf: a version stands for its kernels, not for those whose numbers begin alike.
func TestKernelOf(t *testing.T) {
	for version, want := range map[string]string{
		"6.1": "6.1.0-50-cloud-amd64", "6.1.0-50-cloud-amd64": "6.1.0-50-cloud-amd64",
		"6.12": "6.12.43+deb12-cloud-amd64, 6.12.43+deb12-cloud-arm64",
		"":     releases(), "8": "", "6.12.4": "",
	} {
		var got []string
		for _, k := range kernels() {
			if k.of(version) {
				got = append(got, k.release)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q stands for %v, want %s", version, got, want)
		}
	}
}

// TestArchive reads an archive as a kernel does.
func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := archive{w: &b}
	a.file("lib/deep/a", []byte("abcde"))
	a.file("lib/b", nil)
	a.link("lib64", "lib")
	if err := a.end(); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	var order []string
	for rest := b.Bytes(); ; {
		if len(rest) < 110 || len(rest)%4 != 0 || string(rest[:6]) != "070701" {
			t.Fatalf("no entry begins at %q", rest)
		}
		var f [13]int
		for i := range f {
			if _, err := fmt.Sscanf(string(rest[6+8*i:14+8*i]), "%x", &f[i]); err != nil {
				t.Fatal(err)
			}
		}
		size, length := f[6], f[11]
		name := string(rest[110 : 110+length-1])
		rest = rest[(110+length+3)&^3:]
		if name == "TRAILER!!!" {
			break
		}
		order = append(order, name)
		got[name] = fmt.Sprintf("%o %s", f[1], rest[:size])
		rest = rest[(size+3)&^3:]
	}
	want := map[string]string{"lib": "40755 ", "lib/deep": "40755 ", "lib/deep/a": "100755 abcde", "lib/b": "100755 ", "lib64": "120777 lib"}
	if !maps.Equal(got, want) {
		t.Errorf("the archive has %q, want %q", got, want)
	}
	if slices.Index(order, "lib/deep") > slices.Index(order, "lib/deep/a") {
		t.Errorf("a folder comes behind what is in it: %v", order)
	}
}

// TestVerdict: a machine that ends without its good word has failed, whatever else it says.
func TestVerdict(t *testing.T) {
	for said, want := range map[string]string{
		"[    1.0] boot\r\npassed: all of it\r\n[    2.0] reboot": "all of it",
		"--- PASS: TestX\nfailed: no":                             "",
		"not passed: this":                                        "",
		"":                                                        "",
	} {
		if got := passed([]byte(said)); got != want || (verdict([]byte(said)) == nil) != (want != "") {
			t.Errorf("%q passes with %q, want %q", said, got, want)
		}
	}
}

// TestImage: the image is in /boot, or beside the modules; a package without one is an error.
func TestImage(t *testing.T) {
	k := kernel{release: "1-a"}
	for name, want := range map[string]string{"boot/vmlinuz-1-a": "x", "usr/lib/modules/1-a/vmlinuz": "x", "boot/vmlinuz-2": ""} {
		got, err := k.image(map[string]debian.File{name: {Body: []byte("x")}})
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestKernels: each kernel has packages with hashes, a machine, and a wish that the guest knows.
func TestKernels(t *testing.T) {
	for _, k := range kernels() {
		if machines()[k.arch].emulator == "" || len(k.packages) == 0 || !slices.Contains([]string{wantAnswers, wantRefuses, wantLacks}, k.want) {
			t.Errorf("%+v", k)
		}
		for name, sum := range k.packages {
			if !strings.HasSuffix(name, k.release) || len(sum) != 64 {
				t.Errorf("%s: package %s with the hash %q", k.release, name, sum)
			}
		}
	}
}
