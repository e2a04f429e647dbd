package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLicenses(t *testing.T) {
	tests := []struct{ text, want string }{
		{"  Apache License\n    Version 2.0, January 2004", "Apache-2.0"},
		{"Permission is hereby granted, free of\ncharge, to any person obtaining a copy", "MIT"},
		{"Redistribution and use in source and binary forms, with or without", "BSD-2-Clause"},
		{"Redistribution and use in source and binary forms ... used to endorse or promote products derived from", "BSD-3-Clause"},
		{"Permission to use, copy, modify, and/or distribute this software for any purpose", "ISC"},
		{"Mozilla Public License Version 2.0", "MPL-2.0"},
		{"Apache License Version 2.0 and Permission is hereby granted, free of charge, to any person obtaining a copy", "Apache-2.0 AND MIT"},
		{"ask me", "NOASSERTION"},
		{"", "NOASSERTION"},
	}
	for _, tt := range tests {
		if got := licenses(tt.text); got != tt.want {
			t.Errorf("%q is %s, want %s", tt.text, got, tt.want)
		}
	}
}

// TestLicenseFiles: license files are found by name; a module without one is an error.
func TestLicenseFiles(t *testing.T) {
	dir := t.TempDir()
	m := module{path: "example.test/m"}
	if err := m.read(dir); err == nil || !strings.Contains(err.Error(), "no license file") {
		t.Errorf("without a license: error %v", err)
	}
	for _, name := range []string{"LICENSE.txt", "Notice", "license_test.go", "README", "COPYING.LESSER"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("Apache License Version 2.0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.read(dir); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(m.files)); strings.Join(got, " ") != "COPYING.LESSER LICENSE.txt Notice" || m.license != "Apache-2.0" {
		t.Errorf("%s in %v, want Apache-2.0 in COPYING.LESSER, LICENSE.txt and Notice", m.license, got)
	}
}
