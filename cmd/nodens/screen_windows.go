package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// allowSequences makes a console take control sequences. It returns false if the console can't.
func allowSequences(console *os.File) bool {
	var mode uint32
	handle := windows.Handle(console.Fd())
	return windows.GetConsoleMode(handle, &mode) == nil && windows.SetConsoleMode(handle, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
