package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// machine is a kind of virtual machine.
type machine struct {
	emulator string
	// args are the machine and its processor.
	args []string
	// console is the serial line, as the kernel calls it.
	console string
	// triple is part of the paths of Debian's libraries, and machine what its programs are built for.
	triple  string
	machine elf.Machine
}

// machines are the kinds by architecture.
func machines() map[string]machine {
	return map[string]machine{
		"amd64": {"qemu-system-x86_64", []string{"-machine", "q35,accel=tcg", "-cpu", "max"}, "ttyS0", "x86_64-linux-gnu", elf.EM_X86_64},
		"arm64": {"qemu-system-aarch64", []string{"-machine", "virt,accel=tcg", "-cpu", "cortex-a57"}, "ttyAMA0", "aarch64-linux-gnu", elf.EM_AARCH64},
	}
}

// patience bounds a machine's life. Its own tests take some minutes on an emulated
// processor; what takes several times that hangs.
const patience = 20 * time.Minute

// boot runs a machine until it ends itself, and gives all that it has written, which also goes to
// follow. Its first process gets what is wanted.
func (k kernel) boot(ctx context.Context, image, initramfs string, follow io.Writer) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m := machines()[k.arch]
	args := append(m.args,
		// Two processors, or nothing would ever happen at the same time. The memory holds
		// the programs twice, packed and unpacked, with room for several agents.
		"-smp", "2", "-m", "2048",
		"-no-user-config", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", image, "-initrd", initramfs,
		// A kernel that panics restarts at once, which ends the machine.
		"-append", "console="+m.console+" quiet panic=-1 -- "+k.want)
	cmd := exec.CommandContext(ctx, m.emulator, args...)
	var said bytes.Buffer
	cmd.Stdout = io.MultiWriter(&said, follow)
	cmd.Stderr = cmd.Stdout
	// The machine goes with this program, which the thread that starts it stands for.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return said.Bytes(), fmt.Errorf("%s: %w", m.emulator, err)
	}
	return said.Bytes(), nil
}
