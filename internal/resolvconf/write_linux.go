package resolvconf

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// securityLabel is the attribute with SELinux's label.
const securityLabel = "security.selinux"

// copyOwner gives f the owner of the file at path, whose status is like, and its SELinux label, if it has one.
func copyOwner(f *os.File, path string, like fs.FileInfo) error {
	if st, ok := like.Sys().(*syscall.Stat_t); ok {
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	label := make([]byte, 256)
	if n, err := unix.Getxattr(path, securityLabel, label); err == nil {
		_ = unix.Fsetxattr(int(f.Fd()), securityLabel, label[:n], 0) // refused without SELinux
	}
	return nil
}
