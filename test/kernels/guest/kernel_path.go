package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/server/kernelpath"
)

// answers shows that the program is loaded, that links take it, and that its tests pass.
func answers(links []netlink.Link) (string, error) {
	p, err := kernelpath.Open(kernelpath.Options{})
	if err != nil {
		return "", err
	}
	for _, l := range links {
		if _, err := p.Update(l.Attrs().Index, false); err != nil {
			return "", fmt.Errorf("attaching to %s: %w", l.Attrs().Name, err)
		}
	}
	if n, _ := p.Links(); n != len(links) {
		return "", fmt.Errorf("%d links have the program, not %d", n, len(links))
	}
	if err := p.Close(); err != nil {
		return "", err
	}
	counted, err := tests(".")
	return "loaded, attached; " + counted, errors.Join(err, limited())
}

// limited runs the tests of loading with the rights that it takes and no others. PERFMON is
// one of them: without it the verifier of kernels before 6.17 refuses addresses that vary,
// as they are in every loop, because a processor may guess them.
func limited() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread never has its rights back
		for c := range uintptr(unix.CAP_LAST_CAP + 1) {
			if c == unix.CAP_BPF || c == unix.CAP_NET_ADMIN || c == unix.CAP_PERFMON {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				done <- fmt.Errorf("giving up right %d: %w", c, err)
				return
			}
		}
		_, err := tests("^(TestVerifier|TestOpen|TestAnswers)$")
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("with the capabilities BPF, NET_ADMIN and PERFMON only: %w", err)
	}
	return nil
}

// tests runs those tests of the package whose names match.
func tests(names string) (counted string, err error) {
	cmd := exec.Command("/kernelpath.test", "-test.v", "-test.short", "-test.count=1", "-test.run", names)
	cmd.Dir = "/tmp"
	var text strings.Builder
	cmd.Stdout = io.MultiWriter(&text, os.Stdout)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("the package's tests: %w", err)
	}
	passed, skipped := strings.Count(text.String(), "\n--- PASS"), strings.Count(text.String(), "\n--- SKIP")
	if passed == 0 {
		return "", errors.New("none of the package's tests has passed")
	}
	return fmt.Sprintf("%d tests passed, %d skipped", passed, skipped), nil
}

// refuses shows that the package says in plain words that the kernel is too old. With verifier, its
// verifier has nothing against the program.
func refuses(verifier bool) (string, error) {
	if verifier {
		if _, err := tests("^TestVerifier$"); err != nil {
			return "", err
		}
		if err := limited(); err != nil {
			return "", err
		}
	}
	p, err := kernelpath.Open(kernelpath.Options{})
	if err == nil {
		return "", errors.Join(errors.New("the program was loaded where it should not"), p.Close())
	}
	for _, word := range []string{"tcx", "6.6"} {
		if !errors.Is(err, kernelpath.ErrUnsupported) || !strings.Contains(err.Error(), word) {
			return "", fmt.Errorf("the error is %q: it has to be ErrUnsupported, and name %s", err.Error(), word)
		}
	}
	return "refused: " + err.Error(), nil
}
