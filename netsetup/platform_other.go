//go:build !linux

package netsetup

// thisNode returns ErrNotLinux.
func thisNode() (Node, error) { return nil, ErrNotLinux }

// openRuleTool returns ErrNotLinux.
func openRuleTool(Family, string) (ruleTool, error) { return nil, ErrNotLinux }

// currentThread returns 0: there is no thread's directory in /proc.
func currentThread() int { return 0 }
