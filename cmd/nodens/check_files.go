package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"slices"

	"github.com/nodens-dns/nodens/cmd/nodens/migrate"
	"github.com/nodens-dns/nodens/internal/config"
)

// checkedFile is a file that was read, or a key of a ConfigMap.
type checkedFile struct {
	Name string `json:"name"`
	// SHA256 is the hash of its bytes, as sha256sum prints it.
	SHA256 string `json:"sha256"`
}

func newCheckedFile(name string, text []byte) checkedFile {
	sum := sha256.Sum256(text)
	return checkedFile{Name: name, SHA256: hex.EncodeToString(sum[:])}
}

// filesRead returns the files that in is made from, in the order in which they are read. Those of this machine are
// read again.
func (in *checkInput) filesRead() (list []checkedFile) {
	for _, f := range in.texts {
		list = append(list, newCheckedFile(f.Name, []byte(f.Text)))
	}
	if in.cfg == nil || in.objects {
		return list
	}
	for _, path := range in.cfg.Files {
		if text, err := config.ReadFile(path); err == nil && path != in.source {
			list = append(list, newCheckedFile(path, text))
		}
	}
	return list
}

// addFiles adds files that r does not have yet.
func (r *checkResult) addFiles(files ...checkedFile) {
	for _, f := range files {
		if !slices.Contains(r.Files, f) {
			r.Files = append(r.Files, f)
		}
	}
}

// printFiles writes the hashes as sha256sum does.
func (r *checkResult) printFiles(w io.Writer) {
	fmt.Fprintln(w, "\nfiles read, with their SHA-256:")
	for _, f := range r.Files {
		fmt.Fprintf(w, "  %s  %s\n", f.SHA256, f.Name)
	}
}

// guessVariables finds values for the environment variables of a Corefile of other machines, and returns its text with
// them.
func (in *checkInput) guessVariables(text []byte, parse func(text []byte) (*config.Config, error)) []byte {
	values := make(migrate.Values)
	guessed := values.Guess(migrate.Variables(string(text)), func(v migrate.Values) (*config.Config, error) {
		return parse([]byte(v.Replace(string(text))))
	})
	if note := values.Note(guessed); note != "" {
		in.notes = append(in.notes, note)
	}
	return []byte(values.Replace(string(text)))
}

// quiet discards what libraries log until the function that it returns is called: the parser logs each import that no file
// matches, each time that it runs, and a note has them.
func quiet() (restore func()) {
	was := log.Writer()
	log.SetOutput(io.Discard)
	return func() { log.SetOutput(was) }
}
