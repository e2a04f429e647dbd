// Command apparmor writes the AppArmor profile that containerd gives every container on nodes with AppArmor, unless its pod
// names another one. The profile is the one for a machine without AppArmor's own include files, such as the machines of
// test/kernels.
package main

import (
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/contrib/apparmor"
)

// profile is the name that containerd's CRI plugin gives it.
const profile = "cri-containerd.apparmor.d"

func main() {
	text, err := apparmor.DumpDefaultProfile(profile)
	if err != nil {
		fmt.Fprintln(os.Stderr, "apparmor:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}
