package options

import "errors"

// FastPathMode is the value of --kernel-path.
type FastPathMode uint8

// The modes.
const (
	FastPathOff  FastPathMode = iota
	FastPathAuto              // if this node's kernel can
	FastPathOn                // an error if this node's kernel cannot
)

// fastPathModes are the names of the modes.
var fastPathModes = [...]string{"off", "auto", "on"}

// Set sets k to the mode of that name.
func (k *FastPathMode) Set(s string) error {
	for i, word := range fastPathModes {
		if s == word {
			*k = FastPathMode(i)
			return nil
		}
	}
	return errors.New("give off, auto or on")
}

// String returns the name of the mode.
func (k FastPathMode) String() string { return fastPathModes[k] }

// FastPathOrder is the value of --kernel-path-order: the position of the program among others on
// an interface. It has the fields of fastpath.Order.
type FastPathOrder struct {
	// First puts it in front of all others.
	First bool
	// Before and After name another program, by its name in the kernel. If that program is
	// not on the interface, and with the zero value, ours goes behind all others.
	Before, After string
}
