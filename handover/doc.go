// Package handover lets a new agent take over from the one that runs on the same node: through
// a Unix socket the old one gives its sockets away, so that what waits in the kernel is
// read by whoever reads next, then the answers that it knows, and, once the new one
// serves, its TCP connections.
package handover
