//go:build !windows

package main

import "os"

// allowSequences reports true: terminals take control sequences.
func allowSequences(*os.File) bool { return true }
