// Package lookups tests `nodens host` and --host-resolver with Debian's own systemd-resolved and
// NetworkManager. The programs of a release run in a root folder of their own, in namespaces of network,
// mounts and processes that end with the test, on a message bus of their own.
package lookups
