// Command pack makes a container image, for the architecture of this machine, of the files
// in a directory. The tests in test/e2e make their images with it:
//
//	go -C daemonset/image run ./pack -root DIRECTORY -name probe:e2e -out probe.tar -command 'sleep infinity'
//
// All files belong to root. The layer is not compressed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fset := flag.NewFlagSet("pack", flag.ContinueOnError)
	root := fset.String("root", "", "`directory` with the files")
	name := fset.String("name", "", "`name` of the image, with a tag")
	out := fset.String("out", "", "`file` to write the image to")
	entrypoint := fset.String("entrypoint", "", "entry point: `words` separated by spaces")
	command := fset.String("command", "", "arguments after the entry point: `words` separated by spaces")
	env := fset.String("env", "", "environment: `NAME=value` words separated by spaces")
	if err := fset.Parse(args); err != nil {
		return err
	}
	if *root == "" || *out == "" {
		return errors.New("give -root and -out")
	}
	layer, err := read(*root)
	if err != nil {
		return err
	}
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	return errors.Join(oci.Write(file, *name, time.Unix(0, 0), oci.Image{
		Architecture: runtime.GOARCH,
		Layers:       []oci.Layer{layer},
		Entrypoint:   strings.Fields(*entrypoint),
		Command:      strings.Fields(*command),
		Env:          strings.Fields(*env),
		Uncompressed: true,
	}), file.Close())
}

// read returns the files below root.
func read(root string) (layer oci.Layer, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		f := oci.File{Path: filepath.ToSlash(path), Mode: info.Mode()}
		switch info.Mode().Type() {
		case 0:
			f.Body, err = os.ReadFile(name)
		case fs.ModeSymlink:
			f.Link, err = os.Readlink(name)
		}
		layer = append(layer, f)
		return err
	})
	return layer, err
}
