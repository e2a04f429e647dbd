package main

import (
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// allowSequences makes a console take control sequences. It returns false if the console can't.
func allowSequences(console *os.File) bool {
	var mode uint32
	handle := windows.Handle(console.Fd())
	return windows.GetConsoleMode(handle, &mode) == nil && windows.SetConsoleMode(handle, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}

// unread reports false: this system shows it only when something is written.
func unread(io.Writer) bool { return false }
