package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// emulator is the virtual machine.
const emulator = "qemu-system-x86_64"

// patience bounds a machine's life. Its own tests take a minute or two on an emulated
// processor; what takes five times that hangs.
const patience = 10 * time.Minute

// boot runs a machine until it ends itself, and gives all that it has written. Its first
// process gets want.
func boot(ctx context.Context, kernel, initramfs, want string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, emulator,
		// Two processors, or nothing would ever happen at the same time. The memory holds
		// the tests twice, packed and unpacked, with room for the maps.
		"-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-no-user-config", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", kernel, "-initrd", initramfs,
		// A kernel that panics restarts at once, which ends the machine.
		"-append", "console=ttyS0 quiet panic=-1 -- "+want)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	// The machine goes with this program, which the thread that starts it stands for.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return said.Bytes(), fmt.Errorf("%s: %w", emulator, err)
	}
	return said.Bytes(), nil
}
