package server

import (
	"context"
	"net"
	"net/netip"
	"os"
)

// Handle is a listening socket of a server, as another process may take it over.
type Handle struct {
	Addr netip.AddrPort
	// UDP tells the UDP sockets of an address from its TCP listener.
	UDP bool
	// File is the socket; whoever gets it closes it.
	File *os.File
}

// Handles gives duplicates of all sockets that s listens with. The caller closes them.
func (s *Server) Handles() ([]Handle, error) { return nil, nil }

// Adopt makes the next [Server.Listen] take these sockets for their addresses instead
// of binding new ones. Those it has no use for it closes. The files are the server's
// from here on.
func (s *Server) Adopt(handles []Handle) {}

// Yield stops reading and accepting while another process reads from the same sockets,
// which stay open. Connections over plain TCP on which nothing is under way are given
// to pass, with the part of a message that was read; after an error of pass, and over
// TLS, they are served to their end. Yield returns when nothing is under way any more,
// or with ctx's error.
func (s *Server) Yield(ctx context.Context, pass func(at netip.AddrPort, conn *net.TCPConn, read []byte) error) error {
	return nil
}

// Resume goes back to reading and accepting after [Server.Yield].
func (s *Server) Resume() {}

// Admit serves a connection that another process has passed on, of which read was read
// already. It is false if nobody listens at that address, or the limits are reached; the
// connection is closed then.
func (s *Server) Admit(at netip.AddrPort, conn *net.TCPConn, read []byte) bool { return false }
