package main

import (
	"errors"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/server/kernelpath"
)

// kernelPath is the value of -kernel-path.
type kernelPath uint8

const (
	kernelOff kernelPath = iota
	kernelAuto
	kernelOn
)

func (k *kernelPath) set(s string) error {
	for i, word := range [...]string{"off", "auto", "on"} {
		if s == word {
			*k = kernelPath(i)
			return nil
		}
	}
	return errors.New("give off, auto or on")
}

func (o *options) setKernelOrder(s string) error {
	where, name, _ := strings.Cut(s, ":")
	switch {
	case s == "last":
		o.kernelOrder = kernelpath.Order{}
	case s == "first":
		o.kernelOrder = kernelpath.Order{First: true}
	case where == "before" && name != "":
		o.kernelOrder = kernelpath.Order{Before: name}
	case where == "after" && name != "":
		o.kernelOrder = kernelpath.Order{After: name}
	default:
		return errors.New("give last, first, before:NAME or after:NAME, with the name of a program in the kernel, such as before:cil_from_container")
	}
	return nil
}
